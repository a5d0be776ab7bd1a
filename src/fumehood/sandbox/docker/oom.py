"""Was it the OOM killer? The engine's own flag is not enough.

`State.OOMKilled` stays false after some OOM kills and is true when only a child of a healthy program died. So we ask
the kernel's counter of the container's cgroup while it exists, and otherwise the engine's `oom` event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

from fumehood.errors import EngineStatusError, EngineUnavailableError
from fumehood.sandbox.docker import cgroups
from fumehood.sandbox.docker.engine import Engine

REMEMBERED = 4096
EVENT_WAIT_SECONDS = 0.5
RETRY_SECONDS = 0.5


class OomWatch:
    """Remembers which containers the engine reported as out of memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ensure_running(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(), name="docker-oom-events")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def killed(self, container: str) -> bool:
        """Did the OOM killer strike in this container?"""
        counted = cgroups.oom_kills(container)
        if counted is not None:
            return counted > 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENT_WAIT_SECONDS):
                while container not in self._seen:
                    self._news.clear()
                    await self._news.wait()
        return container in self._seen

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(EngineUnavailableError, EngineStatusError):
                async for event in self._engine.events({"type": ["container"], "event": ["oom"]}):
                    self._remember(str(event.get("id") or event.get("Actor", {}).get("ID")))
            await asyncio.sleep(RETRY_SECONDS)

    def _remember(self, container: str) -> None:
        self._seen[container] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self._news.set()
