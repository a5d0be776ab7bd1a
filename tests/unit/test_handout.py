"""Handing out and answering over the in-memory broker, with every call failing at its worst moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.clock import ManualClock
from fumehood.broker.handout import LARGEST_SIGNAL, Handouts, Leased
from fumehood.broker.lease import POISON
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.errors import (
    BrokerError,
    BrokerUnavailableError,
    InvalidRequestError,
    LeaseLostError,
    NotFoundError,
    PayloadTooLargeError,
)
from fumehood.wire.protocol import StepEvent, TaskPayload

TASK = "run.step"


class Script(Faults):
    """The named calls go wrong, each once, in the named way."""

    def __init__(self) -> None:
        self.wrong: dict[str, Verdict] = {}
        self.asked: list[str] = []

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked.append(operation)
        return self.wrong.pop(operation, Verdict.OK)


class Hall:
    """A broker, a clock that stands still, and as many processes as a test needs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.calm = MemoryBroker(self.server)
        self.faults = Script()
        self.handouts = self.process(self.faults)

    def process(self, faults: Faults | None = None, **options: Any) -> Handouts:
        broker = MemoryBroker(self.server, faults=faults or Faults())
        return Handouts(broker, now_ms=lambda: int(self.clock.now() * 1000), **options)

    async def hand_out(self, number: str = "1", run_id: str = "run", **fields: Any) -> None:
        task = TaskPayload(task_id=f"{run_id}.step", run_id=run_id, step_id="step", **fields)
        await self.calm.tasks.publish("llm", run_id, number, task.encode())

    async def take(self, handouts: Handouts | None = None, worker_id: str = "worker", **more: Any) -> list[Leased]:
        options: dict[str, Any] = {"max_tasks": 8, "timeout": 0.0, "worker_id": worker_id, **more}
        return await (handouts or self.handouts).take(["llm"], **options)

    async def take_one(self, handouts: Handouts | None = None, **more: Any) -> Leased:
        (one,) = await self.take(handouts, **more)
        return one

    async def said(self, run_id: str = "run") -> list[StepEvent]:
        """Everything on the run's history that is not a start, so far."""
        log = self.server.histories[0].of(run_id)
        events = [StepEvent.model_validate_json(message.data) for message in log]
        return [event for event in events if event.type.value != "step.started"]

    async def types(self) -> list[str]:
        return [event.type.value for event in await self.said()]

    def waiting(self) -> int:
        return len(self.server.tasks.messages)

    async def checkpoint(self) -> Any:
        entry = await self.calm.bucket(Bucket.CHECKPOINTS).get(TASK)
        return json.loads(entry.value) if entry is not None else None


@pytest.fixture
def hall() -> Hall:
    return Hall()


# --- the usual way -----------------------------------------------------------------------------------------


async def test_a_task_is_leased_before_anybody_sees_it_and_gone_once_it_is_answered(hall: Hall) -> None:
    await hall.hand_out(input={"a": None})
    one = await hall.take_one()
    assert one.task.lease_id == one.lease.lease_id
    assert (await hall.handouts.find(TASK)).lease_id == one.lease.lease_id
    await hall.handouts.complete(one.lease, {"b": None})
    (event,) = await hall.said()
    assert (event.type, event.payload, event.lease_id) == ("step.completed", {"b": None}, one.lease.lease_id)
    assert hall.waiting() == 0


@pytest.mark.parametrize("answer", ["complete", "fail", "proceed"])
async def test_the_same_answer_twice_counts_once(hall: Hall, answer: str) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    for _ in range(2):
        await getattr(hall.handouts, answer)(await hall.handouts.find(TASK, one.lease.lease_id), "said")
    assert len(await hall.said()) == 1


async def test_another_answer_under_an_answered_lease_is_refused(hall: Hall) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    await hall.handouts.complete(one.lease, 1)
    done = await hall.handouts.find(TASK, one.lease.lease_id)
    with pytest.raises(LeaseLostError):
        await hall.handouts.fail(done, "too late")
    with pytest.raises(LeaseLostError):
        await hall.handouts.heartbeat(done)
    with pytest.raises(NotFoundError, match="answered"):
        await hall.handouts.find(TASK)


@pytest.mark.parametrize("task_id", ["", ".", "run", "run.", "a.b.c", "run.>", "run.st ep", "x" * 200 + ".step"])
async def test_what_is_no_task_id_is_not_found(hall: Hall, task_id: str) -> None:
    with pytest.raises(NotFoundError):
        await hall.handouts.find(task_id, "lease")


