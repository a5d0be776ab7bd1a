"""Everything that takes part on one runtime, started once and asked in turns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nats.js.client import JetStreamContext

from bench.bare import Bare
from bench.field import console, floor, rows, runs
from bench.field.console import Commands
from bench.field.engine import EngineFacts, Watch
from bench.field.floor import Alone
from bench.field.memory import pss
from bench.field.node import Jobs
from bench.field.rows import OUTPUTS, PYTHON, TRUE
from bench.field.runs import Runs
from bench.sessions_http import Caller
from bench.world import BenchError
from tests.console_process import WorkerProcess
from tests.node_process import NodeProcess

FLOOR, COLD, WORKER, CELL, SESSION_HTTP = "floor", "cold", "worker", "cell", "session over HTTP"
ALL = (FLOOR, COLD, WORKER, CELL, SESSION_HTTP)
SESSION = "field"
MOST_IDLE = 4
"""The size of every pool: small, so that a burst is more than it holds."""
WARM, NO_WARM = {"FUMEHOOD_WARM_SANDBOXES": str(MOST_IDLE)}, {"FUMEHOOD_WARM_SANDBOXES": "0"}
WORKER_WARM = {"WORKER_WARM_SANDBOXES": str(MOST_IDLE)}
WAIT_MS = 60_000

Take = Callable[[], Awaitable[Mapping[str, float]]]
"""One sample: seconds by row."""


@dataclass(slots=True)
class Place:
    """What is absent is not measured."""

    engine: EngineFacts
    watch: Watch
    image: str
    runtime: str
    bare: Bare
    container: str
    """A running one, for bare exec."""
    warm: Jobs
    node_before: int
    """Bytes of the warm node before its first job."""
    cold: Jobs | None = None
    alone: Alone | None = None
    stream: JetStreamContext | None = None
    commands: Commands | None = None
    runs: Runs | None = None
    session: Take | None = None

    async def ready(self) -> None:
        """Every pool has what it is asked for next, and nobody makes or removes a container."""
        await self.warm.warm()
        if self.commands is not None:
            await self.commands.warm()
        if self.runs is not None:
            await self.runs.jobs.warm()
        await self.watch.rest()

    async def demand(self) -> None:
        """Ask once for everything that a pool holds: what nobody ever asked for is not in stock."""
        for take in self.takes().values():
            await take()
        await self.ready()

    def takes(self) -> dict[str, Take]:
        found: dict[str, Take] = {
            "bare true": lambda: self._bare(TRUE, rows.BARE_TRUE, rows.BARE_TRUE_ANSWER),
            "bare python": lambda: self._bare(PYTHON, rows.BARE_PYTHON, rows.BARE_PYTHON_ANSWER),
            "bare exec": lambda: self._exec(TRUE, rows.BARE_EXEC),
            "bare exec python": lambda: self._exec(PYTHON, rows.BARE_EXEC_PYTHON),
            "warm true": lambda: _named(rows.WARM_TRUE, self.warm.run(TRUE)),
            "warm python": lambda: _named(rows.WARM_PYTHON, self.warm.run(PYTHON)),
        }
        return found | self._cold_takes() | self._floor_takes() | self._server_takes()

    def _cold_takes(self) -> dict[str, Take]:
        cold = self.cold
        if cold is None:
            return {}
        return {
            "cold true": lambda: _without_removal(cold.until_gone(TRUE, rows.COLD_TRUE, rows.COLD_TRUE_GONE)),
            "cold python": lambda: cold.until_gone(PYTHON, rows.COLD_PYTHON, rows.COLD_PYTHON_GONE),
        }

    def _floor_takes(self) -> dict[str, Take]:
        found: dict[str, Take] = {}
        if (alone := self.alone) is not None:
            found["alone true"] = lambda: _named(rows.FLOOR_TRUE, alone.run(TRUE))
            found["alone python"] = lambda: _named(rows.FLOOR_PYTHON, alone.run(PYTHON))
        if (stream := self.stream) is not None:
            found["jetstream"] = lambda: floor.publish(stream)
        return found

    def _server_takes(self) -> dict[str, Take]:
        found: dict[str, Take] = {}
        if (commands := self.commands) is not None:
            found["pythonExec"] = lambda: _named(rows.PYTHON_EXEC, commands.python_exec())
            found["session"] = lambda: _named(rows.SESSION, commands.command(SESSION, TRUE, b""))
            found["session python"] = lambda: _named(rows.SESSION_PYTHON, commands.command(SESSION, PYTHON, b"1\n"))
        if (all_the_way := self.runs) is not None:
            found["run"] = lambda: _named(rows.RUN, all_the_way.run())
        if self.session is not None:
            found["session over HTTP"] = self.session
        return found

    async def _bare(self, command: tuple[str, ...], whole: str, answered: str) -> dict[str, float]:
        run = await self.bare.run(command)
        if run.output.decode() != OUTPUTS[command]:
            raise BenchError(f"a wrong bare answer: {run.output!r}")
        return {whole: run.gone, answered: run.answered}

    async def _exec(self, command: tuple[str, ...], row: str) -> dict[str, float]:
        began = time.perf_counter()
        output = await self.bare.execute(self.container, command)
        seconds = time.perf_counter() - began
        if output.decode() != OUTPUTS[command]:
            raise BenchError(f"a wrong answer of bare exec: {output!r}")
        return {row: seconds}


async def _named(row: str, seconds: Awaitable[float]) -> dict[str, float]:
    return {row: await seconds}


async def _without_removal(taken: Awaitable[dict[str, float]]) -> dict[str, float]:
    """Two rows would have it, and each row has one sample in a round."""
    return {row: seconds for row, seconds in (await taken).items() if row != rows.REMOVAL}


@contextlib.asynccontextmanager
async def place(
    engine: EngineFacts, watch: Watch, image: str, runtime: str, parts: tuple[str, ...], folder: Path
) -> AsyncIterator[Place]:
    """`parts`: what takes part beside the bare engine and a node with a pool."""
    await asyncio.to_thread(folder.mkdir)
    async with contextlib.AsyncExitStack() as stack:
        bare = await stack.enter_async_context(Bare(image, runtime, folder, engine.socket))
        container = await bare.create(bare.command_body(("sleep", "86400")))
        stack.push_async_callback(bare.remove, container)
        await bare.start(container)
        warm = await _node(stack, engine, watch, image, runtime, folder / "warm", WARM)
        made = Place(engine, watch, image, runtime, bare, container, warm, pss(warm.node.pid))
        if COLD in parts:
            made.cold = await _node(stack, engine, watch, image, runtime, folder / "cold", NO_WARM)
        if FLOOR in parts:
            made.alone = Alone(engine.runtimes[runtime], folder)
            await made.alone.unpack(engine, image)
            made.stream = await stack.enter_async_context(floor.jetstream(folder))
        await _servers(stack, made, parts, folder)
        await made.demand()
        yield made


async def _servers(stack: contextlib.AsyncExitStack, made: Place, parts: tuple[str, ...], folder: Path) -> None:
    engine, runtime, image, watch = made.engine, made.runtime, made.image, made.watch
    if WORKER in parts:
        worker = console.worker(folder, engine, runtime, image, watch, WORKER_WARM)
        made.commands = await stack.enter_async_context(worker)
        await made.commands.session(SESSION)
    if CELL in parts:
        made.runs = await stack.enter_async_context(runs.cell(folder, engine, runtime, image, watch, WARM))
    if SESSION_HTTP in parts and made.runs is not None:
        made.session = await _session(stack, made, made.runs, folder)


async def _node(
    stack: contextlib.AsyncExitStack,
    engine: EngineFacts,
    watch: Watch,
    image: str,
    runtime: str,
    folder: Path,
    env: Mapping[str, str],
) -> Jobs:
    node = NodeProcess(folder, runtime=runtime, env={"FUMEHOOD_DOCKER_SOCKET": str(engine.socket), **env})
    node.engine_socket = engine.socket
    watch.add(node.node_id)
    await stack.enter_async_context(node)
    caller = await stack.enter_async_context(Caller(node.url, node.token))
    return Jobs(node, caller, image, watch)


async def _session(stack: contextlib.AsyncExitStack, made: Place, all_the_way: Runs, folder: Path) -> Take:
    """A worker at the server of the runs, and a session at it."""
    caller, server = all_the_way.caller, all_the_way.cell.servers[0]
    credentials = await caller.json("POST", "/v1/worker-credentials", {"worker_id": "field-http"})
    env = {
        "WORKER_PYTHON_EXEC_DOCKER_IMAGE": made.image,
        "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": made.image,
        "FUMEHOOD_RUNTIME": made.runtime,
        "FUMEHOOD_DOCKER_SOCKET": str(made.engine.socket),
    }
    process = WorkerProcess(folder / "worker-http", credentials, server.grpc_target, env)
    made.watch.add(process.worker_id)
    stack.callback(process.remove)
    await asyncio.to_thread(process.start)
    wish = {"sandbox_id": SESSION, "lease_seconds": console.LEASE_SECONDS}
    sandbox = await caller.json("POST", "/v1/sandboxes", wish)
    path = f"/v1/sandboxes/{sandbox['sandbox_id']}/commands"
    body = json.dumps({"command": list(TRUE), "wait_ms": WAIT_MS}).encode()

    async def take() -> dict[str, float]:
        began = time.perf_counter()
        status, answer = await caller.ask("POST", path, body)
        seconds = time.perf_counter() - began
        found = json.loads(answer)
        if not 200 <= status < 300 or (found.get("status"), found.get("exit_code")) != ("exited", 0):
            raise BenchError(f"a command in a session was answered with {status} {found}")
        return {rows.SESSION_HTTP: seconds}

    return take
