"""The one way to wait for something that sends no notification: look again until it is there."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds for anything that must happen: the machine is shared and noisy."""
LOOK = 0.02
"""Seconds between two looks."""


@overload
async def until(
    look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE, *, what: object = "", every: float = LOOK
) -> T: ...


@overload
async def until(
    look: Callable[[], T | None], seconds: float = PATIENCE, *, what: object = "", every: float = LOOK
) -> T: ...


async def until(look: Callable[[], Any], seconds: float = PATIENCE, *, what: object = "", every: float = LOOK) -> Any:
    """What `look` finds, as soon as that is something; `what` says what was missing, and may be a function."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        _still_before(end, look, what)
        await asyncio.sleep(every)  # gate: sleep it is the pause between two looks


def wait_until(look: Callable[[], T | None], seconds: float = PATIENCE, *, what: object = "", every: float = LOOK) -> T:
    """The same where there is no event loop."""
    end = time.monotonic() + seconds
    while not (found := look()):
        _still_before(end, look, what)
        time.sleep(every)  # gate: sleep it is the pause between two looks
    return found


async def past(seconds: float) -> None:
    """So much time passes, or more: for what a bound brings about, and for what it must not. Never for something that
    must have happened by then: that is for `until`."""
    await asyncio.sleep(seconds)  # gate: sleep more of it is as good


def wait_past(seconds: float) -> None:
    """The same where there is no event loop."""
    time.sleep(seconds)  # gate: sleep more of it is as good


async def turns(count: int = 50) -> None:
    """All other tasks of this event loop get so many turns: for what goes on without a pause, or must not."""
    for _ in range(count):
        await asyncio.sleep(0)


def _still_before(end: float, look: Callable[[], object], what: object) -> None:
    if time.monotonic() > end:
        said = what() if callable(what) else what
        raise AssertionError(f"it did not happen in time: {said or inspect.getsource(look).strip()}")
