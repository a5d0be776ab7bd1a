"""What a node leaves behind of a run while it has it: a lease, which says when it began, and the run's output."""

from __future__ import annotations

from fumehood.broker import lease as leases
from fumehood.broker.lease import REVOKED, Lease
from fumehood.broker.ports import Broker, Bucket, LogKind, LogName
from fumehood.control.runner_view import Traces
from fumehood.errors import BrokerError
from fumehood.wire.logs import LogEnd, LogStart
from fumehood.wire.sandbox import RUN_STEP
from fumehood.wire.times import moment


class NodeTraces:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases = broker.bucket(Bucket.NODE_LEASES)

    async def of(self, run_id: str) -> Traces:
        """Of the attempt that somebody has now; of none where nobody has one."""
        entry = await self._leases.get(leases.key(run_id, RUN_STEP))
        lease = Lease.decode(entry) if entry is not None else None
        if lease is None or _is_over(lease):
            return Traces()
        if lease.begun_ms:
            return Traces(lease.attempt, begun=True, started_at=moment(lease.begun_ms))
        return await self.left_by(run_id, lease.attempt)

    async def left_by(self, run_id: str, attempt: int) -> Traces:
        """By an attempt, whoever had it. Its first record may be gone by now, or out of reach: what is written there is
        a hint, and no answer waits for it."""
        if not attempt:
            return Traces()
        name = LogName(run_id, RUN_STEP, attempt)
        try:
            found = await self._broker.logs.read(name, limit=1)
        except BrokerError:
            found = []
        if not found:
            return Traces(attempt)
        record = found[0].record
        start = LogStart.decode(record.data) if record.kind is LogKind.START else None
        end = await self._end(name)
        return Traces(
            attempt,
            begun=True,
            started_at=start.started_at if start is not None else None,
            over=end is not None,
            ended_at=end.ended_at if end is not None else None,
        )

    async def _end(self, name: LogName) -> LogEnd | None:
        """The last that its node says, once nothing of it runs any more."""
        try:
            last = await self._broker.logs.last(name)
        except BrokerError:
            return None
        return LogEnd.decode(last.record.data) if last is not None and last.record.kind is LogKind.END else None

    async def newest(self, run_id: str) -> Traces:
        """Of the last attempt that printed, or could have."""
        try:
            attempt = await self._broker.logs.attempt(run_id, RUN_STEP)
        except BrokerError:
            attempt = None
        return await self.left_by(run_id, attempt or 0)


def _is_over(lease: Lease) -> bool:
    """Whether it was given back untouched, or taken away. One that was answered, or whose holder fell silent, says the
    last that is known until the run has heard of it."""
    return lease.expires_ms == 0 if lease.held else lease.outcome == REVOKED
