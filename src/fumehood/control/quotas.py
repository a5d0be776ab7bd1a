"""How many runs of a tenant may be in flight.

Runs are counted by this server's index, and by the starts of this server that no decider has looked at yet. Indexes lag
by moments: what is started within them, by all servers together, may go beyond the number. Runs that are called by
other runs count, and are never refused; nor is a run that is taken up again.

While the index is being built there is nothing to count by, and a tenant that has a quota is asked to come again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fumehood.broker.ports import Broker, Bucket
from fumehood.errors import QuotaExceededError

FORGOTTEN_SECONDS = 60.0
"""After which a start counts no more that nobody has looked at: it may never have been stored."""
MOST_QUEUED = 200
"""Starts of one tenant that nobody has looked at; where it has a quota, more are refused, and each is a question."""
RETRY_SECONDS = 2
"""When to come again: nobody knows when a run ends."""


class Quotas:
    def __init__(
        self,
        broker: Broker,
        *,
        quota: Callable[[str], Awaitable[int | None]],
        running: Callable[[str], Awaitable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = broker.bucket(Bucket.SUMMARIES)
        self._quota = quota
        self._running = running
        self._clock = clock
        self._queued: dict[str, dict[str, float]] = {}
        """By tenant and run: when it was admitted."""

    async def admit(self, tenant: str, run_id: str) -> None:
        """`QuotaExceededError` if there are too many already; otherwise the run counts from now on."""
        if await self.check(tenant):
            self._queued.setdefault(tenant, {})[run_id] = self._clock()

    async def check(self, tenant: str) -> bool:
        """`QuotaExceededError` if there are too many already, and nothing is counted: before something is done for a
        run that costs more than this question. Whether the tenant has a quota."""
        most = await self._quota(tenant)
        if most is None:
            return False
        running = await self._running(tenant)
        if self._is_full(tenant, running, most):
            await self._look(tenant)
            running = await self._running(tenant)
        if self._is_full(tenant, running, most):
            raise QuotaExceededError(
                f"this tenant may have {most} runs in flight, and has them", retry_after_seconds=RETRY_SECONDS
            )
        return True

    def release(self, tenant: str, run_id: str) -> None:
        """It will not be started after all."""
        self._queued.get(tenant, {}).pop(run_id, None)

    def _is_full(self, tenant: str, running: int, most: int) -> bool:
        queued = len(self._queued.get(tenant, ()))
        return running + queued >= most or queued >= MOST_QUEUED

    async def _look(self, tenant: str) -> None:
        """Forget starts that a decider has taken: they have a line, which the index counts."""
        waiting = list(self._queued.get(tenant, {}))
        lines = await asyncio.gather(*(self._lines.get(run_id) for run_id in waiting))
        taken = {run_id for run_id, line in zip(waiting, lines, strict=True) if line is not None}
        until = self._clock() - FORGOTTEN_SECONDS
        left = {run_id: at for run_id, at in self._queued.pop(tenant, {}).items() if run_id not in taken and at > until}
        if left:
            self._queued[tenant] = left
