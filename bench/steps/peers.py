"""The peers' sides: their servers, and their processes in an environment of their own (`bench/field/peers.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine_work import INPUT, OUTPUT, STEPS
from bench.engine_world import ROUND_SECONDS, folder
from bench.field import peers as field_peers
from bench.sessions_world import cpu_seconds
from bench.steps.plain_nats import plain_nats
from bench.steps.postgres import postgres
from bench.steps.rows import DBOS, TASKIQ, Mode
from bench.world import BenchError

PROCESS = Path(__file__).with_name("peer_process.py")
PACKAGES = ("dbos", "sqlalchemy", "psycopg", "taskiq", "taskiq-nats", "nats-py")
READY_SECONDS = 120.0
DBOS_PROCESSES, TASKIQ_WORKERS = 2, 2
"""As many as gave each the most runs a second on two cores; README.md says what was tried."""
DBOS_CONNECTIONS = 16
"""Of each process, and as many threads for them."""
TASKIQ_BATCH, TASKIQ_WAIT = 1, None
"""Messages that a worker asks for at a time, and seconds that it waits for all of them: its own defaults."""
WORK: dict[str, Any] = {"steps": STEPS, "text": INPUT["text"], "result": OUTPUT}


def versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"
    words = (str(python), "-c", code, *PACKAGES)
    found = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    return {name if name != "nats-py" else "nats-py of taskiq": one for name, one in zip(PACKAGES, found, strict=True)}


def shares(total: int, among: int) -> list[int]:
    """As even as whole numbers allow."""
    return [total // among + (number < total % among) for number in range(among)]


class PeerProcess(field_peers.Peer):
    """One process of a peer."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self, document: dict[str, Any]) -> None:
        await self._ask(document, READY_SECONDS)

    async def runs(self, runs: int, at_once: int) -> list[float]:
        found: list[float] = (await self._ask({"runs": runs, "at_once": at_once}, ROUND_SECONDS))["times"]
        if len(found) != runs:
            raise BenchError(f"{self.name}: {len(found)} of {runs} runs ended")
        return found


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    drivers: Sequence[PeerProcess]
    """Who is asked for runs: each for its share of them."""
    cpu: Callable[[], dict[str, float]]

    async def many(self, runs: int, at_once: int) -> float:
        among = len(self.drivers)
        asked = zip(self.drivers, shares(runs, among), shares(at_once, among), strict=True)
        began = time.perf_counter()
        await asyncio.gather(*(driver.runs(*share) for driver, *share in asked))
        return time.perf_counter() - began

    async def alone(self, runs: int) -> list[float]:
        return await self.drivers[0].runs(runs, 1)

    def cpu_seconds(self) -> dict[str, float]:
        return self.cpu()


@contextlib.asynccontextmanager
async def dbos(python: Path, mode: Mode, processes: int = DBOS_PROCESSES) -> AsyncIterator[Peer]:
    async with contextlib.AsyncExitStack() as stack:
        path = await stack.enter_async_context(folder())
        server = await stack.enter_async_context(postgres(mode.synchronous_commit))
        told = {**WORK, "url": server.url("bench"), "connections": DBOS_CONNECTIONS}
        made = [
            await stack.enter_async_context(_process(DBOS, python, path, {**told, "executor": f"e{number}"}))
            for number in range(processes)
        ]

        def cpu() -> dict[str, float]:
            return {"processes": sum(cpu_seconds(one.pid) for one in made), "postgres": server.cpu_seconds()}

        yield Peer(DBOS, made, cpu)


@contextlib.asynccontextmanager
async def taskiq(python: Path, mode: Mode, at_once: int, workers: int = TASKIQ_WORKERS) -> AsyncIterator[Peer]:
    async with contextlib.AsyncExitStack() as stack:
        path = await stack.enter_async_context(folder())
        server = await stack.enter_async_context(plain_nats(sync_always=mode.sync_always))
        told = {**WORK, "url": server.url, "batch": TASKIQ_BATCH, "wait": TASKIQ_WAIT, "at_once": at_once}
        hired = [
            await stack.enter_async_context(_process(f"{TASKIQ}-worker", python, path, told)) for _ in range(workers)
        ]
        driver = await stack.enter_async_context(_process(TASKIQ, python, path, told))

        def cpu() -> dict[str, float]:
            worked = sum(cpu_seconds(one.pid) for one in hired)
            return {"workers": worked, "nats-server": cpu_seconds(server.pid), "driver": cpu_seconds(driver.pid)}

        yield Peer(TASKIQ, [driver], cpu)


@contextlib.asynccontextmanager
async def _process(role: str, python: Path, path: Path, document: dict[str, Any]) -> AsyncIterator[PeerProcess]:
    log = path / f"{role}.log"
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(PROCESS), role),
            env=kept,
            cwd=path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            limit=16 * 1024 * 1024,
        )
    made = PeerProcess(role, process, log)
    try:
        await made.ready(document)
        yield made
    finally:
        await made.stop()
