"""The in-memory broker: every port, the semantics of the real one, and no time but an injected clock's.

The `MemoryServer` is the cluster: it outlives a `MemoryBroker`, which is one process's connection, so that a test can
throw a process away as a crash would and go on with another one. `Faults` is asked at every call and every delivery;
a simulation answers with what a network does: requests that never arrive, answers that never come back although the
write was stored, deliveries that are late, doubled, lost or out of order. With the default nothing goes wrong.

Everything that happens here is decided by the order of calls, the clock and the faults: equal inputs give equal runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from fumehood.broker import names
from fumehood.broker.clock import Cancel, Clock, SystemClock
from fumehood.broker.memory_audit import AuditLines, MemoryAuditLog
from fumehood.broker.memory_faults import NO_FAULTS, Faults, Port, Verdict
from fumehood.broker.memory_logs import LogLines, MemoryRunLogs
from fumehood.broker.memory_switchboard import Lines, MemorySwitchboard
from fumehood.broker.ports import (
    KEEP,
    Bucket,
    ChangeKind,
    Delivery,
    Entry,
    Keep,
    KvChange,
    KvEntry,
    MessageKind,
    PendingTimer,
    Published,
    TaskDelivery,
)
from fumehood.broker.topology import BUCKET_SPECS, MAX_PAYLOAD, BucketSpec, Timing
from fumehood.errors import (
    BlobNotFoundError,
    InvalidRequestError,
    JournalConflictError,
    KeyConflictError,
    PayloadTooLargeError,
)

__all__ = ["NO_FAULTS", "Faults", "MemoryBroker", "MemoryServer", "Verdict", "own_record", "selects"]

# --- the server --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Message:
    seq: int
    subject: str
    """The run id, or on the task queue `type/run`."""
    message_id: str
    data: bytes
    headers: Mapping[str, str]


class _Numbers:
    """What messages are numbered by: what shares a stream shares them."""

    def __init__(self) -> None:
        self.last = 0

    def take(self) -> int:
        self.last += 1
        return self.last


class _Log:
    """Numbered messages, found by subject, with a duplicate window."""

    def __init__(self, clock: Clock, window: float, numbers: _Numbers | None = None) -> None:
        self._clock = clock
        self._window = window
        self._numbers = numbers or _Numbers()
        self.messages: dict[int, _Message] = {}
        self.by_subject: defaultdict[str, list[int]] = defaultdict(list)
        self._seen: dict[str, tuple[int, float]] = {}
        self._ages: deque[tuple[float, str]] = deque()

    def seen(self, identity: str) -> int | None:
        """The seq of `subject/id`, within the window."""
        now = self._clock.now()
        while self._ages and self._ages[0][0] <= now:
            _, old = self._ages.popleft()
            if old in self._seen and self._seen[old][1] <= now:
                del self._seen[old]
        found = self._seen.get(identity)
        return found[0] if found else None

    def append(self, subject: str, message_id: str, data: bytes, headers: Mapping[str, str] | None) -> _Message:
        """Store it. An id that is remembered already is not remembered anew: its window goes on as it was."""
        message = _Message(self._numbers.take(), subject, message_id, data, dict(headers or {}))
        self.messages[message.seq] = message
        self.by_subject[subject].append(message.seq)
        until, identity = self._clock.now() + self._window, f"{subject}/{message_id}"
        if self.seen(identity) is None:
            self._seen[identity] = (message.seq, until)
            self._ages.append((until, identity))
        return message

    def of(self, subject: str, after: int = 0) -> list[_Message]:
        seqs = self.by_subject.get(subject, [])
        return [self.messages[seq] for seq in seqs[bisect_right(seqs, after) :]]

    @property
    def tip(self) -> int:
        return self._numbers.last

    def past(self, after: int) -> Iterator[_Message]:
        """On every subject."""
        return (self.messages[seq] for seq in range(after + 1, self.tip + 1) if seq in self.messages)

    def remove(self, seq: int) -> None:
        message = self.messages.pop(seq, None)
        if message is not None:
            self.by_subject[message.subject].remove(seq)
            if not self.by_subject[message.subject]:
                del self.by_subject[message.subject]

    def purge(self, subject: str, upto: int | None = None) -> None:
        for seq in tuple(self.by_subject.get(subject, ())):
            if upto is None or seq <= upto:
                self.remove(seq)


@dataclass(slots=True)
class _Flight:
    """A message that is in somebody's hands, or will be again at `due`."""

    due: float
    deliveries: int = 0
    arranged: bool = False
    """The faults have spoken about the coming delivery already."""
    copies: int = 1


