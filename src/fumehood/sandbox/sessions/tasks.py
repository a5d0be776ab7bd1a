"""Work that goes on when whoever asked for it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from fumehood.errors import FumehoodError

CLOSE_SECONDS = 5.0
_log = structlog.get_logger()
T = TypeVar("T")


class Tasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_take_note)
        return task

    async def close(self, others: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel all of them, and others. What does not end in time is left: whoever stops must not be kept by it."""
        tasks = [*self._tasks, *others]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            if left:
                _log.error("sessions.left", tasks=[task.get_name() for task in left])


def _take_note(done: asyncio.Future[Any]) -> None:
    """Whoever waits sees what went wrong; nobody waiting is no error: what is left undone is the janitor's. What nobody
    expected is told in any case."""
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, FumehoodError | OSError):
        _log.error("sessions.broken", exc_info=error)
