"""Every stream, bucket and consumer, declared once, as data, with its reason and its limits.

Two rules shape the layout.

*A stream is a trust boundary.* Permissions of NATS see subjects, not headers, and headers have powers: a schedule makes
the server publish to another subject of the same stream, a roll-up empties it, a message id makes it swallow a later
message. So what outsiders may write (`HISTORY_p`, the buckets of workers) never shares a stream with what only servers
may write (`RUN_p`), and streams that outsiders write to have neither schedules nor roll-ups.

Nor do subjects alone keep workers out: a reply subject is not checked against anybody's permissions, so that a worker
in our account could have the server's answers, or a key of its own read back, delivered to `journal.…`. Workers live
in an account of their own, from which exactly the subjects of `access.py` are imported.

*Full means refused.* A publisher that is told "full" can wait; a record that was dropped to make room is a run that
never ends. So streams discard *new*. The server does not allow that together with schedules; `RUN_p` therefore has no
bound of its own (with `discard: old` a bound would mean loss) and is bounded by the server's storage, which refuses.
Two alone let their oldest messages go: the audit log, since what happens now must be written, whoever filled it; and
what sandboxes print, of which a copy is kept elsewhere. JetStream reserves what a stream may use, so all other bounds
are shares of one budget that leave the rest to `RUN_p`.

P partitions make P `RUN_p` and P `HISTORY_p` streams. P is fixed when a cluster is made, because changing it moves runs
away from their journals; it is stored in the bucket `cluster` and compared at every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fumehood.broker import names
from fumehood.broker.ports import Bucket, LogName
from fumehood.errors import (
    BrokerDeniedError,
    BrokerFullError,
    BrokerUnavailableError,
    InvalidRequestError,
    PayloadTooLargeError,
    TopologyError,
)

if TYPE_CHECKING:
    from fumehood.broker.connection import Connection

MIB = 1024 * 1024
GIB = 1024 * MIB

TASK_STREAM = "TASK_QUEUES"
"""Named by the wire protocol."""
BLOB_STREAM = "BLOBS"
KEPT_STREAM = "KEPT"
KEPT_AGE = 30 * 86_400
"""Seconds that the ends of a sandbox's output are kept, if there is room."""
AUDIT_STREAM, AUDIT_SUBJECT = "AUDIT", "audit"
AUDIT_AGE = 90 * 86_400
"""Seconds that a line is kept: a quarter, in which most of what is looked into comes up."""
AUDIT_WINDOW = 120.0
"""Seconds in which a line that is sent again is known: a server repeats it right after an ambiguous answer."""
AUDIT_BYTES = 64 * 1024
"""Of one line: what it says about the thing that was done is cut long before."""
LOG_STREAM = "LOGS"
LOG_AGE = 7 * 86_400
"""Seconds that output is kept as it appeared, if there is room: as long as a run can be taken up again. What is kept of
it for longer is a blob; only a run that was stopped has none."""
LOG_WINDOW = 120.0
"""Seconds in which a record that is sent again is known: a node repeats it right after an ambiguous answer."""
LOG_PIECE = 64 * 1024
"""Bytes of one record."""
LOG_PAGE = MIB
"""Bytes of what is read at once, or one record more: what a reader's memory is bounded by."""
LOG_RECORDS = 16_384
"""Of one attempt: eight megabytes of each stream in pieces of a kilobyte. Beyond, its own oldest ones go."""

MAX_PAYLOAD = 2 * MIB
"""Bytes of one message. The wire protocol allows signals of 1 MiB, which grow when they are wrapped in JSON; all else
above 128 KiB travels as a blob."""

HEADER_BYTES = 4096
"""Room for the headers of a message, which a stream counts together with its content."""

