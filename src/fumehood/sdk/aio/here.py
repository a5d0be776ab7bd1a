"""What coroutines do otherwise than threads. The twin in `blocking` is written by hand; all else there is derived."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

Lock = asyncio.Lock


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def closing(pieces: AsyncGenerator[T, None]) -> AbstractAsyncContextManager[AsyncGenerator[T, None]]:
    """A generator that is put away when the block ends."""
    return aclosing(pieces)


async def called(function: Callable[[Any], Any] | None, given: Any) -> None:
    """A callback of the caller's, which may be a coroutine function."""
    if function is not None:
        said = function(given)
        if inspect.isawaitable(said):
            await said


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Does something else while the block runs, and stops it when the block ends. What goes wrong in it is its own
    affair: it tells whoever wants to know."""
    task = asyncio.ensure_future(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def in_thread(function: Callable[..., T], *given: Any) -> T:
    """Something that may wait for a disk."""
    return await asyncio.to_thread(function, *given)


def hang_up(answer: httpx.Response) -> None:
    """Closing the client wakes whoever reads."""


@asynccontextmanager
async def until(moment: float | None) -> AsyncIterator[None]:
    """The block is left at that moment of the monotonic clock, whatever it waits for, without a word about it."""
    if moment is None:
        yield
        return
    try:
        async with asyncio.timeout(max(0.0, moment - time.monotonic())):
            yield
    except TimeoutError:
        if time.monotonic() < moment:
            raise
