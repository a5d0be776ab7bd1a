"""The rules of leases, without any broker: which delivery of a task counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.lease import POISON, REVOKED, Lease, Verdict, age_of, granted, judge, seconds_of
from fumehood.broker.ports import KvEntry, TaskDelivery
from fumehood.wire.protocol import TaskPayload

NUMBERS = st.integers(0, 3)
AGES = st.tuples(NUMBERS, NUMBERS, NUMBERS)


def a_task(age: tuple[int, int, int] = (1, 0, 0), timeout_ms: int | None = None) -> TaskPayload:
    attempt, iteration, resumption = age
    return TaskPayload(
        task_id="run.step",
        run_id="run",
        step_id="step",
        attempt=attempt,
        iteration=iteration,
        resumption=resumption or None,
        timeout_ms=timeout_ms,
    )


def a_delivery(seq: int = 1) -> TaskDelivery:
    return TaskDelivery("llm", "run", "id", b"", {}, f"token-{seq}", 1, seq)


def a_lease(**changes: Any) -> Lease:
    made = Lease("run", "step", 1, 0, 0, "lease", "llm", "worker", "token-1", 1, 10, 10_000)
    return replace(made, **changes)


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    attempt, iteration, resumption = draw(AGES)
    return a_lease(
        attempt=attempt,
        iteration=iteration,
        resumption=resumption,
        seq=draw(st.integers(1, 3)),
        expires_ms=draw(st.integers(0, 20)),
        count=draw(st.integers(0, POISON)),
        outcome=draw(st.none() | st.just("step.completed")),
    )


def grant(lease: Lease | None, task: TaskPayload, seq: int = 1, now_ms: int = 0) -> Lease:
    seconds = seconds_of(task, 300)
    return granted(lease, task, a_delivery(seq), lease_id="new", worker_id="worker", now_ms=now_ms, seconds=seconds)


def test_a_task_that_nobody_has_is_granted() -> None:
    assert judge(None, a_task(), 1, 0) is Verdict.GRANT


@given(leases(), AGES, st.integers(1, 3), st.integers(0, 20))
def test_a_newer_task_is_always_granted_and_an_older_one_never(
    lease: Lease, age: tuple[int, int, int], seq: int, now: int
) -> None:
    verdict = judge(lease, a_task(age), seq, now)
    if age > lease.age:
        assert verdict is Verdict.GRANT
    if age < lease.age:
        assert verdict is Verdict.DROP


@given(leases(), st.integers(1, 3), st.integers(0, 20))
def test_the_same_task_again_is_granted_only_when_its_time_is_over_and_it_is_not_poison(
    lease: Lease, seq: int, now: int
) -> None:
    verdict = judge(lease, a_task(lease.age), seq, now)
    if lease.outcome is not None:
        assert verdict is Verdict.DROP
    elif now < lease.expires_ms:
        assert verdict is (Verdict.LATER if seq == lease.seq else Verdict.DROP)
    else:
        assert verdict is (Verdict.GRANT if lease.count < POISON else Verdict.POISON)


@given(st.lists(st.sampled_from(["retry", "continue", "pause"]), max_size=12))
def test_however_an_engine_hands_a_step_out_again_each_hand_out_is_newer_than_all_before(steps: list[str]) -> None:
    """As the engine counts: attempts and iterations only grow, resumptions begin anew with either."""
    ages = [(1, 0, 0)]
    for step in steps:
        attempt, iteration, resumption = ages[-1]
        ages.append(
            {
                "retry": (attempt + 1, iteration, 0),
                "continue": (attempt, iteration + 1, 0),
                "pause": (attempt, iteration, resumption + 1),
            }[step]
        )
    held: Lease | None = None
    for number, age in enumerate(ages):
        assert judge(held, a_task(age), number, 0) is Verdict.GRANT
        held = grant(held, a_task(age), number)
        assert all(judge(held, a_task(old), n, 10**9) is Verdict.DROP for n, old in enumerate(ages[:number]))


@given(leases(), AGES)
def test_only_the_same_attempt_taken_again_is_counted(lease: Lease, age: tuple[int, int, int]) -> None:
    made = grant(lease, a_task(age))
    assert made.count == (lease.count + 1 if age == lease.age else 1)
    assert made.age == age == age_of(a_task(age))
    assert made.held


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(None, 300), (1, 1), (1000, 1), (1001, 2), (60_000, 60)])
def test_lease_time_is_the_steps_timeout_in_whole_seconds_else_five_minutes(
    timeout_ms: int | None, seconds: int
) -> None:
    made = grant(None, a_task(timeout_ms=timeout_ms), now_ms=500)
    assert (made.seconds, made.expires_ms) == (seconds, 500 + seconds * 1000)
    assert made.ttl > seconds
    assert made.extended(9_000).expires_ms == 9_000 + seconds * 1000


def test_that_there_is_a_checkpoint_is_passed_on() -> None:
    assert grant(a_lease(checkpointed=True), a_task((2, 0, 0))).checkpointed


@given(leases())
def test_a_lease_is_read_back_as_it_was_written(lease: Lease) -> None:
    assert Lease.decode(KvEntry("run.step", lease.encode(), 7)) == replace(lease, revision=7)


@given(
    st.binary(max_size=40)
    | st.dictionaries(st.text(max_size=4), st.integers(), max_size=3).map(lambda value: json.dumps(value).encode())
)
def test_what_is_no_lease_is_none_and_never_an_error(data: bytes) -> None:
    assert Lease.decode(KvEntry("run.step", data, 7)) is None


JUNK: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.integers(), max_size=1)
    | st.just({})
)


@given(st.sampled_from(sorted(json.loads(a_lease().encode()))), JUNK)
def test_a_lease_with_one_wrong_field_is_none(name: str, junk: Any) -> None:
    """Any worker may write to this bucket: a number where a text should be must not reach anybody."""
    fields = json.loads(a_lease().encode())
    allowed = (name == "checkpointed" and isinstance(junk, bool)) or (name == "outcome" and junk is None)
    found = Lease.decode(KvEntry("run.step", json.dumps(fields | {name: junk}).encode(), 7))
    assert (found is not None) == allowed


WHOLE = json.loads(a_lease().encode())
NUMBERED = sorted(name for name, value in WHOLE.items() if type(value) is int)
NAMED = sorted(name for name, value in WHOLE.items() if isinstance(value, str))


@given(st.sampled_from(NUMBERED), st.integers(max_value=-1) | st.integers(min_value=2**54) | st.just(10**400))
def test_a_number_out_of_bounds_makes_it_no_lease(name: str, number: int) -> None:
    """What is read here is computed with, in everybody's worker."""
    assert Lease.decode(KvEntry("run.step", json.dumps(WHOLE | {name: number}).encode(), 7)) is None


