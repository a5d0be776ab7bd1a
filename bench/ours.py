"""A caller of the node's Worker API, and somebody who sees when the engine has let go of a job's container."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.bare import NO_TIMEOUT, URL
from bench.world import SOCKET, BenchError, NodeProcess
from fumehood.node.work import LABEL_JOB
from fumehood.wire.worker_api import RUN_JOB_PATH

GONE_SECONDS = 30.0
_STAGE = re.compile(r'fumehood_node_stage_seconds_(sum|count)\{outcome="ok",stage="(\w+)"\} (\S+)')


@dataclass(frozen=True, slots=True)
class OurRun:
    """One job. Seconds since it was asked for."""

    output: str
    answered: float
    """The caller has the answer."""
    gone: float
    """The caller has the answer, and the engine has reported the removal."""


class Removals:
    """When each job's container was destroyed, from the engine's events: passive, so that watching costs it nothing."""

    def __init__(self) -> None:
        self._gone: dict[str, asyncio.Future[float]] = {}

    def expect(self, job_id: str) -> asyncio.Future[float]:
        return self._gone.setdefault(job_id, asyncio.get_running_loop().create_future())

    @classmethod
    @contextlib.asynccontextmanager
    async def watch(cls) -> AsyncIterator[Removals]:
        removals = cls()
        filters = json.dumps({"type": ["container"], "event": ["destroy"], "label": [LABEL_JOB]})
        connector = aiohttp.UnixConnector(str(SOCKET))
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
            client.get(f"{URL}/events", params={"filters": filters}) as events,
        ):
            task = asyncio.create_task(removals._read(events.content))
            try:
                yield removals
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _read(self, events: aiohttp.StreamReader) -> None:
        async for line in events:
            now = time.perf_counter()
            job_id = json.loads(line)["Actor"]["Attributes"][LABEL_JOB]
            gone = self._gone.pop(job_id, None)
            if gone is not None and not gone.done():
                gone.set_result(now)


class Ours:
    """Use with `async with`: connections to the node are kept alive."""

    def __init__(self, node: NodeProcess, image: str, removals: Removals) -> None:
        self._image = image
        self._removals = removals
        self._client = aiohttp.ClientSession(
            base_url=node.url,
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {node.token}"},
            timeout=NO_TIMEOUT,
        )

    async def __aenter__(self) -> Ours:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def run(self, command: tuple[str, ...]) -> OurRun:
        job_id = str(uuid.uuid4())
        body = {
            "version": 1,
            "task_id": str(uuid.uuid4()),
            "job_id": job_id,
            "sandbox": {"image": self._image, "command": list(command), "network_policy": "none"},
        }
        removed = self._removals.expect(job_id)
        began = time.perf_counter()
        answer = await self._post(body)
        answered = time.perf_counter()
        if answer.get("status") != "completed":
            raise BenchError(f"the job was answered with {answer}")
        async with asyncio.timeout(GONE_SECONDS):
            gone = await removed
        return OurRun(answer["stdout"], answered - began, max(answered, gone) - began)

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._client.post(RUN_JOB_PATH, json=body) as answer:
            document: dict[str, Any] = await answer.json(content_type=None)
            return document

    async def stages(self) -> dict[str, tuple[float, int]]:
        """Seconds and number of each stage so far."""
        async with self._client.get("/metrics") as answer:
            text = await answer.text()
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for kind, stage, value in _STAGE.findall(text):
            if kind == "sum":
                sums[stage] = float(value)
            else:
                counts[stage] = int(float(value))
        return {stage: (sums[stage], counts[stage]) for stage in sums}
