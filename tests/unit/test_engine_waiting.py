"""Steps that wait for somebody: signals and approvals."""

from __future__ import annotations

import pytest

from fumehood.engine import events as e
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.state import RunStatus, StepStatus
from fumehood.engine.workers import MAX_SIGNALS
from tests.unit.run_world import RunWorld, steps

PAID = "id: pay, wait_signal: {name: paid, timeout: 1h}"
AGREED = "id: ok, approval: {message: 'Ship it?', timeout: 1h}"


# --- signals -----------------------------------------------------------------------------------------------


def test_a_signal_is_the_output_of_the_step_that_waits_for_it() -> None:
    world = RunWorld(steps(PAID, "id: ship, task: t, needs: [pay], with: {sum: steps.pay.output.sum}"))
    assert world.status("pay") is StepStatus.LISTENING
    world.signal("paid", {"sum": 7})
    assert world.tasks()["ship"].input == {"sum": 7}
    assert not world.timers(), "nobody waits any more"
    assert world.run.signals[0].taken_by == "pay"


def test_a_signal_by_another_name_is_kept_and_not_taken() -> None:
    world = RunWorld(steps(PAID))
    world.signal("refunded")
    assert world.status("pay") is StepStatus.LISTENING
    assert [signal.taken_by for signal in world.run.signals] == [None]


def test_a_signal_that_comes_before_its_step_listens_is_there_when_it_does() -> None:
    world = RunWorld(steps("id: a, task: t", "id: pay, needs: [a], wait_signal: {name: paid}"))
    world.signal("paid", 1)
    world.complete("a")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"pay": 1})


def test_signals_are_taken_in_their_order_and_each_once() -> None:
    waits = [f"id: s{number}, wait_signal: {{name: tick}}" for number in range(3)]
    world = RunWorld(steps(*waits))
    for number in range(2):
        world.signal("tick", number)
    assert [world.run.steps[f"s{number}"].output for number in range(3)] == [0, 1, None]
    assert world.status("s2") is StepStatus.LISTENING
    world.signal("tick", 2)
    assert world.run.output == {"s0": 0, "s1": 1, "s2": 2}


def test_the_same_signal_again_is_no_second_one() -> None:
    world = RunWorld(steps("id: a, wait_signal: {name: tick}", "id: b, wait_signal: {name: tick}"))
    told = world.signal("tick")
    world.decide([told, told])
    assert world.status("b") is StepStatus.LISTENING
    assert world.ignored == [Ignored.DUPLICATE] * 2


def test_what_a_worker_signals_is_heard_by_the_run_it_works_for() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, wait_signal: {name: half}"))
    world.send(MessageType.STEP_SIGNAL, step="a", attempt=1, iteration=0, name="half", data=50)
    assert world.run.steps["b"].output == 50


def test_a_signal_that_does_not_come_in_time_fails_its_step() -> None:
    world = RunWorld(steps(PAID))
    world.fire()
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "signal_timeout")
    world.signal("paid")
    assert world.ignored == [Ignored.RUN_ENDED]


def test_a_signal_in_the_same_moment_as_its_timeout_counts_if_it_was_first() -> None:
    world = RunWorld(steps(PAID, "id: after, task: t, needs: [pay]"))
    (timer,) = world.timers()
    world.signal("paid")
    world.ring(timer)
    assert (world.status("pay"), world.ignored) == (StepStatus.COMPLETED, [Ignored.STALE_TIMER])


def test_there_are_so_many_signals_and_no_more() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, needs: [a], wait_signal: {name: tick}"))
    told = [{"name": "tick", "data": number} for number in range(MAX_SIGNALS + 1)]
    world.decide([Message(f"tick-{body['data']}", MessageType.SIGNAL, body) for body in told])
    assert world.ignored == [Ignored.TOO_MANY]
    world.complete("a")
    assert world.run.output == {"b": 0}


