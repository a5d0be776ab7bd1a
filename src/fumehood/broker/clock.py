"""Time as a value that can be handed in.

The in-memory broker asks a clock instead of the machine, so that a simulation can let a month pass between two
lines. Times are seconds since the epoch.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol

Cancel = Callable[[], None]


class Clock(Protocol):
    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancel:
        """Call once at or after `when`; the result takes it back."""
        ...


class SystemClock:
    """The machine's clock, and the running event loop's timers."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancel:
        return asyncio.get_running_loop().call_later(max(0.0, when - self.now()), callback).cancel


class ManualClock:
    """Stands still until told. Callbacks run inside `advance`, by time, and by order of asking within one instant."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now
        self._order = itertools.count()
        self._due: list[tuple[float, int]] = []
        self._calls: dict[int, Callable[[], None]] = {}

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancel:
        number = next(self._order)
        self._calls[number] = callback
        heapq.heappush(self._due, (when, number))

        def cancel() -> None:
            self._calls.pop(number, None)

        return cancel

    def next_at(self) -> float | None:
        """When the next callback is due, if there is one: how far a simulation may jump."""
        while self._due and self._due[0][1] not in self._calls:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def advance(self, seconds: float) -> None:
        self.advance_to(self._now + seconds)

    def advance_to(self, when: float) -> None:
        """Let time pass, stopping at each callback on the way. Time never goes back."""
        while (due := self.next_at()) is not None and due <= when:
            _, number = heapq.heappop(self._due)
            self._now = max(self._now, due)
            self._calls.pop(number)()
        self._now = max(self._now, when)
