"""Runs that call others, and runs that go on as new ones."""

from __future__ import annotations

import pytest

from fumehood.engine import events as e
from fumehood.engine.messages import Ignored, MessageType
from fumehood.engine.moving import MAX_DEPTH
from fumehood.engine.state import RunStatus, StepStatus
from tests.unit.run_world import RunWorld, steps

PINS = {"other": "sha256:" + "0" * 64}
CALL = "id: sub, sub_workflow: {workflow: other}"


def calling(*more: str, step: str = CALL, given: object = None) -> RunWorld:
    return RunWorld(steps(step, *more), given, pins=PINS)


def test_a_run_of_another_workflow_is_the_steps_work() -> None:
    world = calling(step=f"{CALL}, with: {{x: input}}", given=4)
    child = world.child("sub")
    assert (child.digest, child.input, child.attempt) == (PINS["other"], {"x": 4}, 1)
    assert world.done.call == (child,)
    world.child_ended("sub", output="made")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"sub": "made"})


def test_a_child_is_always_the_same_one_for_the_same_attempt() -> None:
    assert calling().child("sub").run_id == calling().child("sub").run_id
    again = calling("id: two, sub_workflow: {workflow: other}")
    assert again.child("sub").run_id != again.child("two").run_id


def test_a_workflow_that_was_not_there_at_the_start_cannot_be_called() -> None:
    world = RunWorld(steps(CALL))
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "no_workflow")


def test_a_circle_of_calls_comes_to_an_end() -> None:
    world = RunWorld(steps(CALL), pins=PINS, depth=MAX_DEPTH)
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "too_deep")
    assert RunWorld(steps(CALL), pins=PINS, depth=MAX_DEPTH - 1).child("sub").attempt == 1


@pytest.mark.parametrize(
    ("status", "failure", "code"),
    [
        ("failed", {"code": "broken", "message": "no"}, "broken"),
        ("timed_out", {"code": "deadline", "message": "late"}, "deadline"),
        ("timed_out", None, "child_timed_out"),
        ("cancelled", None, "child_cancelled"),
    ],
)
def test_a_childs_failure_is_the_steps(status: str, failure: dict[str, str] | None, code: str) -> None:
    world = calling()
    world.child_ended("sub", status, failure=failure)
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, code)
    assert f"ended as {status}" in world.failure.message


def test_a_child_that_failed_is_tried_again_as_another_run() -> None:
    world = calling(step=f"{CALL}, with: {{x: 1}}, retry: {{attempts: 2}}")
    first = world.child("sub")
    world.child_ended("sub", "failed")
    assert world.status("sub") is StepStatus.WAITING
    world.fire()
    second = world.child("sub")
    assert (second.attempt, second.input) == (2, {"x": 1})
    assert second.run_id != first.run_id
    world.send(MessageType.CHILD_ENDED, step="sub", child=first.run_id, status="succeeded", output="late")
    assert (world.status("sub"), world.ignored) == (StepStatus.CALLING, [Ignored.NOT_ASKED])
    assert world.run.steps["sub"].former == (first.run_id,)


def test_a_child_that_was_cancelled_is_not_tried_again() -> None:
    world = calling(step=f"{CALL}, retry: {{attempts: 5}}")
    world.child_ended("sub", "cancelled")
    assert world.failure.code == "child_cancelled"


def test_a_child_that_takes_too_long_is_stopped() -> None:
    world = calling(step=f"{CALL}, timeout: 1m")
    child = world.child("sub")
    world.fire()
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "timeout")
    assert world.done.stop == (child,)


def test_a_cancel_reaches_the_child_and_its_late_end_nobody() -> None:
    world = calling()
    child = world.child("sub")
    world.cancel()
    assert world.done.stop == (child,)
    world.send(MessageType.CHILD_ENDED, step="sub", child=child.run_id, status="succeeded")
    assert (world.run.status, world.ignored) == (RunStatus.CANCELLED, [Ignored.RUN_ENDED])


def test_a_childs_end_is_told_once() -> None:
    world = calling("id: a, task: t")
    told = world.child_ended("sub", output=1)
    world.decide([told])
    assert world.ignored == [Ignored.DUPLICATE]
    assert len(world.events(e.StepCompleted)) == 1


# --- going on as a new one ---------------------------------------------------------------------------------

CHAIN = "continue_as_new: {when: output.left > 0, input: {n: output.left}}\noutput: {left: input.n - 1}\n"


def test_a_run_goes_on_as_a_new_one_while_its_condition_holds() -> None:
    world = RunWorld(steps("id: a, task: t", more=CHAIN), {"n": 2})
    world.complete("a")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"left": 1})
    assert world.run.continued_input == {"n": 1}
    assert (world.run.continued_as or "").startswith("run-")
    last = RunWorld(steps("id: a, task: t", more=CHAIN), {"n": 1})
    last.complete("a")
    assert (last.run.status, last.run.continued_as) == (RunStatus.SUCCEEDED, None)


def test_without_an_input_of_its_own_the_next_run_has_the_same() -> None:
    world = RunWorld(steps("id: a, task: t", more="continue_as_new: {when: 'true'}\n"), {"n": 2})
    world.complete("a")
    assert world.run.continued_input == {"n": 2}


def test_a_run_that_fails_goes_on_as_nothing() -> None:
    world = RunWorld(steps("id: a, task: t", more=CHAIN), {"n": 2})
    world.fail("a")
    assert (world.run.status, world.run.continued_as) == (RunStatus.FAILED, None)


def test_a_condition_that_cannot_be_told_fails_the_run() -> None:
    world = RunWorld(steps("id: a, task: t", more="continue_as_new: {when: output.nothing}\n"))
    world.complete("a")
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "expression")
    assert "continue_as_new" in world.failure.message
