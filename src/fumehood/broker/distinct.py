"""Tasks of one run that no worker may have two of: which of them a worker has its place at.

A place is one key for a worker and a group of tasks, created before the lease. A worker leaves its place when it has
the task no more and did not complete it. Where nobody can tell any more, it stays: a worker too few is noticed, one
that counts twice is not.
"""

from __future__ import annotations

import random

from fumehood.broker.lease import Lease, age_of, seconds_of
from fumehood.broker.lease import key as lease_key
from fumehood.broker.ports import KeyValue
from fumehood.errors import InvalidRequestError, KeyConflictError
from fumehood.wire.protocol import EventType, TaskPayload

SHORTEST_SECONDS, LONGEST_SECONDS = 2 * 3600, 7 * 86_400
"""How long a place is remembered, at least and at most: in between it is several times what its task may take. Beyond
it a worker might get a second one, which whoever counts the answers finds."""
TRIES = 5
SOON_SECONDS, LATE_SECONDS = 0.05, 2.0


def place_key(run_id: str, group: str, worker_id: str) -> str:
    """No step has such an id: there, two dashes stand before a number."""
    return lease_key(run_id, f"{group}--by--{worker_id}")


def place_seconds(task: TaskPayload) -> int:
    takes = seconds_of(task, SHORTEST_SECONDS)
    return min(SHORTEST_SECONDS + 4 * takes, LONGEST_SECONDS)


def again_seconds(deliveries: int) -> float:
    """When a task is offered again that this worker may not have: at once to others, later where there are none.

    Random, like the length of the pulls: with a fixed delay that is as long as a pull, the task came back to the same
    worker each time, for minutes, while another one waited for it.
    """
    return min(SOON_SECONDS * 2.0 ** min(deliveries, 10), LATE_SECONDS) * random.uniform(0.5, 1.0)


async def take_place(bucket: KeyValue, task: TaskPayload, worker_id: str, now_ms: int) -> bool:
    """Whether the worker may have the task; if so, it has its place there now."""
    assert task.distinct is not None
    key, mine = place_key(task.run_id, task.distinct, worker_id), _place(task.step_id, age_of(task))
    for _ in range(TRIES):
        entry = await bucket.get(key)
        try:
            if entry is None:
                await bucket.create(key, mine, ttl=place_seconds(task))
                return True
            if entry.value == mine:
                return True
            if not await _has_left(bucket, task, entry.value, worker_id, now_ms):
                return False
            await bucket.update(key, mine, revision=entry.revision, ttl=place_seconds(task))
        except KeyConflictError:
            continue
        return True
    return False


def _place(step_id: str, age: tuple[int, int, int]) -> bytes:
    """With the hand-out: the lease of an earlier one says nothing of who is about to have this one."""
    return " ".join((step_id, *map(str, age))).encode()


async def _has_left(bucket: KeyValue, task: TaskPayload, place: bytes, worker_id: str, now_ms: int) -> bool:
    """Whether what the place is at is surely not this worker's: another hand-out of the same task, or others have it,
    or it failed there. What is no place was written by a stranger."""
    try:
        step_id, *numbers = place.decode().split(" ")
        age = tuple(map(int, numbers))
        if step_id == task.step_id:
            return age < age_of(task)
        entry = await bucket.get(lease_key(task.run_id, step_id))
    except (ValueError, InvalidRequestError):
        return False
    lease = Lease.decode(entry) if entry is not None else None
    if lease is None or lease.age < age:
        return False
    if lease.worker_id != worker_id:
        return True
    if lease.held:
        return now_ms >= lease.expires_ms
    return lease.outcome != EventType.COMPLETED