def test_a_late_signal_does_not_wake_a_run_that_was_cancelled() -> None:
    world = RunWorld(steps(PAID))
    world.cancel()
    world.signal("paid")
    assert (world.run.status, world.ignored) == (RunStatus.CANCELLED, [Ignored.RUN_ENDED])


# --- approvals ---------------------------------------------------------------------------------------------


def test_an_approval_says_who_agreed_and_when() -> None:
    world = RunWorld(steps(f"{AGREED}, with: {{what: input.what}}"), {"what": "v2"})
    assert world.run.steps["ok"].input == {"what": "v2"}, "this is what people are shown"
    world.now += 5
    world.approve("ok", by="ann", comment="fine")
    assert world.run.output == {"ok": {"approved": True, "by": "ann", "comment": "fine", "at": world.now}}


def test_a_no_fails_the_step_and_says_who_said_it() -> None:
    world = RunWorld(steps(AGREED))
    world.approve("ok", approved=False, by="ann", comment="not today")
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "rejected")
    assert world.failure.message == "ann said no: not today"
    assert [type(event) for event in world.events()[-3:]] == [e.ApprovalRefused, e.StepFailed, e.RunFailed]


@pytest.mark.parametrize(("first", "status"), [(True, RunStatus.SUCCEEDED), (False, RunStatus.FAILED)])
def test_of_a_yes_and_a_no_at_once_the_first_counts(first: bool, status: RunStatus) -> None:
    world = RunWorld(steps(AGREED))
    world.approve("ok", approved=first, by="ann")
    world.send(MessageType.APPROVE, step="ok", attempt=1, approved=not first, by="bob")
    assert (world.run.status, world.ignored) == (status, [Ignored.RUN_ENDED])
    assert len(world.events(e.ApprovalGiven, e.ApprovalRefused)) == 1


def test_only_those_who_are_named_may_decide() -> None:
    world = RunWorld(steps("id: ok, approval: {approvers: [ann, bob]}"))
    world.approve("ok", by="eve")
    world.approve("ok", by="eve", approved=False)
    assert (world.status("ok"), world.ignored) == (StepStatus.AWAITING_APPROVAL, [Ignored.NOT_ALLOWED] * 2)
    world.approve("ok", by="bob")
    assert world.run.status is RunStatus.SUCCEEDED


def test_an_approval_of_what_nobody_asks_about_changes_nothing() -> None:
    world = RunWorld(steps("id: a, task: t", "id: ok, needs: [a], approval: {}"))
    world.send(MessageType.APPROVE, step="ok", attempt=1, approved=True, by="ann")
    world.send(MessageType.APPROVE, step="nobody", attempt=1, approved=True, by="ann")
    world.send(MessageType.APPROVE, step="a", attempt=1, approved=True, by="ann")
    world.complete("a")
    world.send(MessageType.APPROVE, step="ok", attempt=2, approved=True, by="ann")
    assert world.status("ok") is StepStatus.AWAITING_APPROVAL
    assert world.ignored == [Ignored.NOT_ASKED] * 4


@pytest.mark.parametrize("approved", ["yes", 1, None])
def test_nothing_but_a_plain_true_is_a_yes(approved: object) -> None:
    world = RunWorld(steps(AGREED))
    world.send(MessageType.APPROVE, step="ok", attempt=1, approved=approved, by="ann")
    assert world.failure.code == "rejected"


def test_an_approval_after_its_time_comes_to_nothing() -> None:
    world = RunWorld(steps(f"{AGREED}, on_failure: continue", "id: a, task: t"))
    world.fire()
    world.approve("ok")
    assert (world.status("ok"), world.ignored) == (StepStatus.FAILED, [Ignored.NOT_ASKED])
    failure = world.run.steps["ok"].failure
    assert failure is not None
    assert failure.code == "approval_timeout"


def test_the_same_yes_again_is_one() -> None:
    world = RunWorld(steps(AGREED, "id: a, task: t"))
    told = world.approve("ok")
    world.decide([told])
    assert world.ignored == [Ignored.DUPLICATE]
    assert len(world.events(e.ApprovalGiven)) == 1
