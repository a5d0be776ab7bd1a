"""`POST /runs` to its end: through a server, the queue and a node, as a caller sees it who follows the run's events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from bench.field.engine import EngineFacts, Watch
from bench.field.node import Jobs
from bench.field.rows import TRUE
from bench.sessions_http import Caller
from bench.world import BenchError
from fumehood.wire.runner_api import EVENTS_PATH, RUN_PATH, RUNS_PATH
from tests.runs_process import Cell

RESOURCES = {"cpu_millis": 1000, "memory_mb": 512, "timeout_seconds": 300}
END = b"event: end"
SECONDS = 120


class Runs:
    """Of one server and one node."""

    def __init__(self, cell: Cell, caller: Caller, events: aiohttp.ClientSession, image: str, watch: Watch) -> None:
        self.cell = cell
        self.caller = caller
        self._events = events
        self._image = image
        self.jobs = Jobs(cell.nodes[0], caller, image, watch)

    async def run(self) -> float:
        asked = {
            "image_ref": self._image,
            "command": list(TRUE),
            "resources": RESOURCES,
            "network_policy_profile": "deny-all",
        }
        body = json.dumps(asked).encode()
        began = time.perf_counter()
        status, answer = await self.caller.ask("POST", RUNS_PATH, body)
        if status != 201:
            raise BenchError(f"POST /runs: {status} {answer!r}")
        run_id = str(json.loads(answer)["run_id"])
        await self._end(run_id)
        seconds = time.perf_counter() - began
        found = await self.caller.json("GET", RUN_PATH.format(run_id=run_id))
        if found["status"] != "succeeded":
            raise BenchError(f"a run ended otherwise: {found}")
        return seconds

    async def _end(self, run_id: str) -> None:
        async with self._events.get(EVENTS_PATH.format(run_id=run_id)) as answer:
            async for line in answer.content:
                if line.startswith(END):
                    return
        raise BenchError(f"the events of the run {run_id} stop before its end")


@contextlib.asynccontextmanager
async def cell(
    folder: Path, engine: EngineFacts, runtime: str, image: str, watch: Watch, env: Mapping[str, str]
) -> AsyncIterator[Runs]:
    """A nats-server, a server and a node, each in a process of its own."""
    environment = {"FUMEHOOD_DOCKER_SOCKET": str(engine.socket), **env}
    async with contextlib.AsyncExitStack() as stack:
        made = Cell(folder / "cell", runtime=runtime, env=environment)
        await asyncio.to_thread(made.__enter__)
        stack.push(made)
        (server,), (node,) = made.servers, made.nodes
        watch.add(node.node_id)
        caller = await stack.enter_async_context(Caller(server.url, server.token))
        events = await stack.enter_async_context(
            aiohttp.ClientSession(
                base_url=server.url,
                headers={"authorization": f"Bearer {server.token}"},
                timeout=aiohttp.ClientTimeout(total=SECONDS),
            )
        )
        runs = Runs(made, caller, events, image, watch)
        runs.jobs = Jobs(node, await stack.enter_async_context(Caller(node.url, node.token)), image, watch)
        yield runs
