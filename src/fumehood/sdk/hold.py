"""A worker's hold on one task: the lease kept alive, its loss noticed, the answer given under it.

Reads of the lease may come from a replica that lags behind, so none of them alone says that a lease is lost: that is
said by a compare-and-set that failed. The same one comes before every answer, so that a worker whose task went to
somebody else publishes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.broker.connection import Backoff
from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.errors import BrokerError, BrokerFullError, BrokerUnavailableError, LeaseLostError, NotFoundError

_log = logging.getLogger("fumehood.worker")

LONGEST_EXTEND = 30.0
"""Seconds between two extensions, however long the lease: well within the queue's own patience of 5 minutes."""
LONGEST_LOOK = 5.0
"""Seconds until a running handler hears that its run was cancelled."""
_LONGEST_RETRY = 5.0


class Hold:
    def __init__(self, handouts: Handouts, lease: Lease, *, on_lost: Callable[[], None]) -> None:
        self._handouts = handouts
        self._lease = lease
        self._on_lost = on_lost
        self._writing = asyncio.Lock()
        """One write at a time: the lease's revision is the last one's."""
        self.lost = False
        self.hurry = False
        """Nobody waits for the answer any more: it is tried once, not for ever."""

    # --- keeping -------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Until the lease is lost, or this is cancelled."""
        extend = min(LONGEST_EXTEND, self._lease.seconds / 3)
        look = min(LONGEST_LOOK, extend)
        due = time.monotonic() + extend
        while not self.lost:
            await asyncio.sleep(look)
            try:
                if time.monotonic() + look / 2 >= due or not await self._seems_ours():
                    await self.extend()
                    due = time.monotonic() + extend
            except LeaseLostError:
                return
            except BrokerError as error:
                # Nobody else can take the task while the broker is away; if only we are cut off, we learn it later.
                _log.debug("lease_not_seen", extra={"task_id": self._lease.task_id, "code": error.code})

    async def _seems_ours(self) -> bool:
        try:
            found = await self._handouts.find(self._lease.task_id, self._lease.lease_id)
        except (LeaseLostError, NotFoundError):
            return False
        return found.held

    async def extend(self) -> None:
        """More time; `LeaseLostError` if there is none to have."""
        await self._change(self._handouts.heartbeat)

    async def save(self, data: Any) -> None:
        await self._change(lambda lease: self._handouts.checkpoint(lease, data))

    async def signal(self, name: str, data: Any) -> None:
        await self.extend()
        await self._handouts.signal(self._lease, name, data)

    async def _change(self, how: Callable[[Lease], Awaitable[Lease]]) -> None:
        async with self._writing:
            if self.lost:
                raise LeaseLostError("the task is not this worker's any more")
            try:
                self._lease = await how(self._lease)
            except LeaseLostError:
                self.lost = True
                self._on_lost()
                raise

    # --- ending --------------------------------------------------------------------------------------------

    async def answer(self, send: Callable[[Lease], Awaitable[None]]) -> bool:
        """Give the answer, through any outage; False if the lease is lost, and then nothing was said.

        After an outage "lost" may also mean that an earlier try was heard: either way there is nothing left to say.
        """
        backoff = Backoff(first=0.1, longest=_LONGEST_RETRY)
        while True:
            try:
                await self.extend()
                async with self._writing:
                    await send(self._lease)
                return True
            except LeaseLostError:
                return False
            except (BrokerUnavailableError, BrokerFullError) as error:
                _log.warning("answer_not_heard", extra={"task_id": self._lease.task_id, "code": error.code})
            if self.hurry:
                return False
            await asyncio.sleep(backoff.step())

    async def release(self) -> None:
        """Somebody else may have the task at once. Where that cannot be said, the lease ends by itself."""
        try:
            async with self._writing:
                lease = await self._handouts.find(self._lease.task_id, self._lease.lease_id)
                if lease.held:
                    await self._handouts.release(lease)
        except (BrokerError, LeaseLostError, NotFoundError) as error:
            _log.debug("release_not_heard", extra={"task_id": self._lease.task_id, "code": error.code})
