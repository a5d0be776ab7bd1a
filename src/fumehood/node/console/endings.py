"""Cleaning up behind a command that is being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fumehood.node.console.duty import is_abandoned

T = TypeVar("T")


async def in_any_case(work: Coroutine[Any, Any, T]) -> T:
    """Wait for its end, however often somebody loses patience: what is left behind half removed would run on. Only
    where the command is abandoned, which then is not told to have ended, the next process goes on with it."""
    working = asyncio.create_task(work)
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            if is_abandoned():
                working.add_done_callback(_take_note)
                working.cancel()
                raise
    return working.result()


def _take_note(done: asyncio.Task[Any]) -> None:
    """Nobody else looks at it."""
    if not done.cancelled():
        done.exception()
