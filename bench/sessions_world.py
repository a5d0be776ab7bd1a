"""What the measurements of sessions stand on: a broker, two servers, and workers with and without containers.

All of it is real and in processes of its own, as an operator would start it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.child import Child
from bench.engine_world import folder
from bench.sessions_grpc import BareConsole
from bench.sessions_http import Caller
from bench.world import TICKS, BenchError, image
from fumehood.sandbox.sessions.labels import LABEL_SESSION
from tests.console_process import ConsoleCell, WorkerProcess, docker

MODULE = "bench.sessions_process"
SERVERS = 2
WORKER = {"FUMEHOOD_RUNTIME": "runc", "WORKER_TERMINAL_LEASE_DEFAULT_SEC": "1800"}


@dataclass(frozen=True, slots=True)
class Place:
    """Two servers, each with a caller."""

    path: Path
    cell: ConsoleCell
    callers: Sequence[Caller]

    async def hire(self, count: int) -> dict[str, str]:
        """New workers and their secrets."""
        made = {}
        for number in range(count):
            asked = {"worker_id": f"light-{number:03d}"}
            answer = await self.callers[0].json("POST", "/v1/worker-credentials", asked)
            made[asked["worker_id"]] = str(answer["worker_secret"])
        return made

    async def docker_workers(self, count: int) -> list[WorkerProcess]:
        """With containers, in turn at each server. They end with the place."""
        return [await asyncio.to_thread(self.cell.worker, number % SERVERS) for number in range(count)]

    async def container(self, sandbox_id: str) -> str:
        """The engine's name of it."""
        words = ("ps", "-q", "--no-trunc", "--filter", f"label={LABEL_SESSION}={sandbox_id}")
        found = (await asyncio.to_thread(docker, *words)).split()
        if len(found) != 1:
            raise BenchError(f"{len(found)} containers for the sandbox {sandbox_id}")
        return found[0]

    def cpu_seconds(self) -> dict[str, float]:
        return {f"server {number}": cpu_seconds(one.pid) for number, one in enumerate(self.cell.servers)}


@contextlib.asynccontextmanager
async def place() -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        path = await stack.enter_async_context(folder())
        cell = stack.enter_context(ConsoleCell(path / "cell", image("python"), servers=SERVERS, worker_env=WORKER))
        callers = [await stack.enter_async_context(Caller(one.url, one.token)) for one in cell.servers]
        yield Place(path, cell, callers)


@contextlib.asynccontextmanager
async def light_workers(
    place: Place, server: int, bare: BareConsole, hired: Mapping[str, str], processes: int
) -> AsyncIterator[list[Child]]:
    """Workers without containers, all of them at one server, and as many bare streams."""
    everybody = list(hired.items())
    common = {"target": place.cell.servers[server].grpc_target, "bare": bare.target, "folder": str(place.path)}
    shares = [{**common, "workers": dict(everybody[number::processes])} for number in range(processes)]
    async with contextlib.AsyncExitStack() as stack:
        children = await asyncio.gather(*(Child.start("echo", share, MODULE) for share in shares))
        for child in children:
            stack.push_async_callback(child.stop)
        await bare.connected(len(hired))
        yield children


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
