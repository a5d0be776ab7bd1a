"""Events of runs as they happen, of one run or of all that a caller may see.

A reader holds his position and nothing else. What he has not taken yet lies in the journal, and is read when he is
ready for it: a slow one costs nobody anything but himself, and one who was cut off goes on at any server by the id of
the last event he saw, without a gap and without seeing one twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from fumehood.broker.ports import Broker
from fumehood.control.callers import Caller
from fumehood.control.event_facts import KnownRuns
from fumehood.control.event_pulse import Pulse
from fumehood.control.event_streams import (
    EventOptions,
    IsStillAllowed,
    RunStream,
    Selection,
    Shared,
    Stream,
    WideStream,
)
from fumehood.control.log_streams import OutputStream
from fumehood.control.runs import Runs
from fumehood.errors import DrainingError, OverloadedError
from fumehood.wire.event_api import Position
from fumehood.wire.log_api import LogPosition
from fumehood.wire.sandbox import RUN_STEP

TENANTS_PART = 4
"""A tenant may have one in so many of a server's streams: three that take all they may leave room for others."""
RETRY_SECONDS = 5
"""For callers that find too many others: streams come and go with the people who look at them."""


async def always_allowed() -> bool:
    return True


class Events:
    """The streams of one server."""

    def __init__(self, broker: Broker, runs: Runs, options: EventOptions | None = None) -> None:
        pulses = [Pulse(broker.journal, partition) for partition in range(broker.partitions)]
        self._shared = Shared(broker, runs, options or EventOptions(), KnownRuns(broker), pulses)

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._shared.streams)

    @property
    def partitions(self) -> int:
        return len(self._shared.pulses)

    @property
    def is_beating(self) -> bool:
        """Whether anything is asked for in the background."""
        return any(pulse.is_beating for pulse in self._shared.pulses)

    def close(self) -> None:
        """Let everybody go: they may come back to another server."""
        self._shared.closing = True
        for stream in self._shared.streams:
            stream.follower.bell.set()

    async def of_run(
        self, run_id: str, caller: Caller, after: Position | None, is_still_allowed: IsStillAllowed = always_allowed
    ) -> Stream | None:
        """One run from its beginning, or behind a position. `NotFoundError` where the caller has no such run; None
        where it has ended and all of it was seen."""
        await self._shared.runs.check(run_id, caller)
        self._admit(RunStream, caller.tenant, self._shared.options.most_streams)
        stream = RunStream(self._shared, run_id, caller, after or Position(), is_still_allowed)
        return stream if await self._opened(stream) else None

    async def of_logs(
        self,
        run_id: str,
        caller: Caller,
        after: LogPosition | None,
        is_still_allowed: IsStillAllowed = always_allowed,
        *,
        step_id: str = RUN_STEP,
    ) -> Stream | None:
        """What a step of a run prints, from its beginning or behind a position. `NotFoundError` and None as above."""
        await self._shared.runs.check(run_id, caller)
        self._admit(OutputStream, caller.tenant, self._shared.options.most_streams)
        stream = OutputStream(self._shared, (run_id, step_id), caller, after or LogPosition(), is_still_allowed)
        return stream if await self._opened(stream) else None

    async def of_all(
        self,
        caller: Caller,
        selection: Selection,
        after: Sequence[Position] | None,
        is_still_allowed: IsStillAllowed = always_allowed,
    ) -> Stream:
        """All runs of the caller's tenant from now on, or behind a position in each partition."""
        self._admit(WideStream, caller.tenant, self._shared.options.most_wide)
        stream = WideStream(self._shared, caller.tenant, selection, after, is_still_allowed)
        await self._opened(stream)
        return stream

    def _admit(self, kind: type[Stream], tenant: str, most: int) -> None:
        if self._shared.closing:
            raise DrainingError("this server is shutting down", retry_after_seconds=1)
        tenants = [stream.tenant for stream in self._shared.streams if isinstance(stream, kind)]
        if len(tenants) >= most:
            raise OverloadedError("too many streams are open here", retry_after_seconds=RETRY_SECONDS)
        if tenants.count(tenant) >= max(1, most // TENANTS_PART):
            raise OverloadedError("this tenant has too many streams open here", retry_after_seconds=RETRY_SECONDS)

    async def _opened(self, stream: Stream) -> bool:
        """Whether there is anything to wait for. It is in the list before the first wait, so that the bound holds."""
        self._shared.streams.add(stream)
        try:
            if await stream.open():
                return True
        except BaseException:
            await stream.close()
            raise
        await stream.close()
        return False
