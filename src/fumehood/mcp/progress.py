"""How far a call is, told to whoever asked: often enough to see that it lives, and never so that a slow reader holds it
up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Report = Callable[[float, str], Awaitable[None]]

PAUSE_SECONDS = 0.5
"""Between two words."""
SILENCE_SECONDS = 10.0
"""After which something is said even if nothing happened: many programs give up on a call that says nothing."""
DEAF_SECONDS = 5.0
"""For one word to be taken. Whoever does not is told nothing more."""


class Progress:
    """`report` is None where nobody wants to know."""

    def __init__(self, report: Report | None = None, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._report = report
        self._pause = pause_seconds
        self._began = time.monotonic()
        self._told_at = float("-inf")
        self._amount = 0.0
        self._waiting: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    async def tell(self, amount: float, message: str) -> None:
        """How much there is by now. The protocol wants each amount to be more than the one before."""
        if time.monotonic() < self._told_at + self._pause:
            self._waiting = (amount, message)
        else:
            await self._say(amount, message)

    @asynccontextmanager
    async def ticking(self, message: Callable[[], str], *, seconds: float = SILENCE_SECONDS) -> AsyncIterator[None]:
        """While the block runs, what came too soon is said when it is time for it, and if nothing comes at all,
        `message`."""
        if self._report is None:
            yield
            return
        task = asyncio.ensure_future(self._tick(message, seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _tick(self, message: Callable[[], str], seconds: float) -> None:
        began = time.monotonic()
        while self._report is not None:
            await asyncio.sleep(min(self._pause, seconds))
            now = time.monotonic()
            if self._waiting is not None and now >= self._told_at + self._pause:
                await self._say(*self._waiting)
            elif now >= max(self._told_at, began) + seconds:
                await self._say(self._amount, f"{message()}, {now - self._began:.0f} s")

    async def _say(self, amount: float, message: str) -> None:
        async with self._lock:
            if self._report is None:
                return
            self._amount = amount if amount > self._amount else self._amount + 0.001
            self._told_at = time.monotonic()
            self._waiting = None
            try:
                async with asyncio.timeout(DEAF_SECONDS):
                    await self._report(self._amount, message)
            except TimeoutError:
                self._report = None