BLOB_CHUNK = 128 * 1024
"""Bytes of one piece of a blob: small enough to pass between other messages, as the object store of NATS has it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Tests shorten them; a cluster does not."""

    history_window: float = 0.1
    """Duplicate window of `HISTORY_p`. A bare worker repeats the plain event id at its second attempt and anybody could
    publish it first, so the window only spares a quick resend; 0 would mean the server's default of 2 minutes.
    `test_a_history_id_is_free_again_after_the_window`"""

    run_window: float = 120.0
    """Duplicate window of `RUN_p`: a server that repeats a command after an ambiguous answer does so within it. Beyond,
    the journal's list of consumed ids takes over. `test_a_message_sent_twice_is_stored_once`"""

    task_window: float = 120.0
    """Duplicate window of the task queue: covers what a decider re-derives right after a crash. Beyond, leases do."""

    feed_ack_wait: float = 10.0
    """A decider that holds a message this long is taken for dead, and what it left half done is healed. Deciding takes
    milliseconds; an election of the brokers up to 9 s. `test_what_a_dead_decider_held_comes_again`"""

    pin_timeout: float = 3.0
    """Silence after which another decider is preferred: longer than a missed heartbeat, shorter than a person's
    patience. `test_another_decider_takes_over`"""

    task_ack_wait: float = 300.0
    """The default lease of a task. Longer work extends it, shorter work is ended by its step's timeout.
    `test_a_task_nobody_answers_comes_again_and_is_counted`"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an operator decides about a cluster."""

    partitions: int = 1
    """Fixed for ever when the cluster is made. Budget 150 to 250 five-step runs a second for each."""
    replicas: int = 1
    """1 on a laptop, 3 in production."""
    storage: int = 8 * GIB
    """Bytes that all streams together may use on each server."""
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream as the server is asked for it."""

    name: str
    subjects: tuple[str, ...]
    why: str
    share: float | None
    """Of the storage budget; None: see `RUN_p` above."""
    options: Mapping[str, Any]
    essential: bool = True
    """Whether a server can do its work only while this stream is there."""

    def config(self, shape: Shape) -> dict[str, Any]:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "description": self.why,
            "storage": "file",
            "num_replicas": shape.replicas,
            "retention": "limits",
            "max_msg_size": MAX_PAYLOAD,
            "max_bytes": -1 if self.share is None else int(self.share * shape.storage),
            "discard": "old" if self.share is None else "new",
            "max_msgs_per_subject": -1,
            "max_age": 0,
            "duplicate_window": _ns(120),
            "allow_direct": True,
            "allow_rollup_hdrs": False,
            **self.options,
        }


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A key-value bucket. All keep one value for each key: history of keys is nobody's need."""

    bucket: Bucket
    why: str
    share: float
    max_value: int = MAX_PAYLOAD - HEADER_BYTES
    """Bytes of one value. The server holds everybody to it: workers write to some of these buckets without our code."""
    max_age: int | None = None
    """Seconds that any key lives without being written again; None: for ever."""
    key_ttl: bool = False
    """Whether a key may have a TTL of its own. Without the server's expiry markers: those need roll-ups, and workers
    write to some of these buckets. Watchers compute expiry themselves. `test_a_watch_tells_expiry`"""

    @property
    def stream(self) -> str:
        return f"KV_{self.bucket}"

    def check(self, value: bytes, ttl: int | None) -> None:
        """What this bucket refuses, whatever lies below it."""
        if len(value) > self.max_value:
            raise PayloadTooLargeError(f"a value of {self.bucket} has at most {self.max_value} bytes")
        if ttl is not None and not self.key_ttl:
            raise InvalidRequestError(f"keys of {self.bucket} have no TTL of their own")
        if ttl is not None and ttl < 1:
            raise InvalidRequestError("a TTL is at least one second")
        if ttl is not None and self.max_age is not None and ttl > self.max_age:
            raise InvalidRequestError(f"keys of {self.bucket} live for {self.max_age} seconds at most")

    def spec(self) -> StreamSpec:
        age = self.max_age or 0
        options = {
            "max_msgs_per_subject": 1,
            "max_msg_size": self.max_value + HEADER_BYTES,
            "max_age": _ns(age),
            "allow_msg_ttl": True,  # every bucket: what a deletion leaves behind goes after a while
            "duplicate_window": _ns(min(120, age or 120)),  # may not be longer than the age
        }
        return StreamSpec(self.stream, (f"$KV.{self.bucket}.>",), self.why, self.share, options)


