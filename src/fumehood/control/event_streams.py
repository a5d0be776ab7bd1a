"""What somebody reads who follows one run, or all that he may see: from where he stands, when he is ready for it."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import structlog

from fumehood.broker.ports import Blobs, Broker
from fumehood.control.callers import Caller
from fumehood.control.event_facts import KnownRuns
from fumehood.control.event_pulse import Follower, Line, Pace, Pulse, Told, told
from fumehood.control.runs import Runs
from fumehood.engine.events import Record
from fumehood.engine.state import RunState
from fumehood.errors import FumehoodError, NotFoundError
from fumehood.wire import event_api
from fumehood.wire.event_api import Message, Position
from fumehood.wire.run_api import RunPhase

HISTORY_RECORDS = 100
"""Of a run's history that are read at once."""

ENDS = {
    "run.succeeded": RunPhase.SUCCEEDED,
    "run.failed": RunPhase.FAILED,
    "run.timed_out": RunPhase.TIMED_OUT,
    "run.cancelled": RunPhase.CANCELLED,
}
RETRIED = "run.retried"

IsStillAllowed = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Tests change them; a server does not."""

    heartbeat_seconds: float = 15.0
    """Between two signs of life, below what common proxies wait."""
    look_seconds: float = 1.0
    """Between two looks whether the caller's key still counts, which a server mostly knows by heart."""
    most_streams: int = 1024
    """Of one run each, of all tenants together. One that waits costs a read at every heartbeat, and one
    of output a read every second."""
    most_wide: int = 64
    """Of all runs, of all tenants together. Each is written everything that happens."""
    stream_seconds: float | None = None
    """After how long a stream ends by itself, for balancers that want connections to move on. None: never."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of all events somebody wants."""

    workflow: str | None = None
    types: Collection[str] = ()
    """Empty: all of them."""


@dataclass(eq=False, slots=True)
class Shared:
    """What all streams of one server have in common."""

    broker: Broker
    runs: Runs
    options: EventOptions
    known: KnownRuns
    pulses: list[Pulse]
    streams: set[Stream] = field(default_factory=set)
    closing: bool = False


