"""A lease: which delivery of a task counts. Values and rules; no I/O.

There is one lease for each step of a run (`{run}.{step}` in the bucket `leases`, of a sandbox in `node_leases`), not
one for each attempt: whoever answers names only the task, and older attempts are known by their numbers without looking
for them. All changes are compare-and-set on the key's revision.

A lease outlives its time in the bucket, so that it can be counted how often a task was taken and never answered; past
`POISON` the attempt fails. JetStream's own count of deliveries says nothing about that: it also counts tasks that were
given back untouched.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from fumehood.broker import names
from fumehood.broker.ports import KvEntry, TaskDelivery
from fumehood.errors import InvalidRequestError
from fumehood.wire.protocol import TaskPayload

DEFAULT_SECONDS = 300
"""How long a task is a worker's before it must be heard of again, where its step has no `timeout`."""
POISON = 5
"""Leases without an answer. A task that kills every worker that takes it must not go round for ever."""
REMEMBERED_SECONDS = 3600
"""How long past its time a lease is kept, so that it is counted."""
DONE_SECONDS = 900
"""How long an answered lease is kept: a copy of its task may still lie in the queue, and a client may repeat itself."""
LONGEST_SECONDS = 366 * 86_400
"""What a step's `timeout` can ask for."""
REVOKED = "revoked"
"""The outcome of a lease that the engine ended."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's hold on one attempt and iteration of a step."""

    run_id: str
    step_id: str
    attempt: int
    iteration: int
    resumption: int
    lease_id: str
    task_type: str
    worker_id: str
    token: str
    """Answers the delivery, from any connection."""
    seq: int
    """Which stored message was delivered: a copy of the task is another one."""
    seconds: int
    expires_ms: int
    count: int = 1
    """How many times this attempt was taken, this one included."""
    checkpointed: bool = False
    outcome: str | None = None
    """What was answered; `None` while it is held."""
    begun_ms: int = 0
    """When the work itself began, where its holder says so: to have a sandbox's task is not to run it."""
    revision: int = 0
    """Of the key; not part of the value."""
    proof: str | None = field(default=None, compare=False, repr=False)
    """The task's own, in its holder's memory: not part of the value, since others may read that."""

    @property
    def key(self) -> str:
        return key(self.run_id, self.step_id)

    @property
    def task_id(self) -> str:
        return f"{self.run_id}.{self.step_id}"

    @property
    def age(self) -> tuple[int, int, int]:
        """Grows with every hand-out of a step by the engine."""
        return (self.attempt, self.iteration, self.resumption)

    @property
    def held(self) -> bool:
        return self.outcome is None

    @property
    def ttl(self) -> int:
        return self.seconds + REMEMBERED_SECONDS if self.held else DONE_SECONDS

    def extended(self, now_ms: int) -> Lease:
        return replace(self, expires_ms=now_ms + self.seconds * 1000)

    def revoked(self) -> Lease:
        """What is left of it when the engine takes the task back: what names it, and nothing that was said with it."""
        return replace(self, worker_id="", token="", seconds=1, expires_ms=0, count=1, outcome=REVOKED)

    def encode(self) -> bytes:
        fields = asdict(self)
        del fields["revision"], fields["proof"]
        if not self.begun_ms:
            del fields["begun_ms"]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, entry: KvEntry) -> Lease | None:
        """`None` for what is no lease: any worker, or any node, may write to its bucket."""
        try:
            fields = json.loads(entry.value)
            lease = cls(**{**fields, "revision": entry.revision, "proof": None})
        except (ValueError, TypeError, RecursionError):
            return None
        sane = (
            all(_is_text(fields.get(name), longest) for name, longest in _TEXTS.items())
            and all(_is_number(fields.get(name), *bounds) for name, bounds in _NUMBERS.items())
            and _is_number(lease.begun_ms, 0, _MOST)
            and type(fields.get("checkpointed")) is bool
            and (lease.outcome is None or _is_text(lease.outcome, 64))
        )
        return lease if sane and lease.key == entry.key and _is_of_its_type(lease) else None


