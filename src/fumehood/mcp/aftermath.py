"""What must still be done when nobody waits for it any more: a command of a call that was cancelled is killed, and a
sandbox that nobody can reach is removed.

A cancelled call cannot wait for anything itself; here that is done for it, each within a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import structlog

from fumehood.errors import FumehoodError

DEADLINE_SECONDS = 20.0


class Aftermath:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def leave(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """`what` is its name in the log."""
        task = asyncio.ensure_future(_done(work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float = DEADLINE_SECONDS) -> None:
        """Returns when all of it is done, or its time is over."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()


async def _done(work: Coroutine[Any, Any, Any], what: str) -> None:
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await work
    except FumehoodError as error:
        structlog.get_logger().warning("mcp.left_behind", what=what, code=error.code)