async def test_a_large_output_goes_by_reference(hall: Hall) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    await hall.handouts.complete(one.lease, "x" * 200_000)
    (event,) = await hall.said()
    assert set(event.payload) == {"$blob", "size"}


async def test_a_task_of_another_run_is_put_back_by_a_filter(hall: Hall) -> None:
    await hall.hand_out(run_id="other")
    await hall.hand_out(run_id="run")
    (one,) = await hall.take(run_id="run")
    assert one.task.run_id == "run"
    hall.clock.advance(2)
    (two,) = await hall.take(run_id=None)
    assert two.task.run_id == "other"


# --- again -------------------------------------------------------------------------------------------------


async def test_a_lease_that_runs_out_lets_another_worker_begin_and_fences_the_first(hall: Hall) -> None:
    await hall.hand_out(timeout_ms=1000)
    first = await hall.take_one()
    hall.clock.advance(301)
    second = await hall.take_one(worker_id="second")
    assert second.lease.count == 2
    for refused in (first.lease, first.lease):
        with pytest.raises(LeaseLostError):
            await hall.handouts.heartbeat(refused)
    with pytest.raises(LeaseLostError):
        await hall.handouts.find(TASK, first.lease.lease_id)
    await hall.handouts.complete(await hall.handouts.find(TASK, second.lease.lease_id), "second")
    assert [event.payload for event in await hall.said()] == ["second"]


async def test_while_its_holder_has_time_a_redelivered_task_is_put_off_and_nobody_else_gets_it(hall: Hall) -> None:
    await hall.hand_out(timeout_ms=900_000)
    one = await hall.take_one()
    hall.clock.advance(400)  # past the queue's own patience
    assert await hall.take(worker_id="other") == []
    assert hall.handouts.counts["later"] == 1
    hall.clock.advance(100)
    await hall.handouts.heartbeat(one.lease)
    hall.clock.advance(600)
    assert await hall.take(worker_id="other") == []


async def test_a_copy_of_a_task_that_is_held_is_taken_off_the_queue(hall: Hall) -> None:
    await hall.hand_out("1")
    one = await hall.take_one()
    await hall.hand_out("2")
    assert await hall.take() == []
    assert hall.waiting() == 1
    await hall.handouts.complete(one.lease, None)
    await hall.hand_out("3")
    assert await hall.take() == []
    assert hall.waiting() == 0


async def test_after_five_leases_without_an_answer_the_attempt_fails_and_the_queue_is_empty(hall: Hall) -> None:
    await hall.hand_out()
    for number in range(POISON):
        assert (await hall.take_one()).lease.count == number + 1
        hall.clock.advance(301)
    assert await hall.take() == []
    (event,) = await hall.said()
    assert event.payload["error"]["code"] == "lease_expired"
    assert hall.waiting() == 0
    assert hall.handouts.counts["poison"] == 1


async def test_a_poisons_retry_begins_to_count_anew(hall: Hall) -> None:
    await hall.hand_out()
    for _ in range(POISON):
        await hall.take_one()
        hall.clock.advance(301)
    await hall.take()
    await hall.hand_out("2", attempt=2)
    assert (await hall.take_one()).lease.count == 1


async def test_a_task_given_back_untouched_is_there_at_once_and_counts_as_never_taken(hall: Hall) -> None:
    await hall.hand_out()
    for _ in range(POISON * 3):
        await hall.handouts.release((await hall.take_one()).lease)
    assert (await hall.take_one()).lease.count == 1


async def test_what_is_no_lease_in_the_bucket_does_not_stop_a_task(hall: Hall) -> None:
    """Any worker may write there."""
    await hall.calm.bucket(Bucket.LEASES).put(TASK, b'{"lease_id": 5}')
    await hall.hand_out()
    one = await hall.take_one()
    await hall.handouts.complete(one.lease, None)
    assert await hall.types() == ["step.completed"]


def altered(one: Leased, **changes: Any) -> bytes:
    return json.dumps({**json.loads(one.lease.encode()), **changes}).encode()