BUCKETS = (
    BucketSpec(
        Bucket.WORKERS,
        "Who is there. The wire protocol's name and TTL; each worker may write its own key only.",
        share=0.005,  # 40,000 workers of 1 KiB on the smallest cluster
        max_value=64 * 1024,
        max_age=60,
    ),
    BucketSpec(
        Bucket.LEASES,
        "Which delivery of a task counts. TTLs are the lease's, at least 15 s to outlast an election.",
        share=0.03,
        max_value=64 * 1024,
        key_ttl=True,
    ),
    BucketSpec(
        Bucket.NODE_LEASES,
        "The same for sandboxes, which only nodes take: apart, so that no worker can read or change them.",
        share=0.003,  # 40,000 on the smallest cluster, answered ones of the last minutes included
        max_value=64 * 1024,
        key_ttl=True,
    ),
    BucketSpec(
        Bucket.CHECKPOINTS,
        "What a worker wants back after a pause. The wire protocol's name and keys; deleted when the step ends.",
        share=0.05,
        max_age=30 * 86_400,  # what a crash of the deleter left behind
    ),
    BucketSpec(
        Bucket.DEFINITIONS,
        "Workflow definitions by content hash, and names that point to one.",
        share=0.02,
    ),
    BucketSpec(
        Bucket.IDEMPOTENCY,
        "Idempotency keys of starts: one atomic create decides.",
        share=0.02,
        max_value=64 * 1024,
        max_age=7 * 86_400,  # longer than any client's retries
    ),
    BucketSpec(
        Bucket.SNAPSHOTS,
        "Folded state of long runs. A projection: may be deleted and is rebuilt.",
        share=0.05,
        max_age=30 * 86_400,  # one that was written while its run ended, by a decider that was then cut off
    ),
    BucketSpec(
        Bucket.SUMMARIES,
        "One line for each run, watched by the index of every server. A projection, but for runs that were archived: "
        "there it is the only word on where the archive lies, and belongs into backups.",
        share=0.05,
        max_value=64 * 1024,
    ),
    BucketSpec(
        Bucket.LOCKS,
        "Who holds a concurrency key, and who waits for it. Healed from the runs themselves.",
        share=0.01,
        max_value=256 * 1024,
    ),
    BucketSpec(
        Bucket.RATES,
        "Limits of task types, and up to when each is used.",
        share=0.001,
        max_value=64 * 1024,
    ),
    BucketSpec(
        Bucket.SCHEDULES,
        "What is to be started when, and up to when that was done.",
        share=0.005,
        max_value=256 * 1024,
    ),
    BucketSpec(
        Bucket.KEYS,
        "API keys by id, as hashes, and what tenants may use. Watched by every server, so that a revocation counts at "
        "once.",
        share=0.005,
        max_value=64 * 1024,
    ),
    BucketSpec(
        Bucket.CREDENTIALS,
        "Workers that may dial in, with the public halves of their keys. Watched by every server, so that a revocation "
        "counts at once.",
        share=0.001,  # 10,000 workers on the smallest cluster
        max_value=16 * 1024,
    ),
    BucketSpec(
        Bucket.CONSOLE,
        "Which server holds whose stream, and the nonces of the last minutes: one atomic create decides.",
        share=0.003,
        max_value=64 * 1024,
        max_age=3600,  # every key has a shorter TTL of its own; this is for one that was written without
        key_ttl=True,
    ),
    BucketSpec(
        Bucket.SESSIONS,
        "Which worker keeps a session, and for how long. A projection of what workers say; TTLs are the leases'.",
        share=0.004,  # 50,000 on the smallest cluster
        max_value=16 * 1024,
        max_age=86_400,
        key_ttl=True,
    ),
    BucketSpec(
        Bucket.COMMANDS,
        "What became of a command for a worker: asked for, dispatched, ended. Kept for a while after its end.",
        share=0.02,  # 400,000 on the smallest cluster: 100 a second, for an hour each
        max_age=86_400,
        key_ttl=True,
    ),
    BucketSpec(
        Bucket.PROVIDERS,
        "How often each provider of jobs was right, and which were set aside. Written by servers; a provider may read "
        "its own.",
        share=0.001,  # 1,000 providers on the smallest cluster
        max_value=64 * 1024,
    ),
    BucketSpec(
        Bucket.RECEIPT_KEYS,
        "The keys that receipts are checked with, signed by their root: one value, which belongs into backups.",
        share=0.001,  # 8 MiB on the smallest cluster, of which it uses two
    ),
    BucketSpec(
        Bucket.CLUSTER,
        "What was fixed when the cluster was made: the number of partitions.",
        share=0.001,
        max_value=64 * 1024,
    ),
)
BUCKET_SPECS = {spec.bucket: spec for spec in BUCKETS}


def _ns(seconds: float) -> int:
    return round(seconds * 1_000_000_000)


# --- subjects and streams of partitions --------------------------------------------------------------------


def run_stream(partition: int) -> str:
    return f"RUN_{partition}"


def history_stream(partition: int) -> str:
    return f"HISTORY_{partition}"


def journal_subject(partition: int, run_id: str) -> str:
    return f"journal.{partition}.{names.token(run_id, 'a run id')}"


