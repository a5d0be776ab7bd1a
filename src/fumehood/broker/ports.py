"""What the rest of the house may ask of the broker, and nothing that only one broker could do.

`broker.py` speaks to a real server, `memory.py` is the public double; one suite (`tests/conformance/test_broker.py`)
holds both to this page. Rules for every implementation:

- Every call has a deadline of its own and raises `BrokerUnavailableError` instead of hanging. A write that raised it
  *may have been stored*. Every write carries an id or a revision, so that repeating it is safe: the repetition finds
  what the first try stored and answers as that would have.
- Delivery is at least once, in no promised order, for ever. Whoever takes a message compares `Delivery.identity` with
  what it has taken before. An ack is never a fence: a late one is accepted.
- Cancelling a call is never swallowed, and loses no message: what was on its way is delivered again.
- Ids are checked before they become subjects (`names.py`); a bad one is an `InvalidRequestError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import BinaryIO, Literal, Protocol

# --- values ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a run's journal. `seq` grows within a run, with gaps."""

    seq: int
    record_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """The broker's word that a message is stored."""

    seq: int
    duplicate: bool
    """The broker had seen this id within its duplicate window.
    Inbox and tasks: stored once; history: see there."""


class MessageKind(StrEnum):
    """Which of a run's subjects a message came in on, that is: who may have written it."""

    INBOX = "inbox"
    HISTORY = "history"


