"""Says of a sandbox whose node fell silent that nobody knows how it ended.

A node renews the lease of a sandbox every few seconds for as long as it owns it, and a sandbox without an owner ends by
itself before its lease does. So once a lease has been silent for its whole length, nothing of that attempt runs any
more, and nobody will answer for it: it failed, as `node_lost`, and the step's `retry` decides what follows.

Silence is measured here, by this server's own clock, from when it saw the lease change last: whatever the clocks of
nodes say. Every server does this; the answer's id is the same from all of them.

The executions of jobs are answered for in the same way. There, what was lost may run on for a while: it harms nobody,
since what it says does not count any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvChange, KvEntry
from fumehood.control.proofs import Proofs
from fumehood.errors import BrokerError, FumehoodError
from fumehood.wire.sandbox import RunReason
from fumehood.wire.sealed import is_sealed

LOOK_SECONDS = 1.0
DEAF_SECONDS = 5.0
"""Without the broker, or without a look: beyond that, silence says nothing about others."""
PROBE = "look.look"
"""No run has such a lease."""
GRACE_SECONDS = 3.0
"""Beyond a lease's length: what a renewal may take to be seen here."""
NODE_LOST = {
    "code": RunReason.NODE_LOST.value,
    "message": "the node that ran it fell silent; nothing is known of how it ended",
    "retryable": True,
}
_log = structlog.get_logger()


@dataclass(slots=True)
class _Seen:
    lease: Lease
    at: float
    """When it was last seen to change."""


class LostNodes:
    def __init__(
        self,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases = broker.bucket(Bucket.NODE_LEASES)
        self._proofs = Proofs(broker)
        self._handouts = Handouts(broker, now_ms=now_ms)
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[str, _Seen] = {}
        self._heard = clock()
        self.found = 0
        """Leases that were answered for."""

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._watch())
                    group.create_task(self._look_forever())
            except* Exception:  # noqa: BLE001 - nobody else answers for those who cannot: it goes on
                _log.exception("lost_nodes.failed")
            await self._sleep(LOOK_SECONDS)

    async def _watch(self) -> None:
        while True:
            try:
                async for change in self._leases.watch():
                    self.take(change)
            except FumehoodError as error:
                _log.warning("lost_nodes.interrupted", code=error.code)
            await self._sleep(LOOK_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            await self._sleep(LOOK_SECONDS)
            await self.look()

    def take(self, change: KvChange) -> None:
        """One change of the bucket, whoever's lease it is. One that was given back has no time at all."""
        lease = None
        if change.kind is ChangeKind.PUT:
            lease = Lease.decode(KvEntry(change.key, change.value, change.revision))
        if lease is None or not is_sealed(lease.task_type) or not lease.held or not lease.expires_ms:
            self._seen.pop(change.key, None)
            return
        known = self._seen.get(change.key)
        if known is None or known.lease.revision != lease.revision:  # a watch that begins anew tells all again
            self._seen[change.key] = _Seen(lease, self._clock())

    async def look(self) -> None:
        """Answer for whoever has been silent for too long, as far as we could have heard."""
        if not await self._hears():
            return
        now = self._clock()
        for key, seen in list(self._seen.items()):
            if now - seen.at < seen.lease.seconds + GRACE_SECONDS:
                continue
            try:
                said = await self._handouts.give_up(self._proven(seen.lease), NODE_LOST)
            except FumehoodError as error:  # the next look comes
                _log.warning("lost_nodes.not_said", run_id=seen.lease.run_id, code=error.code)
                continue
            if self._seen.get(key) is seen:
                del self._seen[key]
            if said:
                self.found += 1
                _log.warning("lost_nodes.found", run_id=seen.lease.run_id, node=seen.lease.worker_id)

    def _proven(self, lease: Lease) -> Lease:
        """As its holder has it: what is stored of a lease bears no proof."""
        return replace(lease, proof=self._proofs.of(lease.run_id, lease.step_id, lease.age))

    async def _hears(self) -> bool:
        """Whether the broker has been there all the time since the last look. If not, nobody could renew anything, and
        everybody gets their whole time again."""
        since, reached = self._heard, False
        try:
            async with asyncio.timeout(DEAF_SECONDS):
                await self._leases.get(PROBE)
            reached = True
        except (BrokerError, TimeoutError):
            pass
        self._heard = self._clock()
        if reached and self._heard - since < DEAF_SECONDS:
            return True
        for seen in self._seen.values():
            seen.at = self._heard
        return False
