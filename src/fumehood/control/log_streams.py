"""What somebody reads who follows what a run prints: each attempt from where he stands, until the run has ended.

Bytes come from the stream that nodes write to, for as long as they are there, and from what was kept of them after the
end otherwise. Whichever it is, they are told by their places (`log_telling.py`), so that whoever comes back with the id
of the last event misses none and sees none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from fumehood.broker.ports import LogEntry, LogKind, LogName, LogPlace, LogRecord
from fumehood.control.callers import Caller
from fumehood.control.event_pulse import Follower, Pulse
from fumehood.control.event_streams import IsStillAllowed, Shared, Stream
from fumehood.control.log_telling import Telling, as_records
from fumehood.control.run_logs import PAGE_RECORDS, RunLogReader, unheard
from fumehood.engine.state import RunState, StepState
from fumehood.errors import BrokerUnavailableError, NotFoundError
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire import log_api
from fumehood.wire.event_api import Message
from fumehood.wire.log_api import LogPosition, LogsEnd
from fumehood.wire.logs import LogStart, LogStream
from fumehood.wire.sandbox import RunReason, SandboxReport

LINGER_SECONDS = 15.0
"""After the end of a run that was cut short, for what its sandbox prints while it is being stopped."""
SEEK_BYTES = 1024 * 1024
"""Told already, from which on the place to go on is looked for, instead of reading everything up to it."""
_LOST = frozenset({RunReason.NODE_LOST.value, "lease_expired"})
"""Failures of which nobody is left who could print anything."""
_STREAMS = (LogStream.STDOUT, LogStream.STDERR)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the engine says about the step."""

    seq: int = -1
    """The journal's last number when it was looked at."""
    attempt: int = 0
    ended: bool = False
    report: SandboxReport | None = None
    is_lost: bool = False
    """Whoever ran it is gone."""


