"""Was it the OOM killer? The engine's own flag is not enough.

`State.OOMKilled` stays false after some OOM kills and is true when only a child of a healthy program died. So we ask
the kernel's counter of the container's cgroup while it exists, and otherwise the engine's `oom` event. Both go on
counting for as long as the container lives, which in a session is many commands: what counts is what came since a
command began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass

from fumehood.errors import EngineStatusError, EngineUnavailableError
from fumehood.sandbox.docker import cgroups
from fumehood.sandbox.docker.engine import Engine

REMEMBERED = 4096
EVENT_WAIT_SECONDS = 0.5
RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """How often the OOM killer had struck in a container when something began there."""

    counted: int | None
    """By the kernel; None where that cannot be read."""
    told: int
    """By the engine."""


UNTOUCHED = Mark(0, 0)


class OomWatch:
    """Remembers how often the engine reported a container as out of memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: OrderedDict[str, int] = OrderedDict()
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

    def mark(self, container: str) -> Mark:
        return Mark(cgroups.oom_kills(container), self._seen.get(container, 0))

    async def killed(self, container: str, since: Mark | None) -> bool:
        """Did the OOM killer strike in this container since then? Where that is not known, nobody says so."""
        if since is None:
            return False
        counted = cgroups.oom_kills(container)
        if counted is not None and since.counted is not None:
            return counted > since.counted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENT_WAIT_SECONDS):
                while self._seen.get(container, 0) <= since.told:
                    self._news.clear()
                    await self._news.wait()
        return self._seen.get(container, 0) > since.told

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(EngineUnavailableError, EngineStatusError):
                async for event in self._engine.events({"type": ["container"], "event": ["oom"]}):
                    self._remember(str(event.get("id") or event.get("Actor", {}).get("ID")))
            await asyncio.sleep(RETRY_SECONDS)

    def _remember(self, container: str) -> None:
        self._seen[container] = self._seen.pop(container, 0) + 1
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        self._news.set()