class _Consumer:
    """A durable consumer: what was not handed out yet, and what was but is not answered."""

    def __init__(self, name: str, log: _Log, ack_wait: float, bell: Bell) -> None:
        self.name = name
        self.log = log
        self._ack_wait = ack_wait
        self._bell = bell
        self._new: deque[int] = deque()
        self.flights: dict[int, _Flight] = {}

    def offer(self, seq: int) -> None:
        self._new.append(seq)
        self._bell.ring()

    @property
    def waiting(self) -> int:
        """Messages that were never handed out."""
        never = [*self._new, *(seq for seq, flight in self.flights.items() if not flight.deliveries)]
        return sum(seq in self.log.messages for seq in never)

    def next_due(self) -> float | None:
        return min((flight.due for flight in self.flights.values()), default=None)

    def take(self, count: int, now: float, faults: Faults) -> Iterator[tuple[_Message, int]]:
        """Hand out up to `count` messages that are due."""
        ready = self._ready(now)
        for index in faults.order(self.name, len(ready)):
            if count <= 0:
                return
            for _ in range(self._hand_out(ready[index], now, faults)):
                count -= 1
                yield self.log.messages[ready[index]], self.flights[ready[index]].deliveries

    def _ready(self, now: float) -> list[int]:
        while self._new:
            self.flights[self._new.popleft()] = _Flight(due=now)
        for seq in [seq for seq in self.flights if seq not in self.log.messages]:
            del self.flights[seq]  # purged
        return sorted(seq for seq, flight in self.flights.items() if flight.due <= now)

    def _hand_out(self, seq: int, now: float, faults: Faults) -> int:
        """How many copies arrive right now."""
        flight = self.flights[seq]
        if not flight.arranged:
            arrivals = faults.arrivals(self.name, self.log.messages[seq].message_id)
            flight.copies = sum(1 for delay in arrivals if delay <= 0)
            if not flight.copies and arrivals:
                flight.due, flight.arranged, flight.copies = now + min(arrivals), True, 1
                return 0
        flight.arranged = False
        flight.deliveries += 1
        flight.due = now + self._ack_wait
        return flight.copies

    def settle(self, seq: int) -> bool:
        return self.flights.pop(seq, None) is not None

    def again(self, seq: int, due: float) -> None:
        if seq in self.flights:
            self.flights[seq].due = due
            self._bell.ring()

    def extend(self, seq: int, now: float) -> None:
        if seq in self.flights:
            self.flights[seq].due = now + self._ack_wait