class Settlement(Protocol):
    """How one delivery is answered; made by a broker, used by `Delivery` alone."""

    async def ack(self) -> None: ...

    async def nak(self, delay: float) -> None: ...

    async def extend(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message for a run's decider."""

    run_id: str
    kind: MessageKind
    message_id: str
    """What the sender called it. On `history` that is a worker's claim: two attempts may bear the same one."""
    seq: int
    data: bytes
    headers: Mapping[str, str]
    """Without the broker's own; `traceparent` travels here."""
    deliveries: int
    """1 for the first time. Redelivery repeats the message, never the decision."""
    settlement: Settlement = field(repr=False)

    @property
    def identity(self) -> str:
        """What to remember in order to take this message once. A server's ids are its own promise; a worker's are
        not (a bare worker repeats the plain id at its second attempt), so there the stored message itself counts."""
        return self.message_id if self.kind is MessageKind.INBOX else f"history.{self.seq}"

    async def ack(self) -> None:
        """Done with it, for good. May be forgotten in a crash: then it comes again."""
        await self.settlement.ack()

    async def nak(self, delay: float = 0.0) -> None:
        """Bring it again after `delay` seconds."""
        await self.settlement.nak(delay)

    async def extend(self) -> None:
        """Still at it: wait for an answer as long as if it had been delivered now."""
        await self.settlement.extend()


@dataclass(frozen=True, slots=True)
class TaskDelivery:
    """A task in the hands of one worker, until its ack wait runs out."""

    task_type: str
    run_id: str
    message_id: str
    data: bytes
    headers: Mapping[str, str]
    token: str
    """Answers this delivery from any connection; opaque, and safe to keep in a lease."""
    deliveries: int
    """How often it was handed out, also to whoever gave it back untouched; the broker never drops it by itself."""
    seq: int = 0
    """The stored message's number: the same for all deliveries of it, another one for a copy."""


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that has not fired."""

    timer_id: str
    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A key that exists now."""

    key: str
    value: bytes
    revision: int
    ttl: int | None = None
    """Seconds that it was given when written; None: what the bucket says."""


class ChangeKind(StrEnum):
    PUT = "put"
    DELETE = "delete"
    EXPIRE = "expire"
    CAUGHT_UP = "caught-up"
    """Everything that existed when the watch began has been told; no key."""


@dataclass(frozen=True, slots=True)
class KvChange:
    """What a watch tells. Several quick changes of one key may be told as the last of them."""

    kind: ChangeKind
    key: str = ""
    value: bytes = b""
    revision: int = 0


class Keep(Enum):
    """The TTL that a key has already."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP


class Bucket(StrEnum):
    """Every bucket. Ages, sizes and who may write are in `topology.py`."""

    WORKERS = "workers"
    LEASES = "leases"
    NODE_LEASES = "node_leases"
    CHECKPOINTS = "checkpoints"
    DEFINITIONS = "definitions"
    IDEMPOTENCY = "idempotency"
    SNAPSHOTS = "snapshots"
    SUMMARIES = "summaries"
    LOCKS = "locks"
    RATES = "rates"
    SCHEDULES = "schedules"
    KEYS = "keys"
    CREDENTIALS = "credentials"
    CONSOLE = "console"
    SESSIONS = "sessions"
    COMMANDS = "commands"
    RECEIPT_KEYS = "receipt_keys"
    PROVIDERS = "providers"
    CLUSTER = "cluster"


# --- a run's subjects --------------------------------------------------------------------------------------


class Journal(Protocol):
    """What was decided about each run: the truth. Written by deciders only."""

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """All records past `after`, or the first `limit` of them, in order, as the leader knows them: fewer than
        `limit` means that there are no more, an empty answer an empty journal."""
        ...

    async def last(self, run_id: str) -> Entry | None:
        """The newest record, from the leader."""
        ...

    async def append(self, run_id: str, record_id: str, data: bytes, *, expected: int) -> int:
        """Store one record behind `expected` (the last seq of this journal, 0 for none) and return its seq.

        Raises `JournalConflictError` when another record is there. A record with this id and this data behind
        `expected` is this call's own, stored by an earlier try, and its seq is returned: a `record_id` names one
        content.
        """
        ...

    async def purge(self, run_id: str, *, upto: int) -> None:
        """Forget what was stored of a run up to a record, that record included: journal, inbox and timers. What came
        later stays. For runs that were archived."""
        ...

    async def tail(self, partition: int, *, after: int, limit: int) -> list[tuple[str, Entry]]:
        """Records of all runs of a partition past `after`, with their runs, in the order in which they were stored.
        May lag behind `read` by moments, and never leaves one out: what is not in an answer comes in a later one."""
        ...

    async def tip(self, partition: int) -> int:
        """A number that every record stored from now on lies behind: where a `tail` of news begins."""
        ...

    def follow(self, partition: int, notify: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """While it is open, `notify` is called for each new record of a partition, and now and then for nothing. It may
        be called a moment before the record can be read, and a call may be lost with a connection. What was stored
        before is the caller's own to read: first follow, then read."""
        ...


class Mailboxes(Protocol):
    """What servers tell a run: start, cancel, signal, approve. Timers write here too."""

    async def send(
        self, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published: ...

    async def last(self, run_id: str) -> bytes | None:
        """The newest message, from the leader, whether a decider took it or not; None: the run was never told
        anything, or was forgotten."""
        ...

    async def first(self, run_id: str) -> bytes | None:
        """The oldest one that is kept, in the same way: a run's start, until what was stored of it is purged."""
        ...


class Histories(Protocol):
    """What workers claim about a run."""

    async def publish(
        self, run_id: str, event_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        """Store an event, whatever its id: another event that merely bears the id is no reason to drop this one, and
        a worker may not read in order to compare. Where `duplicate`, it may be stored twice."""
        ...


class DeciderFeed(Protocol):
    """Inbox and history of a partition's runs. Any number of deciders may pull from one partition; the broker prefers
    one of them so that its cache stays warm, and hands over when it falls silent. That is speed, not safety."""

    @property
    def patience(self) -> float:
        """Seconds without an answer after which a message is brought again."""
        ...

    async def pull(self, partition: int, *, max_messages: int, timeout: float) -> list[Delivery]:
        """What waits, or the first to come; empty after `timeout` seconds."""
        ...

    async def release(self, partition: int) -> None:
        """Stop taking part in a partition, and give back what was fetched ahead."""
        ...


class Timers(Protocol):
    """Messages to a run's inbox in the future, held by the broker and by no process."""

    async def set(self, run_id: str, timer_id: str, at_ms: int, message_id: str, data: bytes) -> None:
        """Never early. A timer id is used once: setting it again changes nothing while it is pending. Once it has
        fired, a late repetition may fire again, under the same message id."""
        ...

    async def cancel(self, run_id: str, timer_id: str) -> None:
        """One that fired, or never was, is cancelled already."""
        ...

    async def pending(self, run_id: str) -> list[PendingTimer]:
        """By timer id. May lag by moments: good for a sweep, which sets again what is missing."""
        ...


# --- tasks -------------------------------------------------------------------------------------------------


class TaskQueue(Protocol):
    """Work for workers, one line for each task type."""

    async def publish(
        self, task_type: str, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published: ...

    async def pull(self, task_types: Sequence[str], *, max_tasks: int, timeout: float) -> list[TaskDelivery]:
        """Up to `max_tasks` of all types together, none of them starved; returns as soon as there is one."""
        ...

    async def ack(self, token: str) -> None:
        """The task is answered and leaves the queue. Confirmed by the broker."""
        ...

    async def extend(self, token: str) -> None:
        """Start the ack wait anew."""
        ...

    async def give_back(self, token: str, delay: float = 0.0) -> None:
        """Hand it out again after `delay` seconds. Counts as a delivery. Not for long pauses: what waits this way is
        in flight."""
        ...

    async def pending(self, run_id: str, task_types: Collection[str]) -> set[str]:
        """The message ids of the run's tasks that are in the queue, handed out or not. May lag by moments: good for a
        sweep, which publishes again what is missing."""
        ...

    async def waiting(self) -> Mapping[str, int]:
        """By type, how many tasks were never handed out; types without any are left out. May lag by moments."""
        ...

    async def purge_run(self, run_id: str, task_types: Collection[str] | None = None) -> None:
        """Take the run's tasks off all lines (or off those named, which is cheaper), handed out or not."""
        ...


# --- keys --------------------------------------------------------------------------------------------------


class KeyValue(Protocol):
    """One bucket. Revisions grow over the whole bucket and are never used twice. A TTL is whole seconds, at least 1,
    and ends the key some moments after it has passed, never before."""

    async def get(self, key: str) -> KvEntry | None:
        """As the leader knows it. Deleted and expired keys are None, always."""
        ...

    async def create(self, key: str, value: bytes, *, ttl: int | None = None) -> int:
        """`KeyConflictError` if it exists. After a try that raised `BrokerUnavailableError` look with `get` whether
        the value is yours: put something of your own into it."""
        ...

    async def update(self, key: str, value: bytes, *, revision: int, ttl: int | Keep | None = KEEP) -> int:
        """`KeyConflictError` unless the key has this revision. Keeps its TTL, counted from now; naming it again
        saves a round trip."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: int | None = None) -> int: ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """An absent key is deleted already; with a `revision`, anything but that revision is a conflict."""
        ...

    async def purge(self, prefix: str) -> None:
        """All keys below a prefix at once, without a trace; watchers are not told."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Sorted. A prefix is made of whole tokens. Lists may lag behind `get` by moments, on a replicated broker."""
        ...

    async def entries(self, prefix: str = "") -> list[KvEntry]: ...

    def watch(self, prefix: str = "") -> AsyncIterator[KvChange]:
        """What exists, then `CAUGHT_UP`, then every change, through reconnects and restarts."""
        ...


# --- blobs -------------------------------------------------------------------------------------------------


class Blobs(Protocol):
    """Large content of one tenant, named by its hash. Storing the same content twice stores it once."""

    async def put(self, data: bytes) -> str:
        """`sha256:…`, once every byte is stored."""
        ...

    async def put_file(self, source: BinaryIO) -> str:
        """As `put`, in pieces; the file is read twice, so it must be seekable."""
        ...

    async def get(self, ref: str, *, limit: int) -> bytes:
        """`PayloadTooLargeError` above `limit` bytes, before they are fetched; the hash is checked."""
        ...

    async def get_into(self, ref: str, target: BinaryIO, *, limit: int) -> int:
        """Write it to a file in pieces and return its size. On an error the file holds a part that means nothing."""
        ...

    async def size(self, ref: str) -> int | None:
        """None: not there, or not whole."""
        ...

    async def delete(self, ref: str) -> None: ...


# --- audit -------------------------------------------------------------------------------------------------


class AuditLog(Protocol):
    """Who did what, in one line of its own that nobody rewrites. Written by servers only; lines go by age."""

    async def add(self, entry_id: str, data: bytes) -> int:
        """Its number. The same id again, within the broker's duplicate window, is the same line."""
        ...

    async def tail(self, *, after: int, limit: int) -> list[Entry]:
        """Lines past `after`, oldest first; `record_id` is the line's id."""
        ...


# --- output of sandboxes -----------------------------------------------------------------------------------


class LogKind(StrEnum):
    """What a record of a sandbox's output says. Those that are not output hold a small JSON: `wire/logs.py`."""

    START = "start"
    """`LogStart`. First, and once."""
    OUT = "out"
    ERR = "err"
    """A piece of a stream, as the bytes that it had."""
    CUT = "cut"
    """`LogCut`. Once for a stream of which no more is told while it runs: it goes on with its tail, at the end."""
    END = "end"
    """`LogEnd`. Last, and once; its place is that behind the whole of both streams."""


@dataclass(frozen=True, slots=True)
class LogName:
    """Whose output: one attempt of one step."""

    run_id: str
    step_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Bytes of each stream that come before something. Both stand in every record, so that the newest one alone says
    where its writer stopped, and so that any record shows what is missing before it."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One piece of what is told about a sandbox. `at` counts the bytes that were *told* before it: behind a `CUT` it
    stands still, until the tail jumps to its true place."""

    kind: LogKind
    at: LogPlace = LogPlace()
    data: bytes = b""

    @property
    def after(self) -> LogPlace:
        """The place behind it."""
        more = len(self.data)
        if self.kind is LogKind.OUT:
            return LogPlace(self.at.stdout + more, self.at.stderr)
        return LogPlace(self.at.stdout, self.at.stderr + more) if self.kind is LogKind.ERR else self.at


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A record that is stored. `seq` grows within a log, with gaps."""

    seq: int
    record: LogRecord


class RunLogs(Protocol):
    """What sandboxes print, as it appears: written by the node that runs them, read by servers, bounded by age and
    size. Old records go when room is needed, and nothing here is the only copy of what is kept: that is the blob which
    a node's report names.

    A log is `START`, then `OUT` and `ERR` as they come, up to 8 MiB of each stream; then one `CUT` for a stream that
    has more. When the sandbox has ended, the tail of a stream that was cut comes as pieces with their true places, and
    `END` closes the log. One writer at a time, one record after the other.

    Places are what readers go by. A piece that begins behind the place that was reached says that what lies between is
    gone (evicted, cut, or never written), and it must be told, never glued over; of a piece that begins before it, what
    was told already is skipped. So a writer that stored a piece twice, or in other pieces than before, does no harm.
    """

    async def append(self, name: LogName, record: LogRecord) -> None:
        """Store a record, of at most `LOG_PIECE` bytes. The same record again, within the broker's duplicate window, is
        stored once; a writer that was away for longer asks `last` and goes on from `after`."""
        ...

    async def last(self, name: LogName) -> LogEntry | None:
        """The newest record."""
        ...

    async def read(self, name: LogName, *, after: int = 0, limit: int = 256) -> list[LogEntry]:
        """The next records past a number, at most `limit` of them and about `LOG_PAGE` bytes. Empty: there are none
        now."""
        ...

    async def attempt(self, run_id: str, step_id: str) -> int | None:
        """The newest attempt of a step that has records."""
        ...

    def follow(self, run_id: str, step_id: str, notify: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """As `Journal.follow`, for records of any attempt."""
        ...


# --- between servers ---------------------------------------------------------------------------------------


class Switchboard(Protocol):
    """Messages between servers that are on now. At most once: what nobody listens to is gone, and so is what was on its
    way when a connection broke. Nobody but a server can send or listen, nor pass off anything as a server's.

    An address is made of tokens, joined by dots. Messages of one sender to one address come in their order.
    """

    async def send(self, address: str, data: bytes) -> None:
        """To everybody who listens there, the sender included. It returns before anything has arrived."""
        ...

    def listen(self, address: str, take: Callable[[bytes], None]) -> AbstractAsyncContextManager[None]:
        """While it is open, `take` is called with each message. What is sent after it was opened is heard; on a
        replicated broker some moments later. `take` does not wait: it is on everybody's time."""
        ...


class Broker(Protocol):
    """Everything of one connection."""

    @property
    def partitions(self) -> int: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def mailboxes(self) -> Mailboxes: ...
    @property
    def histories(self) -> Histories: ...
    @property
    def feed(self) -> DeciderFeed: ...
    @property
    def tasks(self) -> TaskQueue: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def audit(self) -> AuditLog: ...
    @property
    def logs(self) -> RunLogs: ...
    @property
    def switchboard(self) -> Switchboard: ...

    def bucket(self, name: Bucket) -> KeyValue: ...

    def blobs(self, tenant: str = "default") -> Blobs: ...

    def partition_of(self, run_id: str) -> int: ...

    def derived_key(self, label: str) -> bytes:
        """A key of the whole cell for one use, which no worker can know; `BrokerDeniedError` for one that asks."""
        ...

    async def close(self) -> None: ...