@pytest.mark.parametrize("changes", [{"expires_ms": 10**400}, {"seconds": -5}, {"worker_id": "x" * 60_000}])
async def test_a_lease_out_of_all_bounds_is_none_and_its_task_is_taken(hall: Hall, changes: dict[str, Any]) -> None:
    """Any worker may write there, and what it writes is read by everybody's."""
    await hall.hand_out()
    first = await hall.take_one()
    await hall.calm.bucket(Bucket.LEASES).put(TASK, altered(first, **changes))
    await hall.calm.tasks.give_back(first.lease.token)
    second = await hall.take_one(worker_id="second")
    await hall.handouts.complete(second.lease, "done")
    assert (await hall.types(), hall.handouts.counts["broken"]) == (["step.completed"], 0)


async def test_a_token_that_a_stranger_wrote_into_a_lease_is_not_what_its_holder_answers_with(hall: Hall) -> None:
    await hall.hand_out()
    await hall.hand_out(run_id="other")
    mine, other = sorted(await hall.take(), key=lambda one: one.task.run_id, reverse=True)
    strange = altered(mine, token=other.lease.token, seconds=9999)
    await hall.calm.bucket(Bucket.LEASES).put(TASK, strange)
    held = await hall.handouts.heartbeat(mine.lease)
    assert (held.token, held.seconds) == (mine.lease.token, mine.lease.seconds)
    await hall.handouts.complete(held, None)
    assert [message.subject for message in hall.server.tasks.messages.values()] == ["llm/other"]


async def test_a_lease_whose_token_is_none_can_still_be_answered(hall: Hall) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    await hall.calm.bucket(Bucket.LEASES).put(TASK, altered(one, token="not a token"))
    found = await hall.handouts.find(TASK, one.lease.lease_id)
    await hall.handouts.complete(await hall.handouts.heartbeat(found), "done")
    assert await hall.types() == ["step.completed"]
    hall.clock.advance(301)
    assert (await hall.take(), hall.waiting()) == ([], 0), "found to be answered when it comes again"


