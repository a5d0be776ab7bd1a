"""Keeps the queue's patience in step with the leases that this process handed out.

The queue hands a task out again when nobody acks it for a while; the lease says whether that is too early or too late.
Here the queue is told: more time while a lease runs, and "again, now" when it is over. Both are courtesies. Without
them a long lease costs a few needless deliveries, which the lease turns away, and the task of a dead worker comes
again after the queue's own five minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fumehood.broker.lease import Lease
from fumehood.broker.ports import TaskQueue
from fumehood.errors import FumehoodError

MOST = 10_000
"""Leases that one process looks after: a second's look over them takes some milliseconds."""
TICK_SECONDS = 0.5


@dataclass(slots=True)
class _Held:
    lease_id: str
    token: str
    expires_ms: int
    extend_ms: int


class Keeper:
    def __init__(
        self,
        tasks: TaskQueue,
        *,
        extend_seconds: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        most: int = MOST,
    ) -> None:
        self._tasks = tasks
        self._extend_ms = int(extend_seconds * 1000)
        self._now_ms = now_ms
        self._most = most
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._loop: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, lease: Lease) -> None:
        """Look after this lease, as it is now. Where there are too many, the oldest is left to itself."""
        self._held[lease.key] = _Held(lease.lease_id, lease.token, lease.expires_ms, self._now_ms() + self._extend_ms)
        self._held.move_to_end(lease.key)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())

    def forget(self, lease: Lease) -> None:
        """It was answered, or given back."""
        held = self._held.get(lease.key)
        if held is not None and held.lease_id == lease.lease_id:
            del self._held[lease.key]

    async def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
            await asyncio.wait({loop})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """Whatever is due now."""
        now = self._now_ms()
        for key, held in list(self._held.items()):
            if self._held.get(key) is not held:
                continue  # changed while the broker was spoken to
            with suppress(FumehoodError):
                if now >= held.expires_ms:
                    del self._held[key]
                    await self._tasks.give_back(held.token)
                elif now >= held.extend_ms:
                    held.extend_ms = now + self._extend_ms
                    await self._tasks.extend(held.token)
