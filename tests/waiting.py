"""The one way to wait for something that nobody tells: look again and again, for as long as a noisy machine needs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds for anything that must happen: the machine is shared and noisy."""
LOOK = 0.02
"""Seconds between two looks."""


async def until(
    look: Callable[[], T | Awaitable[T]], what: object = "", seconds: float = PATIENCE, every: float = LOOK
) -> T:
    """What `look` finds, as soon as that is something; `what` says what was missing, and may be a function."""
    end = time.monotonic() + seconds
    while not (found := await _answer(look)):
        _still_before(end, look, what)
        await asyncio.sleep(every)  # gate: sleep it is the pause between two looks
    return found


def wait_until(look: Callable[[], T], what: object = "", seconds: float = PATIENCE, every: float = LOOK) -> T:
    """The same where there is no event loop."""
    end = time.monotonic() + seconds
    while not (found := look()):
        _still_before(end, look, what)
        time.sleep(every)  # gate: sleep it is the pause between two looks
    return found


async def _answer(look: Callable[[], T | Awaitable[T]]) -> T:
    found = look()
    return await cast(Awaitable[T], found) if inspect.isawaitable(found) else found


def _still_before(end: float, look: Callable[[], object], what: object) -> None:
    if time.monotonic() > end:
        said = what() if callable(what) else what
        raise AssertionError(f"it did not happen in time: {said or inspect.getsource(look).strip()}")