class Bell:
    """Wakes whoever waits for something to happen on the server."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, clock: Clock, until: float | None) -> None:
        """Until the next ring, or until a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        cancel: Cancel | None = None
        if until is not None:
            cancel = clock.call_at(until, lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            if cancel is not None:
                cancel()
            if future in self._waiting:
                self._waiting.remove(future)


@dataclass(slots=True)
class _Timer:
    at_ms: int
    message_id: str
    data: bytes
    seq: int = 0
    cancel: Cancel = field(default=lambda: None)


class MemoryServer:
    """The state that outlives every connection. Belongs to one event loop."""

    def __init__(self, clock: Clock | None = None, *, partitions: int = 1, timing: Timing | None = None) -> None:
        self.timing = timing = timing or Timing()
        self.clock: Clock = clock or SystemClock()
        self.partitions = partitions
        self.bell = Bell()
        self.numbers = [_Numbers() for _ in range(partitions)]
        self.journals = [_Log(self.clock, 0.0, numbers) for numbers in self.numbers]
        self.journal_followers: list[list[Callable[[], None]]] = [[] for _ in range(partitions)]
        self.inboxes = [_Log(self.clock, timing.run_window, numbers) for numbers in self.numbers]
        self.histories = [self._log(timing.history_window) for _ in range(partitions)]
        self.feeds = [
            (
                _Consumer(f"inbox.{p}", self.inboxes[p], timing.feed_ack_wait, self.bell),
                _Consumer(f"history.{p}", self.histories[p], timing.feed_ack_wait, self.bell),
            )
            for p in range(partitions)
        ]
        self.tasks = self._log(timing.task_window)
        self.task_consumers: dict[str, _Consumer] = {}
        self.timers: dict[tuple[str, str], _Timer] = {}
        self.buckets = {bucket: _BucketState(self.clock, spec) for bucket, spec in BUCKET_SPECS.items()}
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.audit = AuditLines(self.clock)
        self.logs = LogLines(self.clock)
        self.lines = Lines(self.clock)
        self.secret = b"no secret: equal inputs give equal runs"
        self._task_ack_wait = timing.task_ack_wait

    def _log(self, window: float) -> _Log:
        return _Log(self.clock, window)

    def partition_of(self, run_id: str) -> int:
        return names.partition_of(run_id, self.partitions)

    def task_consumer(self, task_type: str) -> _Consumer:
        name = names.consumer_of(task_type)
        if name not in self.task_consumers:
            self.task_consumers[name] = _Consumer(name, self.tasks, self._task_ack_wait, self.bell)
        return self.task_consumers[name]

    def post(
        self, kind: MessageKind, run_id: str, message_id: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> Published:
        """A message for a run's decider."""
        p = self.partition_of(run_id)
        log = self.inboxes[p] if kind is MessageKind.INBOX else self.histories[p]
        known = log.seen(f"{run_id}/{message_id}")
        if known is not None and kind is MessageKind.INBOX:
            return Published(known, duplicate=True)
        message = log.append(run_id, message_id, data, headers)
        self.feeds[p][0 if kind is MessageKind.INBOX else 1].offer(message.seq)
        return Published(message.seq, duplicate=known is not None)

    def fire(self, run_id: str, timer_id: str) -> None:
        timer = self.timers.pop((run_id, timer_id))
        self.post(MessageKind.INBOX, run_id, timer.message_id, timer.data)


# --- keys --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Value:
    value: bytes
    revision: int
    ttl: int | None
    cancel: Cancel = field(default=lambda: None)


class _BucketState:
    def __init__(self, clock: Clock, spec: BucketSpec) -> None:
        self._clock = clock
        self.spec = spec
        self.revision = 0
        self.values: dict[str, _Value] = {}
        self.watchers: list[Callable[[KvChange], None]] = []

    def write(self, key: str, value: bytes, ttl: int | None) -> int:
        self.drop(key)
        self.revision += 1
        stored = self.values[key] = _Value(value, self.revision, ttl)
        seconds = ttl if ttl is not None else self.spec.max_age
        if seconds is not None:
            stored.cancel = self._clock.call_at(self._clock.now() + seconds, lambda: self._expire(key))
        self.tell(KvChange(ChangeKind.PUT, key, value, self.revision))
        return self.revision

    def drop(self, key: str) -> bool:
        known = self.values.pop(key, None)
        if known is not None:
            known.cancel()
        return known is not None

    def _expire(self, key: str) -> None:
        gone = self.values.pop(key)
        self.tell(KvChange(ChangeKind.EXPIRE, key, revision=gone.revision))

    def tell(self, change: KvChange) -> None:
        for watcher in tuple(self.watchers):
            watcher(change)

    def entries(self, prefix: str) -> list[KvEntry]:
        return [
            KvEntry(key, stored.value, stored.revision, stored.ttl)
            for key, stored in sorted(self.values.items())
            if selects(prefix, key)
        ]


def selects(prefix: str, key: str) -> bool:
    """Whether a prefix of whole tokens selects a key."""
    return not prefix or key == prefix or key.startswith(prefix + ".")


# --- one connection ----------------------------------------------------------------------------------------


class _Port(Port):
    """With the server."""

    def __init__(self, server: MemoryServer, faults: Faults) -> None:
        super().__init__(faults)
        self._server = server


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_PAYLOAD:
        raise PayloadTooLargeError("the message is larger than the broker takes")
    return bytes(data)


class MemoryJournal(_Port):
    name = "journal"

    def _entries(self, run_id: str, after: int = 0) -> list[Entry]:
        log = self._server.journals[self._server.partition_of(run_id)]
        return [Entry(m.seq, m.message_id, m.data) for m in log.of(run_id, after)]

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        names.token(run_id)
        done = await self._begin("read", run_id)
        found = self._entries(run_id, after)[:limit]
        done()
        return found

    async def last(self, run_id: str) -> Entry | None:
        names.token(run_id)
        done = await self._begin("last", run_id)
        found = self._entries(run_id)
        done()
        return found[-1] if found else None

    async def append(self, run_id: str, record_id: str, data: bytes, *, expected: int) -> int:
        names.message_id(record_id)
        names.token(run_id)
        data = _bounded(data)
        done = await self._begin("append", run_id)
        log = self._server.journals[self._server.partition_of(run_id)]
        last = log.by_subject[run_id][-1] if run_id in log.by_subject else 0
        if last != expected:
            seq = own_record(self._entries(run_id, expected), record_id, data)
        else:
            seq = log.append(run_id, record_id, data, None).seq
            for notify in tuple(self._server.journal_followers[self._server.partition_of(run_id)]):
                notify()
        done()
        return seq

    async def purge(self, run_id: str, *, upto: int) -> None:
        names.token(run_id)
        done = await self._begin("purge", run_id)
        server, p = self._server, self._server.partition_of(run_id)
        for log in (server.journals[p], server.inboxes[p]):
            log.purge(run_id, upto)
        for key in [key for key, timer in server.timers.items() if key[0] == run_id and timer.seq <= upto]:
            server.timers.pop(key).cancel()
        done()

    async def tail(self, partition: int, *, after: int, limit: int) -> list[tuple[str, Entry]]:
        done = await self._begin("tail", str(partition))
        found = itertools.islice(self._server.journals[partition].past(after), limit)
        answer = [(m.subject, Entry(m.seq, m.message_id, m.data)) for m in found]
        done()
        return answer

    async def tip(self, partition: int) -> int:
        done = await self._begin("tip", str(partition))
        tip = self._server.journals[partition].tip
        done()
        return tip

    @contextlib.asynccontextmanager
    async def follow(self, partition: int, notify: Callable[[], None]) -> AsyncIterator[None]:
        done = await self._begin("follow", str(partition))
        done()
        followers = self._server.journal_followers[partition]
        followers.append(notify)
        try:
            yield
        finally:
            followers.remove(notify)


def own_record(behind: Sequence[Entry], record_id: str, data: bytes) -> int:
    """The seq of a record that an earlier try of the same append stored, or the conflict."""
    for entry in behind:
        if entry.record_id == record_id and entry.data == data:
            return entry.seq
    raise JournalConflictError("another record was appended to this run's journal first")


class MemoryMailboxes(_Port):
    name = "mailboxes"

    async def send(
        self, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(message_id)
        names.token(run_id)
        data = _bounded(data)
        done = await self._begin("send", run_id)
        published = self._server.post(MessageKind.INBOX, run_id, message_id, data, headers)
        done()
        return published

    async def last(self, run_id: str) -> bytes | None:
        names.token(run_id)
        done = await self._begin("last", run_id)
        log = self._server.inboxes[self._server.partition_of(run_id)]
        found = log.by_subject.get(run_id)
        done()
        return log.messages[found[-1]].data if found else None

    async def first(self, run_id: str) -> bytes | None:
        names.token(run_id)
        done = await self._begin("first", run_id)
        log = self._server.inboxes[self._server.partition_of(run_id)]
        found = log.by_subject.get(run_id)
        done()
        return log.messages[found[0]].data if found else None


class MemoryHistories(_Port):
    name = "histories"

    async def publish(
        self, run_id: str, event_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(event_id)
        names.token(run_id)
        data = _bounded(data)
        done = await self._begin("publish", run_id)
        published = self._server.post(MessageKind.HISTORY, run_id, event_id, data, headers)
        done()
        return published


class MemoryFeed(_Port):
    name = "feed"

    @property
    def patience(self) -> float:
        return self._server.timing.feed_ack_wait

    async def pull(self, partition: int, *, max_messages: int, timeout: float) -> list[Delivery]:
        consumers = self._server.feeds[partition]
        until = self._server.clock.now() + timeout
        done = await self._begin("pull", str(partition))
        while True:
            now = self._server.clock.now()
            found: list[Delivery] = []
            for consumer in consumers:
                found += self._take(consumer, max_messages - len(found), now)
            if found or now >= until:
                done()
                return found
            await self._server.bell.wait(self._server.clock, _earliest(until, consumers))

    def _take(self, consumer: _Consumer, count: int, now: float) -> Iterator[Delivery]:
        kind = MessageKind.INBOX if consumer.name.startswith("inbox") else MessageKind.HISTORY
        for message, deliveries in consumer.take(count, now, self._faults):
            settlement = _MemorySettlement(self, consumer, message.seq)
            yield Delivery(
                message.subject,
                kind,
                message.message_id,
                message.seq,
                message.data,
                message.headers,
                deliveries,
                settlement,
            )

    async def release(self, partition: int) -> None:
        """Nothing is fetched ahead here."""


def _earliest(until: float, consumers: Collection[_Consumer]) -> float:
    return min([until, *(due for consumer in consumers if (due := consumer.next_due()) is not None)])


class _MemorySettlement:
    def __init__(self, feed: MemoryFeed, consumer: _Consumer, seq: int) -> None:
        self._feed = feed
        self._consumer = consumer
        self._seq = seq

    async def ack(self) -> None:
        done = await self._feed._begin("ack", f"{self._consumer.name}.{self._seq}")
        self._consumer.settle(self._seq)
        done()

    async def nak(self, delay: float) -> None:
        done = await self._feed._begin("nak", f"{self._consumer.name}.{self._seq}")
        self._consumer.again(self._seq, self._feed._server.clock.now() + delay)
        done()

    async def extend(self) -> None:
        done = await self._feed._begin("extend", f"{self._consumer.name}.{self._seq}")
        self._consumer.extend(self._seq, self._feed._server.clock.now())
        done()


class MemoryTimers(_Port):
    name = "timers"

    async def set(self, run_id: str, timer_id: str, at_ms: int, message_id: str, data: bytes) -> None:
        names.message_id(message_id)
        names.token(run_id)
        key = (run_id, names.token(timer_id, "a timer id"))
        timer = _Timer(at_ms, message_id, _bounded(data))
        done = await self._begin("set", f"{run_id}.{timer_id}")
        if key not in self._server.timers:
            timer.seq = self._server.numbers[self._server.partition_of(run_id)].take()
            self._server.timers[key] = timer
            timer.cancel = self._server.clock.call_at(at_ms / 1000, lambda: self._server.fire(run_id, timer_id))
        done()

    async def cancel(self, run_id: str, timer_id: str) -> None:
        names.token(run_id)
        names.token(timer_id, "a timer id")
        done = await self._begin("cancel", f"{run_id}.{timer_id}")
        timer = self._server.timers.pop((run_id, timer_id), None)
        if timer is not None:
            timer.cancel()
        done()

    async def pending(self, run_id: str) -> list[PendingTimer]:
        names.token(run_id)
        done = await self._begin("pending", run_id)
        found = [
            PendingTimer(timer_id, timer.at_ms, timer.message_id)
            for (run, timer_id), timer in sorted(self._server.timers.items(), key=lambda item: item[0])
            if run == run_id
        ]
        done()
        return found


class MemoryTaskQueue(_Port):
    name = "tasks"

    def __init__(self, server: MemoryServer, faults: Faults) -> None:
        super().__init__(server, faults)
        self._turn = 0

    async def publish(
        self, task_type: str, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(message_id)
        subject = f"{names.task_type(task_type)}/{names.token(run_id)}"
        data = _bounded(data)
        done = await self._begin("publish", task_type)
        log, consumer = self._server.tasks, self._server.task_consumer(task_type)
        known = log.seen(f"{subject}/{message_id}")
        seq = known if known is not None else log.append(subject, message_id, data, headers).seq
        if known is None:
            consumer.offer(seq)
        done()
        return Published(seq, duplicate=known is not None)

    async def pull(self, task_types: Sequence[str], *, max_tasks: int, timeout: float) -> list[TaskDelivery]:
        consumers = [self._server.task_consumer(kind) for kind in dict.fromkeys(task_types)]
        until = self._server.clock.now() + timeout
        done = await self._begin("pull", ",".join(task_types))
        while True:
            now = self._server.clock.now()
            found = self._take(consumers, max_tasks, now)
            if found or now >= until:
                done()
                return found
            await self._server.bell.wait(self._server.clock, _earliest(until, consumers))

    def _take(self, consumers: Sequence[_Consumer], count: int, now: float) -> list[TaskDelivery]:
        """One of each type in turn, beginning one further each time."""
        self._turn += 1
        start = self._turn % len(consumers) if consumers else 0
        found: list[TaskDelivery] = []
        turning = deque((*consumers[start:], *consumers[:start]))
        while turning and len(found) < count:
            consumer = turning.popleft()
            taken = [self._delivery(consumer, *one) for one in consumer.take(1, now, self._faults)]
            found += taken
            if taken:
                turning.append(consumer)
        return found

    def _delivery(self, consumer: _Consumer, message: _Message, deliveries: int) -> TaskDelivery:
        kind, _, run_id = message.subject.partition("/")
        token = f"memory.{consumer.name}.{message.seq}"
        return TaskDelivery(
            kind, run_id, message.message_id, message.data, message.headers, token, deliveries, message.seq
        )

    def _find(self, token: str) -> tuple[_Consumer, int]:
        _, _, rest = token.partition(".")
        name, _, seq = rest.rpartition(".")
        if name not in self._server.task_consumers or not seq.isdecimal():
            raise InvalidRequestError("not a token of a task's delivery")
        return self._server.task_consumers[name], int(seq)

    async def ack(self, token: str) -> None:
        consumer, seq = self._find(token)
        done = await self._begin("ack", token)
        consumer.settle(seq)
        self._server.tasks.remove(seq)
        done()

    async def extend(self, token: str) -> None:
        consumer, seq = self._find(token)
        done = await self._begin("extend", token)
        consumer.extend(seq, self._server.clock.now())
        done()

    async def give_back(self, token: str, delay: float = 0.0) -> None:
        consumer, seq = self._find(token)
        done = await self._begin("give_back", token)
        consumer.again(seq, self._server.clock.now() + delay)
        done()

    async def pending(self, run_id: str, task_types: Collection[str]) -> set[str]:
        names.token(run_id)
        done = await self._begin("pending", run_id)
        log = self._server.tasks
        seqs = [seq for kind in task_types for seq in log.by_subject.get(f"{names.task_type(kind)}/{run_id}", ())]
        done()
        return {log.messages[seq].message_id for seq in seqs}

    async def waiting(self) -> Mapping[str, int]:
        done = await self._begin("waiting", "")
        found = {
            name.removeprefix("task-").replace("=2E", "."): consumer.waiting
            for name, consumer in self._server.task_consumers.items()
        }
        done()
        return {kind: count for kind, count in found.items() if count}

    async def purge_run(self, run_id: str, task_types: Collection[str] | None = None) -> None:
        names.token(run_id)
        done = await self._begin("purge_run", run_id)
        log = self._server.tasks
        for subject in [subject for subject in log.by_subject if subject.endswith(f"/{run_id}")]:
            if task_types is None or subject.partition("/")[0] in task_types:
                log.purge(subject)
        done()


class MemoryKeyValue(_Port):
    def __init__(self, server: MemoryServer, faults: Faults, bucket: Bucket) -> None:
        super().__init__(server, faults)
        self.name = bucket
        self._state = server.buckets[bucket]

    def _checked(self, key: str, value: bytes, ttl: int | None) -> bytes:
        names.key(key)
        self._state.spec.check(value, ttl)
        return bytes(value)

    async def get(self, key: str) -> KvEntry | None:
        names.key(key)
        done = await self._begin("get", key)
        stored = self._state.values.get(key)
        done()
        return None if stored is None else KvEntry(key, stored.value, stored.revision, stored.ttl)

    async def create(self, key: str, value: bytes, *, ttl: int | None = None) -> int:
        value = self._checked(key, value, ttl)
        done = await self._begin("create", key)
        if key in self._state.values:
            raise KeyConflictError("the key exists already")
        revision = self._state.write(key, value, ttl)
        done()
        return revision

    async def update(self, key: str, value: bytes, *, revision: int, ttl: int | Keep | None = KEEP) -> int:
        value = self._checked(key, value, None if ttl is KEEP else ttl)
        done = await self._begin("update", key)
        stored = self._state.values.get(key)
        if stored is None or stored.revision != revision:
            raise KeyConflictError("the key has another revision")
        made = self._state.write(key, value, stored.ttl if isinstance(ttl, Keep) else ttl)
        done()
        return made

    async def put(self, key: str, value: bytes, *, ttl: int | None = None) -> int:
        value = self._checked(key, value, ttl)
        done = await self._begin("put", key)
        revision = self._state.write(key, value, ttl)
        done()
        return revision

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        names.key(key)
        done = await self._begin("delete", key)
        stored = self._state.values.get(key)
        if revision is not None and (stored is None or stored.revision != revision):
            raise KeyConflictError("the key has another revision")
        if self._state.drop(key):
            self._state.revision += 1
            self._state.tell(KvChange(ChangeKind.DELETE, key, revision=self._state.revision))
        done()

    async def purge(self, prefix: str) -> None:
        names.key(prefix)
        done = await self._begin("purge", prefix)
        for key in [key for key in self._state.values if selects(prefix, key)]:
            self._state.drop(key)
        done()

    async def keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in await self._list("keys", prefix)]

    async def entries(self, prefix: str = "") -> list[KvEntry]:
        return await self._list("entries", prefix)

    async def _list(self, operation: str, prefix: str) -> list[KvEntry]:
        names.key_prefix(prefix)
        done = await self._begin(operation, prefix)
        found = self._state.entries(prefix)
        done()
        return found

    async def watch(self, prefix: str = "") -> AsyncIterator[KvChange]:
        names.key_prefix(prefix)
        changes: asyncio.Queue[KvChange] = asyncio.Queue()
        for entry in self._state.entries(prefix):
            changes.put_nowait(KvChange(ChangeKind.PUT, entry.key, entry.value, entry.revision))
        changes.put_nowait(KvChange(ChangeKind.CAUGHT_UP))

        def tell(change: KvChange) -> None:
            if selects(prefix, change.key):
                changes.put_nowait(change)

        self._state.watchers.append(tell)
        try:
            while True:
                yield await changes.get()
        finally:
            self._state.watchers.remove(tell)


class MemoryBlobs(_Port):
    name = "blobs"

    def __init__(self, server: MemoryServer, faults: Faults, tenant: str) -> None:
        super().__init__(server, faults)
        self._tenant = names.token(tenant, "a tenant")

    async def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        done = await self._begin("put", digest)
        self._server.blobs.setdefault((self._tenant, digest), bytes(data))
        done()
        return f"sha256:{digest}"

    async def put_file(self, source: BinaryIO) -> str:
        source.seek(0)
        return await self.put(source.read())

    async def get(self, ref: str, *, limit: int) -> bytes:
        digest = names.blob_hash(ref)
        done = await self._begin("get", digest)
        data = self._server.blobs.get((self._tenant, digest))
        done()
        if data is None:
            raise BlobNotFoundError("no such blob")
        if len(data) > limit:
            raise PayloadTooLargeError(f"the blob has {len(data)} bytes, {limit} are allowed")
        return data

    async def get_into(self, ref: str, target: BinaryIO, *, limit: int) -> int:
        return target.write(await self.get(ref, limit=limit))

    async def size(self, ref: str) -> int | None:
        digest = names.blob_hash(ref)
        done = await self._begin("size", digest)
        data = self._server.blobs.get((self._tenant, digest))
        done()
        return None if data is None else len(data)

    async def delete(self, ref: str) -> None:
        digest = names.blob_hash(ref)
        done = await self._begin("delete", digest)
        self._server.blobs.pop((self._tenant, digest), None)
        done()


class MemoryBroker:
    """One process's connection to a `MemoryServer`."""

    def __init__(self, server: MemoryServer | None = None, *, faults: Faults = NO_FAULTS) -> None:
        self.server = server or MemoryServer()
        self._faults = faults
        self.journal = MemoryJournal(self.server, faults)
        self.mailboxes = MemoryMailboxes(self.server, faults)
        self.histories = MemoryHistories(self.server, faults)
        self.feed = MemoryFeed(self.server, faults)
        self.tasks = MemoryTaskQueue(self.server, faults)
        self.timers = MemoryTimers(self.server, faults)
        self.audit = MemoryAuditLog(self.server.audit, faults)
        self.logs = MemoryRunLogs(self.server.logs, faults)
        self.switchboard = MemorySwitchboard(self.server.lines, faults)

    @property
    def partitions(self) -> int:
        return self.server.partitions

    def bucket(self, name: Bucket) -> MemoryKeyValue:
        return MemoryKeyValue(self.server, self._faults, name)

    def blobs(self, tenant: str = names.DEFAULT_TENANT) -> MemoryBlobs:
        return MemoryBlobs(self.server, self._faults, tenant)

    def partition_of(self, run_id: str) -> int:
        return self.server.partition_of(run_id)

    def derived_key(self, label: str) -> bytes:
        return hmac.digest(self.server.secret, label.encode(), "sha256")

    async def close(self) -> None:
        """Nothing is held by a connection: what it had in hand comes again after its ack wait."""
