"""Who may speak about a sandbox: whoever was handed its task, about that very hand-out, and nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import POISON, Lease
from fumehood.broker.memory import MemoryBroker
from fumehood.broker.memory_faults import Faults, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.proofs import Proofs
from fumehood.engine.messages import Ignored
from fumehood.engine.state import RunStatus, StepStatus
from fumehood.errors import NotFoundError
from fumehood.wire.protocol import EventType, StepEvent, TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.unit.decider_world import RUN, DeciderWorld

ONE = 'name: w\nsteps:\n- {id: s, sandbox: {image: "a/b", command: [x]}}\n'
PLACES = {
    "a sandbox": (ONE, "s"),
    "a task": (f"name: w\nsteps:\n- {{id: s, task: {SANDBOX_TASK}}}\n", "s"),
    "an item of a map": (f'name: w\nsteps:\n- {{id: m, map: {{over: "[1]", task: {SANDBOX_TASK}}}}}\n', "m--0"),
    "a loop": (f"name: w\nsteps:\n- {{id: s, agent_loop: {{task: {SANDBOX_TASK}}}}}\n", "s"),
}
"""Wherever a definition can name what nodes take."""
WHOLE: dict[str, Any] = {"attempt": 1, "iteration": 0, "resumption": 0}

tokens = st.text("ab-_0", min_size=1, max_size=4)
numbers = st.integers(0, 12)
handed_out = st.tuples(tokens, tokens, numbers, numbers, numbers)


def said(hand_out: tuple[str, str, int, int, int], proof: str | None) -> StepEvent:
    run_id, step_id, attempt, iteration, resumption = hand_out
    known: dict[str, Any] = {"attempt": attempt, "iteration": iteration, "resumption": resumption, "proof": proof}
    return StepEvent(type=EventType.COMPLETED, run_id=run_id, step_id=step_id, **known)


@given(handed_out, handed_out)
def test_a_proof_holds_for_one_hand_out_alone(mine: tuple[str, str, int, int, int], other: Any) -> None:
    proofs = Proofs(MemoryBroker())
    proof = proofs.of(mine[0], mine[1], mine[2:])
    assert proofs.hold(said(mine, proof))
    assert proofs.hold(said(other, proof)) is (mine == other)
    broker = MemoryBroker()
    broker.server.secret = b"another cell's"
    assert not Proofs(broker).hold(said(mine, proof))


@pytest.mark.parametrize("missing", WHOLE)
def test_what_names_no_hand_out_proves_nothing(missing: str) -> None:
    proofs = Proofs(MemoryBroker())
    event = said(("r", "s", 1, 0, 0), proofs.of("r", "s", (1, 0, 0)))
    assert proofs.hold(event)
    assert not proofs.hold(event.model_copy(update={missing: None}))
    assert not proofs.hold(event.model_copy(update={"proof": None}))


# --- at the decider --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", EventType)
async def test_what_is_not_proven_has_no_effect(place: str, kind: EventType) -> None:
    text, step = PLACES[place]
    world, payload = DeciderWorld(), {"duration_ms": 1000, "name": "n", "error": "forged"}
    await world.start(text)
    before = await world.state()
    for proof in (None, "0" * 64, Proofs(world.broker).of(RUN, "other", (1, 0, 0))):
        await world.say(kind, step, payload, proof=proof, **WHOLE)
        await world.say(kind, step, payload, proof=proof)
    assert await world.state() == before
    assert world.decider.counters.ignored == {Ignored.UNPROVEN: 6}


async def test_other_steps_need_no_proof() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t}\n")
    await world.say(EventType.COMPLETED, "a")
    assert (await world.state()).status is RunStatus.SUCCEEDED


async def test_the_proof_of_an_earlier_attempt_is_none_for_the_next() -> None:
    world = DeciderWorld()
    await world.start(ONE.replace("[x]}", "[x]}, retry: {attempts: 2, backoff: 1s}"))
    (first,) = await world.tasks(SANDBOX_TASK)
    await world.say(EventType.FAILED, "s", {"error": "once"}, proof=first["proof"], **WHOLE)
    await world.pass_time(5)
    (second,) = await world.tasks(SANDBOX_TASK)
    again = {**WHOLE, "attempt": 2}
    assert second["attempt"] == 2
    await world.say(EventType.COMPLETED, "s", 1, proof=first["proof"], **again)
    await world.say(EventType.COMPLETED, "s", 1, proof=first["proof"], **WHOLE)
    state = await world.state()
    assert state.steps["s"].status is StepStatus.QUEUED
    assert world.decider.counters.ignored == {Ignored.UNPROVEN: 1, Ignored.OTHER_ATTEMPT: 1}
    await world.say(EventType.COMPLETED, "s", 2, proof=second["proof"], **again)
    assert (await world.state()).steps["s"].output == 2


async def test_nothing_that_cannot_be_written_makes_a_claim_out_of_a_forgery() -> None:
    world = DeciderWorld()
    await world.start(ONE)
    event = said((RUN, "s", 1, 0, 0), None).encode().replace(b'"payload":null', b"")
    forged = event[:-1] + b',"payload":{"a":NaN,"b":"\\ud800"}}'
    await world.publish(forged)
    assert (await world.state()).steps["s"].status is StepStatus.QUEUED


# --- at whoever is handed it -----------------------------------------------------------------------------------------


class Lossy(Faults):
    """Does what it is asked and loses the answer, once."""

    def __init__(self) -> None:
        self.lose = False

    async def call(self, operation: str, subject: str) -> Verdict:
        if self.lose and operation.endswith(("update", "create")):
            self.lose = False
            return Verdict.UNANSWERED
        return Verdict.OK


class Hall:
    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.handouts = Handouts(self.broker)

    async def hand_out(self, **fields: Any) -> None:
        task = TaskPayload(task_id="r.s", run_id="r", step_id="s", proof="the-proof", **fields)
        await self.broker.tasks.publish(SANDBOX_TASK, "r", "m", task.encode())

    async def take(self, handouts: Handouts | None = None, seconds: int = 60) -> list[Leased]:
        options: dict[str, Any] = {"max_tasks": 1, "timeout": 0.0, "worker_id": "n", "lease_seconds": seconds}
        return await (handouts or self.handouts).take([SANDBOX_TASK], **options)

    def said(self) -> list[tuple[str, str | None]]:
        log = self.broker.server.histories[0].of("r")
        events = [StepEvent.model_validate_json(message.data) for message in log]
        return [(event.type.value, event.proof) for event in events]


ANSWERS: dict[str, Callable[[Handouts, Lease], Awaitable[object]]] = {
    "step.completed": lambda handouts, lease: handouts.complete(lease, 1),
    "step.failed": lambda handouts, lease: handouts.fail(lease, "no"),
    "step.continue": lambda handouts, lease: handouts.proceed(lease, 1),
    "step.paused": lambda handouts, lease: handouts.pause(lease, 1000),
    "step.signal": lambda handouts, lease: handouts.signal(lease, "n", 1),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_everything_that_is_said_about_a_task_bears_its_proof(answer: str) -> None:
    hall = Hall()
    await hall.hand_out()
    (one,) = await hall.take()
    lease = await hall.handouts.heartbeat(one.lease)
    await ANSWERS[answer](hall.handouts, lease)
    assert hall.said() == [("step.started", "the-proof"), (answer, "the-proof")]


async def test_the_proof_is_kept_where_an_answer_of_the_broker_was_lost() -> None:
    hall, faults = Hall(), Lossy()
    handouts = Handouts(MemoryBroker(hall.broker.server, faults=faults))
    await hall.hand_out()
    faults.lose = True
    (one,) = await hall.take(handouts)
    assert not faults.lose
    faults.lose = True
    lease = await handouts.heartbeat(one.lease)
    assert not faults.lose
    await handouts.complete(lease, 1)
    assert hall.said()[-1] == ("step.completed", "the-proof")


async def test_who_gives_up_a_task_that_was_never_answered_bears_its_proof() -> None:
    hall = Hall()
    await hall.hand_out()
    bucket = hall.broker.bucket(Bucket.NODE_LEASES)
    (one,) = await hall.take()
    entry = await bucket.get(one.lease.key)
    assert entry is not None
    text = entry.value.decode().replace('"count":1', f'"count":{POISON}')
    text = text.replace(f'"expires_ms":{one.lease.expires_ms}', '"expires_ms":1')
    await bucket.put(one.lease.key, text.encode())
    await hall.broker.tasks.give_back(one.lease.token)
    assert await hall.take() == []
    assert hall.said()[-1] == ("step.failed", "the-proof")


async def test_a_task_that_cannot_be_read_is_answered_with_its_proof() -> None:
    hall = Hall()
    data = b'{"run_id":"r","step_id":"s","attempt":1,"proof":"the-proof"}'
    await hall.broker.tasks.publish(SANDBOX_TASK, "r", "m", data)
    assert await hall.take() == []
    assert hall.said() == [("step.failed", "the-proof")]


async def test_what_is_stored_of_a_lease_has_no_proof_and_none_is_believed_there() -> None:
    hall = Hall()
    await hall.hand_out()
    (one,) = await hall.take()
    assert one.lease.proof == "the-proof"
    entry = await hall.broker.bucket(Bucket.NODE_LEASES).get(one.lease.key)
    assert entry is not None
    assert b"proof" not in entry.value
    forged = entry.value[:-1] + b',"proof":"forged"}'
    await hall.broker.bucket(Bucket.NODE_LEASES).put(one.lease.key, forged)
    changed = await hall.broker.bucket(Bucket.NODE_LEASES).get(one.lease.key)
    assert changed is not None
    found = Lease.decode(changed)
    assert found is not None
    assert found.proof is None


async def test_leases_of_workers_and_nodes_are_not_mixed_up() -> None:
    """One that was put where the others are is none."""
    hall = Hall()
    await hall.hand_out()
    (one,) = await hall.take()
    with pytest.raises(NotFoundError):
        await hall.handouts.find("r.s")
    await hall.broker.bucket(Bucket.LEASES).put(one.lease.key, one.lease.encode())
    with pytest.raises(NotFoundError):
        await hall.handouts.find("r.s", one.lease.lease_id)
    await hall.handouts.revoke("r", "s", one.lease.age, task_type="t")
    assert (await hall.handouts.heartbeat(one.lease)).held
    assert await hall.handouts.is_cared_for("r", "s", one.lease.age, task_type=SANDBOX_TASK)
    assert not await hall.handouts.is_cared_for("r", "s", one.lease.age, task_type="t")