class OutputStream(Stream):
    """One step of a run. Its attempts come one after the other, each begun by `start`; `end` comes last."""

    longest_rest = 1.0  # a notification may be lost, and an operator's stream may send none

    def __init__(
        self,
        shared: Shared,
        target: tuple[str, str],
        caller: Caller,
        position: LogPosition,
        is_still_allowed: IsStillAllowed,
    ) -> None:
        """`target`: the run, and which of its steps."""
        self._run_id, self._step_id = target
        super().__init__(shared, Follower(self._run_id), caller.tenant, is_still_allowed)
        self._caller = caller
        self._reader = RunLogReader(shared.broker, shared.runs)
        self._given = position
        self._telling = Telling(position, is_resumed=True) if position.attempt else Telling(LogPosition(1))
        self._seq = 0
        """The last record of this attempt that was read."""
        self._known = _Known()
        self._looked = -1
        """The last record of the partition when the journal was last read."""
        self._is_over = False
        """Whether everything was told."""
        self._linger_until: float | None = None
        self._following = AsyncExitStack()

    @property
    def _pulses(self) -> Collection[Pulse]:
        return (self._shared.pulses[self._shared.broker.partition_of(self._run_id)],)

    @property
    def _name(self) -> LogName:
        return LogName(self._run_id, self._step_id, self._telling.attempt)

    # --- coming and going ----------------------------------------------------------------------------------

    async def open(self) -> bool:
        for pulse in self._pulses:
            await pulse.join(self.follower)
        follow = self._shared.broker.logs.follow(self._run_id, self._step_id, self.follower.bell.set)
        await self._following.enter_async_context(follow)
        if not self._given.attempt:
            return True
        await self._look()
        if self._given.attempt > max(1, self._known.attempt):
            raise NotFoundError("this run has no output by that id: ids belong to one run")
        return not await self._has_seen_all()

    async def _has_seen_all(self) -> bool:
        """Whether the client comes back only because he was not told that it has ended."""
        if not self._known.ended or self._given.attempt < self._known.attempt:
            return False
        return LogPlace(self._given.stdout, self._given.stderr) == await self._totals()

    async def _totals(self) -> LogPlace | None:
        """How much both streams had in the end, where that is known."""
        streams = self._known.report.streams if self._known.report is not None else {}
        counts = [streams[name].total_bytes for name in _STREAMS if name in streams]
        if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
            return LogPlace(counts[0], counts[1])
        last = await self._shared.broker.logs.last(self._name)
        return last.record.at if last is not None and last.record.kind is LogKind.END else None

    async def close(self) -> None:
        await super().close()
        await self._following.aclose()

    # --- telling -------------------------------------------------------------------------------------------

    async def _news(self) -> AsyncGenerator[Message | None, None]:
        while not self._is_over:
            await self._look()  # before what it is about: of an attempt that is over, all is there to be read
            kept = await self._only_kept()
            if kept is None and not self._seq:
                self._seq = await self._sought()
            while kept is None and (page := await self._page(PAGE_RECORDS)):
                for entry in page:
                    self._seq = entry.seq
                    for message in self._telling.take(entry.record):
                        yield message
                yield None
            if self._known.attempt > self._telling.attempt:
                for message in self._closed(None):
                    yield message
                self._telling, self._seq = Telling(LogPosition(self._telling.attempt + 1)), 0
                continue
            if not self._known.ended or self._lingers():
                return
            for message in self._remainder(kept or await self._stored()):
                yield message
            self._is_over = True

    async def _look(self) -> None:
        """Reads the journal if the partition has a new record: otherwise the broker is not asked."""
        (pulse,) = self._pulses
        seen = pulse.seen
        if seen == self._looked:
            return
        await self._read_journal()
        self._looked = seen

    async def _read_journal(self) -> None:
        last = await self._shared.broker.journal.last(self._run_id)
        seq = last.seq if last is not None else 0
        if seq == self._known.seq:
            return
        found = await self._shared.runs.get(self._run_id, self._caller)
        if not isinstance(found, RunState):
            self._known = _Known(seq)
            return
        step = found.steps.get(self._step_id, StepState())
        ended = found.status.ended or step.status.ended
        is_lost = step.failure is not None and step.failure.code in _LOST
        self._known = _Known(seq, step.attempt, ended, await self._reader.report(step), is_lost)

    async def _page(self, limit: int) -> list[LogEntry]:
        return await self._shared.broker.logs.read(self._name, after=self._seq, limit=limit)

    async def _stored(self) -> KeptLogs | None:
        return None if self._telling.ended else await self._reader.stored(self._known.report)

    async def _only_kept(self) -> KeptLogs | None:
        """What was kept, where the stream has not all that comes next, or cannot be asked."""
        is_last = self._known.ended and self._known.attempt == self._telling.attempt
        if self._seq or not is_last or (kept := await self._stored()) is None:
            return None
        try:
            page = await self._page(1)
        except BrokerUnavailableError:
            return kept
        return None if page and self._goes_on_with(page[0].record) else kept

    async def _sought(self) -> int:
        """Behind which record to read on: by halves, since places grow with the numbers of records. What lies before
        was told, and would only be skipped."""
        position, logs = self._telling.position, self._shared.broker.logs
        if position.stdout + position.stderr < SEEK_BYTES:
            return 0
        last = await logs.last(self._name)
        before, beyond = 0, last.seq if last is not None else 0
        while beyond - before > 1:
            middle = (before + beyond) // 2
            page = await logs.read(self._name, after=middle, limit=1)
            if page and self._goes_on_with(page[0].record):
                before = max(middle, page[0].seq - 1)
            else:
                beyond = middle
        return before

    def _goes_on_with(self, record: LogRecord) -> bool:
        position = self._telling.position
        return record.at.stdout <= position.stdout and record.at.stderr <= position.stderr

    def _lingers(self) -> bool:
        """Whether more may come although the run has ended: of a sandbox that is being stopped, whose last words were
        not waited for."""
        if self._telling.ended or self._known.report is not None or self._known.is_lost or not self._seq:
            return False
        loop = asyncio.get_running_loop()
        if self._linger_until is None:
            self._linger_until = loop.time() + LINGER_SECONDS
            self._following.callback(loop.call_at(self._linger_until, self.follower.bell.set).cancel)
        return loop.time() < self._linger_until

    def _remainder(self, kept: KeptLogs | None) -> Iterator[Message]:
        """What the stream did not have."""
        report = self._known.report
        if kept is not None and report is not None:
            start = LogStart(started_at=report.started_at, node=report.node) if report.started_at is not None else None
            for record in as_records(kept, start):
                yield from self._telling.take(record)
        yield from self._closed(report)

    def _closed(self, report: SandboxReport | None) -> Iterator[Message]:
        """Nothing more comes of this attempt; where nobody heard its end, that is said."""
        yield from self._telling.close()
        position, is_open = self._telling.position, bool(self._seq) and not self._telling.ended
        yield from self._telling.unheard(unheard(report, LogPlace(position.stdout, position.stderr), ran=is_open))

    def _end(self) -> Message | None:
        if not self._is_over:
            return None
        position = self._telling.position
        end = LogsEnd(attempt=self._known.attempt, stdout=position.stdout, stderr=position.stderr)
        return log_api.message("end", end)

    def _sign(self) -> Message:
        return Message()