@pytest.mark.parametrize("depth", [300, 800])
async def test_a_task_that_nobody_can_read_fails_its_step_instead_of_vanishing(hall: Hall, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    data = b'{"task_id":"run.step","run_id":"run","step_id":"step","attempt":3,"iteration":2,"input":' + deep + b"}"
    await hall.calm.tasks.publish("llm", "run", "1", data)
    assert await hall.take() == []
    (event,) = await hall.said()
    assert (event.type, event.step_id, event.attempt, event.iteration) == ("step.failed", "step", 3, 2)
    assert (event.payload["error"]["code"], event.payload["error"]["retryable"]) == ("unreadable_task", False)
    assert (hall.waiting(), hall.handouts.counts["unreadable"], hall.handouts.counts["foreign"]) == (0, 1, 0)


async def test_an_unreadable_task_stays_in_the_queue_until_its_run_has_heard(hall: Hall) -> None:
    await hall.calm.tasks.publish("llm", "run", "1", b'{"run_id": "run", "step_id": "step"}')
    hall.faults.wrong = {"histories.publish": Verdict.LOST}
    with pytest.raises(BrokerUnavailableError):
        await hall.take()
    assert hall.waiting() == 1
    hall.clock.advance(1.5)
    assert (await hall.take(), await hall.types(), hall.waiting()) == ([], ["step.failed"], 0)


async def test_what_is_no_task_is_taken_off_the_queue(hall: Hall) -> None:
    await hall.calm.tasks.publish("llm", "run", "1", b'{"task_id": 1}')
    await hall.calm.tasks.publish("llm", "other", "2", TaskPayload(task_id=TASK, run_id="run", step_id="step").encode())
    assert await hall.take() == []
    assert hall.waiting() == 0
    assert hall.handouts.counts["foreign"] == 2


# --- pauses and checkpoints --------------------------------------------------------------------------------


async def test_a_pause_is_said_once_and_the_resumed_task_has_the_checkpoint(hall: Hall) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    assert one.task.checkpoint is None
    for _ in range(2):
        await hall.handouts.pause(await hall.handouts.find(TASK, one.lease.lease_id), 5000, {"at": 3})
    (event,) = await hall.said()
    assert (event.payload, event.resumption) == ({"duration_ms": 5000}, 0)
    assert hall.waiting() == 0
    await hall.hand_out("2", resumption=1)
    again = await hall.take_one()
    assert (again.task.checkpoint, again.lease.count) == ({"at": 3}, 1)
    await hall.handouts.complete(again.lease, None)
    assert (await hall.said())[-1].checkpointed, "the engine takes it away once the answer counts"


async def test_a_retry_after_a_pause_is_handed_out(hall: Hall) -> None:
    """Its resumption begins at 0 again: it is newer all the same."""
    await hall.hand_out()
    await hall.handouts.pause((await hall.take_one()).lease, 1)
    await hall.hand_out("2", resumption=1)
    await hall.handouts.fail((await hall.take_one()).lease, "no")
    await hall.hand_out("3", attempt=2)
    assert (await hall.take_one()).task.attempt == 2


async def test_what_an_earlier_delivery_says_names_its_resumption(hall: Hall) -> None:
    """Else a pause that is said twice would be taken for a pause of the resumed task."""
    await hall.hand_out()
    await hall.handouts.pause((await hall.take_one()).lease, 1)
    assert [event.resumption for event in await hall.said()] == [0]


async def test_a_checkpoint_is_there_for_whoever_comes_next_and_the_end_tells_of_it(hall: Hall) -> None:
    await hall.hand_out()
    first = await hall.take_one()
    await hall.handouts.checkpoint(first.lease, [1])
    hall.clock.advance(301)
    second = await hall.take_one()
    assert second.task.checkpoint == [1]
    await hall.handouts.fail(second.lease, "no")
    await hall.hand_out("2", attempt=2)
    third = await hall.take_one()
    assert third.task.checkpoint == [1]
    await hall.handouts.complete(third.lease, None)
    assert (await hall.said())[-1].checkpointed, "the engine takes it away once the answer counts"


async def test_a_checkpoint_of_a_worker_that_takes_no_leases_is_found(hall: Hall) -> None:
    """A bare NATS worker writes it, and gives the message back with a delay."""
    await hall.hand_out()
    (bare,) = await hall.calm.tasks.pull(["llm"], max_tasks=1, timeout=0)
    await hall.calm.bucket(Bucket.CHECKPOINTS).put(TASK, b'{"bare": true}')
    await hall.calm.tasks.give_back(bare.token)
    one = await hall.take_one()
    assert one.task.checkpoint == {"bare": True}
    await hall.process().complete(await hall.handouts.find(TASK), None)  # by another process, as at a bridge
    assert (await hall.said())[-1].checkpointed, "the engine takes it away once the answer counts"


async def test_a_checkpoint_or_heartbeat_of_a_lost_lease_is_refused_and_writes_nothing(hall: Hall) -> None:
    await hall.hand_out()
    first = await hall.take_one()
    hall.clock.advance(301)
    await hall.take_one()
    with pytest.raises(LeaseLostError):
        await hall.handouts.checkpoint(first.lease, "old")
    assert await hall.checkpoint() is None


@pytest.mark.parametrize("left", [b"[" * 100_000, b"{", b'"\\ud800"', b"[" * 65 + b"]" * 65])
async def test_a_checkpoint_that_cannot_be_read_is_none_and_the_task_is_handed_out(hall: Hall, left: bytes) -> None:
    """Any worker may write there, and it must not end anybody else's."""
    await hall.hand_out()
    first = await hall.take_one()
    await hall.calm.bucket(Bucket.CHECKPOINTS).put(TASK, left)
    await hall.handouts.release(first.lease)
    assert (await hall.take_one(worker_id="second")).task.checkpoint is None
    assert hall.handouts.counts["broken"] == 0


@pytest.mark.parametrize("depth", [65, 5000])
async def test_a_checkpoint_that_would_not_come_back_is_refused(hall: Hall, depth: int) -> None:
    await hall.hand_out()
    data: Any = None
    for _ in range(depth):
        data = [data]
    with pytest.raises(InvalidRequestError):
        await hall.handouts.checkpoint((await hall.take_one()).lease, data)
    assert await hall.checkpoint() is None


async def test_a_pause_continues_the_trace(hall: Hall) -> None:
    await hall.hand_out()
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    await hall.handouts.pause((await hall.take_one()).lease, 1, traceparent=trace)
    assert [event.traceparent for event in await hall.said()] == [trace]


async def test_a_revoked_lease_is_lost_to_its_holder(hall: Hall) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    await hall.process().revoke("run", "step", one.lease.age, task_type="t")
    with pytest.raises(LeaseLostError):
        await hall.handouts.heartbeat(one.lease)
    with pytest.raises(LeaseLostError, match="taken back"):
        await hall.handouts.complete(await hall.handouts.find(TASK, one.lease.lease_id), "late")
    with pytest.raises(NotFoundError, match="taken back"):
        await hall.handouts.find(TASK)
    assert await hall.types() == []


@pytest.mark.parametrize("duration_ms", [0, -1, 3_600_001])
async def test_a_pause_out_of_bounds_changes_nothing(hall: Hall, duration_ms: int) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    with pytest.raises(InvalidRequestError):
        await hall.handouts.pause(one.lease, duration_ms, "kept")
    assert (await hall.types(), await hall.checkpoint()) == ([], None)


async def test_a_signal_is_measured_in_the_bytes_that_travel(hall: Hall) -> None:
    await hall.hand_out()
    lease = (await hall.take_one()).lease
    await hall.handouts.signal(lease, "progress", "é" * (LARGEST_SIGNAL // 2 - 1))
    with pytest.raises(InvalidRequestError):
        await hall.handouts.signal(lease, "progress", "é" * (LARGEST_SIGNAL // 2))
    assert await hall.types() == ["step.signal"]


async def test_an_output_that_nobody_could_hold_is_refused_and_the_task_stays_held(hall: Hall) -> None:
    await hall.hand_out()
    lease = (await hall.take_one()).lease
    with pytest.raises(PayloadTooLargeError):
        await hall.handouts.complete(lease, "x" * (33 * 1024 * 1024))
    assert (await hall.handouts.find(TASK)).held


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["leases.get", "leases.create", "histories.publish"])
async def test_a_task_that_could_not_be_handed_over_is_there_again_after_a_second(hall: Hall, operation: str) -> None:
    """Not after five minutes: nobody has it, so nobody's time has to run out."""
    await hall.hand_out()
    hall.faults.wrong = {operation: Verdict.LOST}
    with pytest.raises(BrokerUnavailableError):
        await hall.take()
    hall.clock.advance(1.5)
    one = await hall.take_one()
    assert one.lease.count == 1


@pytest.mark.parametrize("operation", ["leases.create", "leases.update"])
async def test_a_lease_whose_answer_got_lost_is_known_for_ones_own(hall: Hall, operation: str) -> None:
    await hall.hand_out()
    if operation == "leases.update":
        await hall.take_one()
        hall.clock.advance(301)
    hall.faults.wrong = {operation: Verdict.UNANSWERED}
    one = await hall.take_one()
    await hall.handouts.complete(one.lease, None)
    assert await hall.types() == ["step.completed"]


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.UNANSWERED])
@pytest.mark.parametrize("operation", ["histories.publish", "leases.update", "leases.get", "tasks.ack"])
async def test_an_answer_cut_off_anywhere_can_be_repeated_until_it_counts(
    hall: Hall, operation: str, verdict: Verdict
) -> None:
    await hall.hand_out()
    one = await hall.take_one()
    hall.faults.wrong = {operation: verdict}
    for _ in range(3):
        try:
            await hall.handouts.complete(await hall.handouts.find(TASK, one.lease.lease_id), "done")
            break
        except BrokerUnavailableError:
            continue
    assert {event.payload for event in await hall.said()} == {"done"}
    hall.clock.advance(301)
    assert await hall.take(worker_id="other") == []
    assert hall.waiting() == 0


class Held(Faults):
    """One call is stored, and its answer waits until it is let go."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation == self.operation:
            self.reached.set()
            await self.go.wait()
        return Verdict.OK


@pytest.mark.parametrize("operation", ["leases.get", "leases.create", "histories.publish"])
async def test_a_caller_that_goes_away_while_its_task_is_leased_gives_it_back_at_once(
    hall: Hall, operation: str
) -> None:
    """Wherever it is cancelled: the task is there for the next one without any time passing."""
    await hall.hand_out()
    faults = Held(operation)
    taking = asyncio.create_task(hall.take(hall.process(faults)))
    await faults.reached.wait()
    taking.cancel()
    await asyncio.sleep(0)
    taking.cancel()  # a server that shuts down is not patient
    faults.go.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    one = await hall.take_one(worker_id="next")
    assert one.lease.count == 1


async def test_a_caller_that_waits_for_nothing_can_be_cancelled(hall: Hall) -> None:
    taking = asyncio.create_task(hall.take(timeout=60.0))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await hall.hand_out()
    assert len(await hall.take()) == 1


async def test_one_task_that_fails_does_not_take_the_others_along(hall: Hall) -> None:
    for number in range(4):
        await hall.hand_out(run_id=f"run-{number}")
    hall.faults.wrong = {"leases.create": Verdict.LOST}
    assert len(await hall.take()) == 3
    hall.clock.advance(1.5)
    assert len(await hall.take()) == 1


class Strange(Faults):
    """One call for one run ends in an error that nobody expected, once."""

    def __init__(self, operation: str, subject: str) -> None:
        self.left = [(operation, subject)]

    async def call(self, operation: str, subject: str) -> Verdict:
        if (operation, subject) in self.left:
            self.left.remove((operation, subject))
            raise ZeroDivisionError
        return Verdict.OK


@pytest.mark.parametrize(("operation", "subject"), [("leases.create", "run-2.step"), ("histories.publish", "run-2")])
async def test_an_error_that_nobody_expected_costs_its_own_task_a_second_and_the_others_nothing(
    hall: Hall, operation: str, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        await hall.hand_out(run_id=f"run-{number}")
    process = hall.process(Strange(operation, subject))
    assert {one.task.run_id for one in await hall.take(process)} == {"run-0", "run-1", "run-3"}
    assert (process.counts["broken"], caplog.messages) == (1, ["offer_broken"])
    assert await hall.take() == []
    hall.clock.advance(1.5)
    (late,) = await hall.take()
    assert (late.task.run_id, late.lease.count) == ("run-2", 1)


async def test_a_task_that_breaks_alone_is_no_error_of_whoever_takes(hall: Hall) -> None:
    await hall.hand_out()
    process = hall.process(Strange("leases.create", TASK))
    assert await hall.take(process) == []
    hall.clock.advance(1.5)
    assert len(await hall.take(process)) == 1


# --- all of it at once -------------------------------------------------------------------------------------


class Storm(Faults):
    def __init__(self, draw: random.Random, badness: float) -> None:
        self.draw, self.badness = draw, badness

    async def call(self, operation: str, subject: str) -> Verdict:
        for _ in range(self.draw.randint(0, 2)):
            await asyncio.sleep(0)
        luck = self.draw.random()
        return Verdict.LOST if luck < self.badness else Verdict.UNANSWERED if luck < 2 * self.badness else Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        return (0.0, 0.0) if self.draw.random() < self.badness else (0.0,)


class Arena:
    """Several workers and one task, in bad weather. Notes who believed to have it, and when."""

    def __init__(self, seed: int) -> None:
        self.hall = Hall()
        self.draw = random.Random(seed)
        self.weather = Storm(self.draw, 0.08)
        self.holds: list[tuple[str, float, float]] = []
        """Lease, from, until: what a worker was told."""

    async def live(self) -> None:
        await self.hall.hand_out(timeout_ms=20_000)
        for _ in range(400):
            if self.hall.waiting() == 0:
                return
            workers = [self.work(f"worker-{n}") for n in range(3)]
            await asyncio.gather(*workers)
            self.hall.clock.advance(self.draw.choice([0.1, 1, 30, 301]))
            self.weather.badness *= 0.97
        raise AssertionError("the task is never done with")

    async def work(self, name: str) -> None:
        handouts = self.hall.process(self.weather)
        try:
            for one in await self.hall.take(handouts, worker_id=name):
                began = self.hall.clock.now()
                self.holds.append((one.lease.lease_id, began, one.lease.expires_ms / 1000))
                await self.do(handouts, one)
        except (BrokerError, LeaseLostError):
            return

    async def do(self, handouts: Handouts, one: Leased) -> None:
        match self.draw.randint(0, 4):
            case 0:
                return  # it dies
            case 1:
                await handouts.heartbeat(one.lease)
            case 2:
                await handouts.checkpoint(one.lease, {"by": one.lease.worker_id})
        await handouts.complete(one.lease, one.lease.lease_id)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
async def test_in_any_weather_a_task_ends_and_no_two_workers_have_it_at_once(seed: int) -> None:
    arena = Arena(seed)
    await arena.live()
    said = await arena.hall.said()
    codes = {event.payload["error"]["code"] for event in said if event.type.value == "step.failed"}
    assert said, "it ended, and nobody said how"
    assert codes <= {"lease_expired"}
    assert {event.attempt for event in said} == {1}
    for (lease, _, until), (later, began, _) in zip(arena.holds, arena.holds[1:], strict=False):
        assert lease == later or began >= until, "two had it at once"