def journal_filter(partition: int) -> str:
    """The journals of all runs of a partition."""
    return f"journal.{partition}.*"


def inbox_subject(partition: int, run_id: str) -> str:
    return f"inbox.{partition}.{names.token(run_id, 'a run id')}"


def history_subject(run_id: str) -> str:
    """What workers publish to; the server maps it to `history.{p}.{run}`."""
    return f"history.{names.token(run_id, 'a run id')}"


def timer_subject(partition: int, run_id: str, timer_id: str) -> str:
    return f"timer.{partition}.{names.token(run_id, 'a run id')}.{names.token(timer_id, 'a timer id')}"


def switch_subject(address: str) -> str:
    """Stored nowhere."""
    return f"switch.{names.key(address)}"


def journal_news(partition: int) -> str:
    """The subject on which the broker announces new records of a partition's journals."""
    return f"news.journal.{partition}"


def log_subject(name: LogName) -> str:
    return f"{_log_subjects(name.run_id, name.step_id)}.{_attempt(name.attempt)}"


def log_filter(run_id: str, step_id: str) -> str:
    """All attempts of a step."""
    return f"{_log_subjects(run_id, step_id)}.*"


def log_news(run_id: str, step_id: str) -> str:
    """The subject on which the broker announces new output of a step."""
    return f"news.{_log_subjects(run_id, step_id)}"


def _log_subjects(run_id: str, step_id: str) -> str:
    return f"log.{names.token(run_id, 'a run id')}.{names.token(step_id, 'a step id')}"


def _attempt(number: int) -> int:
    if not 1 <= number <= 1_000_000:
        raise InvalidRequestError("an attempt is a number from 1 to 1000000")
    return number


def _republished(source: str, destination: str) -> dict[str, Any]:
    """Followers listen to a subject of their own. If they listened to the source, the broker would no longer tell a
    publisher at once that no stream takes its message; the publisher would wait for its whole timeout.
    `test_a_record_that_no_stream_takes_is_refused_at_once_while_it_is_followed`"""
    return {"src": source, "dest": destination, "headers_only": True}


def partition_streams(partition: int, shape: Shape) -> tuple[StreamSpec, StreamSpec]:
    p, timing = partition, shape.timing
    run = StreamSpec(
        run_stream(p),
        (f"journal.{p}.*", f"inbox.{p}.*", f"timer.{p}.*.*"),
        "What servers write about runs: decisions, messages, timers. One stream, because a schedule can only publish "
        "within its own, and an atomic batch too.",
        None,
        {
            "allow_msg_schedules": True,
            "allow_rollup_hdrs": True,  # comes with schedules; nobody but servers can publish here
            "allow_atomic": True,
            "duplicate_window": _ns(timing.run_window),
            "republish": _republished(journal_filter(p), journal_news(p)),
            # No age: it would delete timers that are pending. Runs are purged when they are archived.
        },
    )
    history = StreamSpec(
        history_stream(p),
        (f"history.{p}.*",),
        "What workers claim. Apart from what servers write, and without schedules, roll-ups, batches or TTLs.",
        0.1 / shape.partitions,
        {
            # A claim is needed until a decider has taken it into the journal. Acks of a work queue also survive a
            # crash of the server, those of other streams on one replica may not.
            "retention": "workqueue",
            "duplicate_window": _ns(timing.history_window),
        },
    )
    return run, history