_TEXTS = {**dict.fromkeys(("run_id", "step_id", "task_type", "worker_id", "lease_id"), 128), "token": 1024}
"""How long each text of a stored lease may be."""
_MOST = 2**53
_NUMBERS = {
    **dict.fromkeys(("attempt", "iteration", "resumption"), (0, 1_000_000)),
    "seq": (0, _MOST),
    "seconds": (1, LONGEST_SECONDS),
    "expires_ms": (0, _MOST),
    "count": (0, 1000),
}
"""From where to where each number may go: beyond it lie errors of arithmetic, in other people's workers."""
_PUBLISHED = "task-"
"""How the consumers of `names.consumer_of` begin."""
_CONSUMER = re.compile(r"\$JS\.ACK\.(?:[^.]+\.[^.]+\.)?[^.]+\.([^.]+)(?:\.\d+){5}(?:\.\w+)?")


def _is_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest


def _is_number(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_of_its_type(lease: Lease) -> bool:
    """Whether the token may be one of the lease's own task type. A bridge acks what a lease names, so one whose token
    names the published consumer of another type is no lease. Consumers that others made have any name: they pass."""
    consumer = _CONSUMER.fullmatch(lease.token)
    if consumer is None or not consumer[1].startswith(_PUBLISHED):
        return True
    try:
        return consumer[1] == names.consumer_of(lease.task_type)
    except InvalidRequestError:
        return False


def key(run_id: str, step_id: str) -> str:
    return f"{run_id}.{step_id}"


class Verdict(Enum):
    """What becomes of a task that came out of the queue."""

    GRANT = "grant"
    DROP = "drop"
    """A copy, or answered, or older than what was handed out since: off the queue with it."""
    LATER = "later"
    """Its holder still has time, only the queue's own patience ended."""
    POISON = "poison"


def judge(lease: Lease | None, task: TaskPayload, seq: int, now_ms: int) -> Verdict:
    """May this task, stored under this number, be handed out?"""
    if lease is None:
        return Verdict.GRANT
    age = age_of(task)
    if age != lease.age:
        return Verdict.GRANT if age > lease.age else Verdict.DROP
    if not lease.held:
        return Verdict.DROP
    if now_ms < lease.expires_ms:
        return Verdict.LATER if lease.seq == seq else Verdict.DROP
    return Verdict.GRANT if lease.count < POISON else Verdict.POISON


def granted(lease: Lease | None, task: TaskPayload, delivery: TaskDelivery, **given: Any) -> Lease:
    """The new lease. `given`: lease_id, worker_id, now_ms, seconds."""
    again = lease is not None and lease.age == age_of(task)
    return Lease(
        run_id=task.run_id,
        step_id=task.step_id,
        attempt=task.attempt,
        iteration=task.iteration,
        resumption=task.resumption or 0,
        lease_id=given["lease_id"],
        task_type=delivery.task_type,
        worker_id=given["worker_id"],
        token=delivery.token,
        seq=delivery.seq,
        seconds=given["seconds"],
        expires_ms=given["now_ms"] + given["seconds"] * 1000,
        count=lease.count + 1 if again and lease is not None else 1,
        checkpointed=lease is not None and lease.checkpointed,
        revision=lease.revision if lease is not None else 0,
        proof=task.proof,
    )


def seconds_of(task: TaskPayload, default: int) -> int:
    """How long a task is its worker's: as long as its attempt may take."""
    wanted = -(-task.timeout_ms // 1000) if task.timeout_ms is not None else default
    return min(max(1, wanted), LONGEST_SECONDS)


def age_of(task: TaskPayload) -> tuple[int, int, int]:
    return (task.attempt, task.iteration, task.resumption or 0)