class Stream(ABC):
    """What somebody reads. `close` it, whatever happens."""

    longest_rest: ClassVar[float] = math.inf
    """Seconds after which it looks for news although nothing has told it of any."""

    def __init__(self, shared: Shared, follower: Follower, tenant: str, is_still_allowed: IsStillAllowed) -> None:
        self._shared = shared
        self._is_still_allowed = is_still_allowed
        self._look_at = 0.0
        self.follower = follower
        self.tenant = tenant

    @property
    @abstractmethod
    def _pulses(self) -> Collection[Pulse]: ...

    @abstractmethod
    async def open(self) -> bool:
        """Everything that can fail before there is a stream. Whether there is anything to wait for."""

    @abstractmethod
    def _news(self) -> AsyncGenerator[Message | None, None]:
        """What can be read now; None where time has passed over what is for others."""

    @abstractmethod
    def _end(self) -> Message | None:
        """The last message, if everything was told."""

    @abstractmethod
    def _sign(self) -> Message:
        """Of life."""

    async def close(self) -> None:
        for pulse in self._pulses:
            pulse.leave(self.follower)
        self._shared.streams.discard(self)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """As they come, each when it is asked for. Ends with the run, the server or the caller's permission; and with
        the broker, since a client that comes back may find a server that reaches it."""
        try:
            async with aclosing(self._paced()) as paced:
                async for message in paced:
                    yield message
        except FumehoodError as error:
            structlog.get_logger().warning("events.ended", code=error.code, detail=error.detail)

    async def _paced(self) -> AsyncGenerator[Message, None]:
        loop, options = asyncio.get_running_loop(), self._shared.options
        due, until = loop.time() + options.heartbeat_seconds, loop.time() + (options.stream_seconds or math.inf)
        self._look_at = loop.time() + options.look_seconds
        pace = Pace()
        yield self._sign()
        while not self._shared.closing and loop.time() < until:
            self.follower.bell.clear()
            async with aclosing(self._news()) as news:
                async for message in news:
                    if message is not None:
                        yield message
                    if not await self._may_stay():
                        return
                    if loop.time() >= due or self._shared.closing:
                        break
                else:
                    if (end := self._end()) is not None:
                        yield end
                        return
                    if not await self._rest(min(due, until, loop.time() + self.longest_rest)):
                        return
            if loop.time() >= due:
                yield self._sign()
                due = loop.time() + options.heartbeat_seconds
            await pace.turn()  # not before the bell is cleared: `Events.close` rings it only once

    async def _may_stay(self) -> bool:
        """Whether the caller may still read, as far as one must know now."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._look_at:
            return True
        self._look_at = loop.time() + self._shared.options.look_seconds
        return await self._is_still_allowed()

    async def _rest(self, until: float) -> bool:
        """Until there is news or it is time; False where the caller may not wait for that any more."""
        loop, bell = asyncio.get_running_loop(), self.follower.bell
        while not bell.is_set() and loop.time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(until, self._look_at) - loop.time()):
                    await bell.wait()
            if not await self._may_stay():
                return False
        return True


class RunStream(Stream):
    """One run, by way of its history: also a run that is queued, or archived."""

    def __init__(
        self, shared: Shared, run_id: str, caller: Caller, position: Position, is_still_allowed: IsStillAllowed
    ) -> None:
        super().__init__(shared, Follower(run_id), caller.tenant, is_still_allowed)
        self._run_id = run_id
        self._caller = caller
        self._position = position
        self._status: RunPhase | None = None
        """How the run has ended, as far as it was told."""

    @property
    def _pulses(self) -> Collection[Pulse]:
        return (self._shared.pulses[self._shared.broker.partition_of(self._run_id)],)

    async def open(self) -> bool:
        for pulse in self._pulses:
            await pulse.join(self.follower)
        if self._position == Position():
            return True
        found = await self._shared.runs.get(self._run_id, self._caller)  # before the history, which may say more
        if isinstance(found, RunState) and found.status.ended:
            self._status = RunPhase(found.status.value)
            records, _ = await self._page()
            return any(self._unseen(*one) for one in records)
        last = await self._shared.broker.journal.last(self._run_id)
        if last is not None and self._position.before > last.seq:
            raise NotFoundError("this run has no event by that id: ids belong to one run")
        return True

    async def _page(self) -> tuple[list[tuple[int, Record]], bool]:
        found, following = await self._shared.runs.history(
            self._run_id, self._caller, after=self._position.before, limit=HISTORY_RECORDS
        )
        return list(found), following is not None

    def _unseen(self, seq: int, record: Record) -> bool:
        return any(not self._position.has_seen(seq, index) for index in range(len(record.events)))

    async def _news(self) -> AsyncGenerator[Message | None, None]:
        more = True
        while more:
            records, more = await self._page()
            for seq, record in records:
                for message in self._messages_of(seq, record):
                    yield message

    def _messages_of(self, seq: int, record: Record) -> Iterator[Message]:
        for index, event in enumerate(told(self._run_id, seq, record)):
            if self._position.has_seen(seq, index):
                continue
            self._position = Position(seq, index)
            if event.type in ENDS or event.type == RETRIED:
                self._status = ENDS.get(event.type)
            yield Message(event.data, event.type, str(self._position))
        self._position = Position(seq)

    def _end(self) -> Message | None:
        return None if self._status is None else event_api.end(self._run_id, self._status)

    def _sign(self) -> Message:
        return Message()


class WideStream(Stream):
    """All runs of a tenant, partition by partition."""

    def __init__(
        self,
        shared: Shared,
        tenant: str,
        selection: Selection,
        positions: Sequence[Position] | None,
        is_still_allowed: IsStillAllowed,
    ) -> None:
        super().__init__(shared, Follower(), tenant, is_still_allowed)
        self._selection = selection
        self._given = positions
        self._positions: list[Position] = []
        self._looked = [0] * len(shared.pulses)
        """Up to where each pulse had come when there was nothing to read."""
        self._blobs: Blobs = shared.broker.blobs()

    @property
    def _pulses(self) -> Collection[Pulse]:
        return self._shared.pulses

    async def open(self) -> bool:
        for pulse in self._pulses:
            await pulse.join(self.follower)
        journal, partitions = self._shared.broker.journal, range(self._shared.broker.partitions)
        self._positions = list(self._given or [Position(await journal.tip(partition)) for partition in partitions])
        return True

    async def _news(self) -> AsyncGenerator[Message | None, None]:
        """A page of each partition in turn, so that none waits until another has been read to its end."""
        while behind := [p for p in range(len(self._positions)) if self._is_behind(p)]:
            for partition in behind:
                pulse = self._shared.pulses[partition]
                seen, lines = pulse.seen, await pulse.read(self._positions[partition].before)
                for line in lines:
                    for index, event in await self._selected(line):
                        if not self._positions[partition].has_seen(line.seq, index):
                            self._positions[partition] = Position(line.seq, index)
                            yield Message(event.data, event.type, event_api.cursor(self._positions))
                    self._positions[partition] = Position(line.seq)
                if not lines:
                    self._looked[partition] = seen
                yield None

    def _is_behind(self, partition: int) -> bool:
        return self._shared.pulses[partition].seen > max(self._positions[partition].before, self._looked[partition])

    async def _selected(self, line: Line) -> list[tuple[int, Told]]:
        """Those of a record's events that are for this reader, with their places in it. What is for others is not even
        fetched."""
        facts = await self._shared.known.of(line)
        workflow, types = self._selection.workflow, self._selection.types
        if facts is None or facts.tenant != self.tenant or workflow not in (None, facts.workflow):
            return []
        shown = await line.shown(self._blobs)
        return [(index, event) for index, event in enumerate(shown) if not types or event.type in types]

    def _end(self) -> Message | None:
        return None

    def _sign(self) -> Message:
        """With the place that was reached: where little is for this reader, he need not come back to all the rest. A
        replica that lagged behind when there was nothing to read is asked again."""
        self._looked = [0] * len(self._looked)
        return Message(id=event_api.cursor(self._positions))