@pytest.mark.parametrize("name", [*NAMED, "outcome"])
def test_a_text_without_end_makes_it_no_lease(name: str) -> None:
    assert Lease.decode(KvEntry("run.step", json.dumps(WHOLE | {name: "x" * 2000}).encode(), 7)) is None


@pytest.mark.parametrize("timeout_ms", [10**15, 10**30])
def test_no_timeout_makes_a_lease_that_could_not_be_read_back(timeout_ms: int) -> None:
    made = grant(None, a_task(timeout_ms=timeout_ms), now_ms=1_800_000_000_000)
    assert Lease.decode(KvEntry("run.step", made.encode(), 0)) == made


@given(leases())
def test_a_revoked_lease_is_small_and_read_back_and_says_nothing_of_its_holders(lease: Lease) -> None:
    revoked = replace(lease, token="t" * 1000, worker_id="w" * 100).revoked()
    found = Lease.decode(KvEntry("run.step", revoked.encode(), 0))
    assert found == revoked
    assert (found.outcome, found.token, found.worker_id, found.age) == (REVOKED, "", "", lease.age)
    assert found.checkpointed == lease.checkpointed


@pytest.mark.parametrize(
    ("task_type", "consumer", "counts"),
    [
        ("llm", "task-llm", True),
        ("llm", "task-other", False),
        ("llm", "task-llm=2Ebig", False),
        ("llm.big", "task-llm=2Ebig", True),
        ("not a type", "task-other", False),
        ("llm", "my-own", True),
    ],
)
@pytest.mark.parametrize("place", ["", "hub.abc123."])
def test_a_lease_that_names_another_types_delivery_is_none(
    task_type: str, consumer: str, counts: bool, place: str
) -> None:
    """Whoever answers for a worker acks what the lease names, with more rights than the worker has."""
    token = f"$JS.ACK.{place}TASK_QUEUES.{consumer}.1.2.3.4.5"
    lease = a_lease(task_type=task_type, token=token)
    assert (Lease.decode(KvEntry("run.step", lease.encode(), 0)) is not None) == counts


def test_a_lease_under_another_tasks_key_is_none() -> None:
    assert Lease.decode(KvEntry("run.other", a_lease().encode(), 7)) is None