def shared_streams(shape: Shape) -> tuple[StreamSpec, ...]:
    tasks = StreamSpec(
        TASK_STREAM,
        ("task.>",),
        "Work for workers, gone when acked. One consumer for each task type.",
        0.08,
        {
            "retention": "workqueue",
            "max_consumers": 10_000,  # one for each task type; the server's own default stops at 1,000
            "duplicate_window": _ns(shape.timing.task_window),
        },
    )
    blobs = StreamSpec(
        BLOB_STREAM,
        ("blob.*.*.*",),
        "Content by hash, in pieces. A piece is written once: what a hash names never changes.",
        0.15,
        {"max_msgs_per_subject": 1, "discard_new_per_subject": True},
    )
    kept = StreamSpec(
        KEPT_STREAM,
        (f"kept.{names.NODES_TENANT}.*.*",),
        "The ends of what sandboxes printed, as blobs. The oldest go when room is needed: no answer waits for it.",
        0.03,  # 240 MiB on the smallest cluster: at least 80 sandboxes, if each printed all that is kept of one
        {"max_msgs_per_subject": 1, "discard": "old", "max_age": _ns(KEPT_AGE)},
    )
    audit = StreamSpec(
        AUDIT_STREAM,
        (AUDIT_SUBJECT,),
        "Who did what. Servers only, and nobody takes a line away again: its age does, or newer lines that need room.",
        0.02,  # 300,000 lines of 500 bytes on the smallest cluster
        {
            "discard": "old",
            "max_age": _ns(AUDIT_AGE),
            "max_msg_size": AUDIT_BYTES + HEADER_BYTES,
            "duplicate_window": _ns(AUDIT_WINDOW),
            "deny_delete": True,
            "deny_purge": True,
        },
    )
    logs = StreamSpec(
        LOG_STREAM,
        ("log.*.*.*",),
        "What sandboxes print, as it appears. On one server, whichever that is: it is much, nothing is decided by it, "
        "and what is kept of it lies in a blob.",
        0.03,  # 240 MiB on the smallest cluster: some 15 sandboxes that print all they may
        {
            "num_replicas": 1,
            "discard": "old",
            "max_age": _ns(LOG_AGE),
            "max_msg_size": LOG_PIECE + HEADER_BYTES,
            "max_msgs_per_subject": LOG_RECORDS,
            "duplicate_window": _ns(LOG_WINDOW),
            "republish": _republished("log.*.*.*", "news.log.{{wildcard(1)}}.{{wildcard(2)}}"),
        },
        essential=False,
    )
    return (tasks, blobs, kept, audit, logs, *(bucket.spec() for bucket in BUCKETS))


def streams(shape: Shape) -> tuple[StreamSpec, ...]:
    """All of them."""
    partitions = (spec for p in range(shape.partitions) for spec in partition_streams(p, shape))
    return (*shared_streams(shape), *partitions)


# --- consumers ---------------------------------------------------------------------------------------------

DECIDERS = "deciders"
"""The consumer of each partition's two streams, and its priority group."""


def feed_consumer(filter_subject: str, timing: Timing) -> dict[str, Any]:
    return {
        "name": DECIDERS,
        "durable_name": DECIDERS,
        "filter_subject": filter_subject,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": _ns(timing.feed_ack_wait),
        "max_deliver": -1,  # a message is answered or comes again, for ever: nothing is dropped silently
        "max_ack_pending": 8192,  # above what all deciders of a partition fetch ahead, below what hurts to redeliver
        "max_waiting": 512,
        "priority_groups": [DECIDERS],
        "priority_policy": "pinned_client",
        "priority_timeout": _ns(timing.pin_timeout),
    }


def task_consumer(kind: str, timing: Timing) -> dict[str, Any]:
    return {
        "name": names.consumer_of(kind),
        "durable_name": names.consumer_of(kind),
        "filter_subject": names.task_filter(kind),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": _ns(timing.task_ack_wait),
        "max_deliver": -1,  # a message past it would stay in the queue unseen; `deliveries` lets us end poison
        "max_ack_pending": 65_536,  # tasks of one type in flight; the server's default of 1,000 would stall a fan-out
        "max_waiting": 4096,  # polls of one type that wait at once, over all bridges and workers
    }


# --- making it so ------------------------------------------------------------------------------------------

_NOT_FOUND = 10059
_EXISTS = (10058, 10148)
_IMMUTABLE = frozenset({"storage", "retention", "subjects"})
_SLOW = 10.0
"""Seconds for one change of the topology: making a replicated stream waits for an election."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Something on the server is not as declared here."""

    stream: str
    setting: str
    declared: object
    found: object


@dataclass(frozen=True, slots=True)
class Report:
    created: tuple[str, ...]
    drift: tuple[Drift, ...]


async def ensure(connection: Connection, shape: Shape) -> Report:
    """Make what is missing, touch nothing that exists (but for `_is_ours_to_set`), and tell what differs. A stream
    that is not essential and cannot be reached now is told, too.

    Raises `TopologyError` where going on would lose data: another number of partitions in the server's mapping, or a
    stream of another kind.
    """
    await _check_mapping(connection, shape.partitions)
    created: list[str] = []
    drift: list[Drift] = []
    for spec in streams(shape):
        made, differs = await _ensured(connection, spec, shape)
        created += [spec.name] if made else []
        drift += differs
    for p in range(shape.partitions):
        for stream, subject in ((run_stream(p), f"inbox.{p}.*"), (history_stream(p), f"history.{p}.*")):
            config = feed_consumer(subject, shape.timing)
            drift += await connection.retrying(lambda s=stream, c=config: ensure_consumer(connection, s, c))  # type: ignore[misc]
    return Report(tuple(created), tuple(drift))


