"""How many jobs run at once, and the short line of those that wait.

First come, first served: a slot that becomes free is handed to the first in line and is never up for grabs, so
that a newcomer cannot overtake. The line is bounded in length and in time, because a caller that is refused at
once can go to another node, and one that waits for ever cannot.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fumehood.errors import DrainingError, OverloadedError

_LONGEST_RETRY_SECONDS = 60


class Reservation:
    """One slot, held until `release`, which may be called twice."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            give_back()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Slots:
    """A fixed number of slots with a line before them. Belongs to one event loop."""

    def __init__(self, slots: int, queue: int, *, queue_wait_seconds: float) -> None:
        self._slots = slots
        self._queue = queue
        self._queue_wait_seconds = queue_wait_seconds
        self._taken = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._free = asyncio.Event()
        self._free.set()
        self._typical_seconds = 1.0

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Take nobody new. Who holds a slot or stands in line goes on."""
        self._draining = True

    async def idle(self) -> None:
        """Return when nobody holds a slot or waits for one."""
        await self._idle.wait()

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[Reservation]:
        """Hold a slot for as long as the block runs."""
        with await self.reserve() as reservation:
            yield reservation

    async def reserve(self) -> Reservation:
        """Take a slot, waiting in line if there is room. `OverloadedError` or `DrainingError` if not."""
        if self._draining:
            raise DrainingError("the node is shutting down", retry_after_seconds=self._retry_after())
        if self._taken < self._slots:
            self._taken += 1
            self._idle.clear()
            return self._reservation()
        if len(self._line) >= self._queue:
            raise self._overloaded("all slots and the queue are taken")
        await self._stand_in_line()
        return self._reservation()

    async def room(self) -> int:
        """How many slots are free, once there is one. They are not held: whoever comes first has them. Never returns
        again once the node drains."""
        while True:
            if self._draining:
                await asyncio.Event().wait()
            if self._taken < self._slots:
                return self._slots - self._taken
            self._free.clear()
            await self._free.wait()

    def force(self) -> Reservation:
        """Take a slot even beyond the number: for what runs already, or was taken on for a slot that was free."""
        self._taken += 1
        self._idle.clear()
        return self._reservation()

    async def _stand_in_line(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await asyncio.wait({turn}, timeout=self._queue_wait_seconds)
        except asyncio.CancelledError:
            self._leave_line(turn)
            raise
        if not turn.done():
            self._leave_line(turn)
            raise self._overloaded("no slot became free in time")

    def _leave_line(self, turn: asyncio.Future[None]) -> None:
        """Whoever was called in the very moment of leaving must pass the slot on."""
        if turn.done():
            self._give_back()
        else:
            self._line.remove(turn)
            self._look_whether_idle()

    def _reservation(self) -> Reservation:
        began = time.monotonic()

        def give_back() -> None:
            self._typical_seconds += 0.2 * (time.monotonic() - began - self._typical_seconds)
            self._give_back()

        return Reservation(give_back)

    def _give_back(self) -> None:
        """Hand the slot to the first in line, without freeing it in between."""
        if self._line and self._taken <= self._slots:
            self._line.popleft().set_result(None)
            return
        self._taken -= 1
        self._free.set()
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if self._taken == 0 and not self._line:
            self._idle.set()

    def _overloaded(self, detail: str) -> OverloadedError:
        return OverloadedError(detail, retry_after_seconds=self._retry_after())

    def _retry_after(self) -> int:
        """About when the line will have moved up, judged by how long recent jobs took."""
        seconds = self._typical_seconds * (len(self._line) + 1) / self._slots
        return max(1, min(math.ceil(seconds), _LONGEST_RETRY_SECONDS))
