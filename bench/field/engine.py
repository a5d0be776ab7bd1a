"""The engine that is measured: what it is, and when it is at rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.bare import URL
from bench.world import BenchError
from fumehood.node.work import LABEL_JOB
from fumehood.sandbox.docker.plan import LABEL_NODE

REST_SECONDS = 0.15
"""Without a word of a container of ours: nobody makes or removes one."""
WAIT_SECONDS = 60.0
STALE_SECONDS = 20.0
GOES_ON = ("create", "die")
COMES_TO_REST = {"start": "create", "destroy": "die"}


@dataclass(frozen=True, slots=True)
class Runtime:
    """As the engine knows it."""

    name: str
    path: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    socket: Path
    version: str
    runtimes: Mapping[str, Runtime]

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that uses it, ours or docker's own client."""
        return {"FUMEHOOD_DOCKER_SOCKET": str(self.socket), "DOCKER_HOST": f"unix://{self.socket}"}


async def look(socket: Path) -> EngineFacts:
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as client,
            client.get(f"{URL}/info") as answer,
        ):
            found = await answer.json()
    except (OSError, aiohttp.ClientError) as error:
        raise BenchError(f"no engine at {socket}: {error}") from None
    runtimes = {
        name: Runtime(name, str(about.get("path") or name), tuple(about.get("runtimeArgs") or ()))
        for name, about in (found.get("Runtimes") or {}).items()
    }
    return EngineFacts(socket, str(found["ServerVersion"]), runtimes)


class Watch:
    """Containers of nodes, from the engine's events: passive, so that watching costs it nothing."""

    def __init__(self) -> None:
        self._last = 0.0
        self._unrest: dict[tuple[str, str], float] = {}
        self._running: dict[str, dict[str, Mapping[str, str]]] = {}
        self._gone: dict[str, float] = {}
        self._news = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, socket: Path) -> AsyncIterator[Watch]:
        watch = cls()
        params = {"filters": json.dumps({"type": ["container"], "label": [LABEL_NODE]})}
        connector, timeout = aiohttp.UnixConnector(str(socket)), aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
            client.get(f"{URL}/events", params=params) as events,
        ):
            task = asyncio.create_task(watch._read(events.content))
            try:
                yield watch
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def add(self, node_id: str) -> None:
        """One of ours: those of others on this engine are not looked at."""
        self._running.setdefault(node_id, {})

    def running(self, node_id: str, **labels: str) -> list[str]:
        """Containers of a node that run and bear these labels; a dot in a name is written as two underscores."""
        wanted = {name.replace("__", "."): value for name, value in labels.items()}
        return [one for one, has in self._running[node_id].items() if wanted.items() <= has.items()]

    async def rest(self, seconds: float = REST_SECONDS) -> None:
        """Until no container of ours is made or removed."""
        until = time.monotonic() + WAIT_SECONDS
        while self._is_restless(seconds):
            if time.monotonic() > until:
                raise BenchError("the engine does not come to rest")
            await asyncio.sleep(0.01)

    def _is_restless(self, seconds: float) -> bool:
        """What began long ago and was not finished costs nobody anything: a dead container that nobody has removed."""
        now = time.monotonic()
        return now - self._last < seconds or any(now - began < STALE_SECONDS for began in self._unrest.values())

    async def gone(self, job_id: str) -> float:
        """When the container that was made for a job was destroyed, by `time.perf_counter`."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while job_id not in self._gone:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise BenchError(f"the container of the job {job_id} is not removed") from None
        return self._gone.pop(job_id)

    async def _read(self, events: aiohttp.StreamReader) -> None:
        async for line in events:
            self._take(json.loads(line), time.perf_counter())

    def _take(self, event: Mapping[str, Any], now: float) -> None:
        node_id, action = event["Actor"]["Attributes"].get(LABEL_NODE), str(event["Action"])
        if node_id not in self._running:
            return
        container = str(event["Actor"]["ID"])
        self._last = time.monotonic()
        if action in GOES_ON:
            self._unrest[action, container] = self._last
        elif action in COMES_TO_REST:
            self._unrest.pop((COMES_TO_REST[action], container), None)
        if action == "start":
            self._running[node_id][container] = event["Actor"]["Attributes"]
        elif action == "die":
            self._running[node_id].pop(container, None)
        elif action == "destroy":
            self._unrest.pop(("create", container), None)
            if (job_id := event["Actor"]["Attributes"].get(LABEL_JOB)) is not None:
                self._gone[job_id] = now
                self._news.set()