async def _ensured(connection: Connection, spec: StreamSpec, shape: Shape) -> tuple[bool, list[Drift]]:
    try:
        return await connection.retrying(lambda: _ensure_stream(connection, spec, shape))
    except (BrokerUnavailableError, BrokerFullError, _refusal()):
        if spec.essential:
            raise
        return False, [Drift(spec.name, "state", "online", "unavailable")]


async def _ensure_stream(connection: Connection, spec: StreamSpec, shape: Shape) -> tuple[bool, list[Drift]]:
    declared = spec.config(shape)
    try:
        found = (await connection.api(f"STREAM.INFO.{spec.name}"))["config"]
    except _refusal() as refusal:
        if refusal.number != _NOT_FOUND:
            raise
        await connection.api(f"STREAM.CREATE.{spec.name}", declared, timeout=_SLOW)
        return True, []
    drift = _differences(spec.name, declared, found)
    kind = [one.setting for one in drift if one.setting in _IMMUTABLE]
    if kind:
        raise TopologyError(f"stream {spec.name} exists with another {', '.join(kind)}")
    return False, await _brought_up_to_date(connection, found, drift)


async def _brought_up_to_date(connection: Connection, found: Mapping[str, Any], drift: list[Drift]) -> list[Drift]:
    """Set what is ours to set, and return what is left. Whoever may not change streams is only told."""
    changes = {one.setting: one.declared for one in drift if _is_ours_to_set(one)}
    if not changes:
        return drift
    try:
        await connection.api(f"STREAM.UPDATE.{found['name']}", {**found, **changes})
    except (BrokerDeniedError, _refusal()):
        return drift
    return [one for one in drift if one.setting not in changes]


def _is_ours_to_set(one: Drift) -> bool:
    """A bound of ours against strangers, and notifications where there are none or those of another version: nothing
    that is stored is lost. Everything else is an operator's to change."""
    if one.setting == "republish":
        return not isinstance(one.found, dict) or str(one.found.get("dest")).startswith("news.")
    return one.setting == "max_msg_size"


def _refusal() -> Any:
    """Imported late: this module's data is used where `nats` is not installed."""
    from fumehood.broker.connection import ApiRefusalError

    return ApiRefusalError


def _differences(name: str, declared: Mapping[str, Any], found: Mapping[str, Any]) -> list[Drift]:
    return [
        Drift(name, setting, value, found.get(setting))
        for setting, value in declared.items()
        if setting != "description" and found.get(setting, _absent(value)) != value
    ]


def _absent(value: object) -> object:
    """The server leaves out what is zero or false."""
    return type(value)() if isinstance(value, bool | int | str | list) else None


async def ensure_consumer(connection: Connection, stream: str, config: Mapping[str, Any]) -> list[Drift]:
    """Make a consumer, or compare the one that has its name."""
    name = config["name"]
    body = {"stream_name": stream, "config": config, "action": "create"}
    try:
        await connection.api(f"CONSUMER.CREATE.{stream}.{name}.{config['filter_subject']}", body, timeout=_SLOW)
    except _refusal() as refusal:
        if refusal.number not in _EXISTS:
            raise
        found = (await connection.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        return _differences(f"{stream}/{name}", config, found)
    return []


PROBE = "fumehood.partition"
"""Mapped like the subjects of runs, and stored nowhere: shows which mapping the server really has."""


async def _check_mapping(connection: Connection, partitions: int) -> None:
    """The server must map runs to the partitions that we compute."""
    wanted = {f"probe-{n}": names.partition_of(f"probe-{n}", partitions) for n in range(16)}
    seen: dict[str, str] = {}
    complete = asyncio.Event()

    def take(message: Any) -> None:
        seen[message.subject.rpartition(".")[2]] = message.subject
        if len(seen) == len(wanted):
            complete.set()

    subscription = await connection.subscribe(f"{PROBE}.>", take)
    try:
        for run_id in wanted:
            await connection.publish(f"{PROBE}.{run_id}")
        async with asyncio.timeout(connection.options.request_timeout):
            await complete.wait()
    except TimeoutError:
        raise BrokerUnavailableError("the server's mapping could not be looked at in time") from None
    finally:
        await connection.unsubscribe(subscription)
    if seen != {run_id: f"{PROBE}.{p}.{run_id}" for run_id, p in wanted.items()}:
        raise TopologyError(f"the server does not map runs to {partitions} partitions: use its generated configuration")
