"""What comes first has its effect first; what was said to one life of a run is not said to another."""

from __future__ import annotations

import time

import pytest

from fumehood.engine import definition
from fumehood.engine import events as e
from fumehood.engine.decide import decide
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.moving import MAX_ITEMS_OF_RUN
from fumehood.engine.state import RunStatus, StepStatus
from fumehood.errors import InvalidDefinitionError
from tests.conftest import TimeBounds
from tests.unit.run_world import RunWorld, steps


def timer(world: RunWorld, kind: str) -> Message:
    found = next(timer for timer in world.timers() if timer.body["kind"] == kind)
    world.now = found.at
    return Message(f"timer-{kind}", MessageType.TIMER, dict(found.body))


def test_a_signal_that_came_before_the_patience_ended_is_taken() -> None:
    world = RunWorld(steps("id: pay, wait_signal: {name: paid, timeout: 1h}"))
    told = Message("told", MessageType.SIGNAL, {"name": "paid", "data": 7, "by": "me"})
    world.decide([told, timer(world, "expiry")])
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"pay": 7})


def test_a_run_whose_last_step_was_answered_before_its_deadline_succeeds() -> None:
    world = RunWorld(steps("id: a, task: t", more="deadline: 1h\n"))
    done = Message("done", MessageType.STEP_COMPLETED, {"step": "a", "attempt": 1, "iteration": 0, "output": 1})
    world.decide([done, timer(world, "deadline")])
    assert world.run.status is RunStatus.SUCCEEDED


def test_a_decision_by_hand_right_behind_a_failure_is_taken() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, needs: [a], task: t"))
    failed = Message("failed", MessageType.STEP_FAILED, {"step": "a", "code": "odd"})
    by_hand = {"step": "a", "action": "skip", "by": "me", "reason": "known"}
    world.decide([failed, Message("by-hand", MessageType.OVERRIDE, by_hand)])
    assert (world.run.status, world.status("a"), world.status("b")) == (
        RunStatus.RUNNING,
        StepStatus.SKIPPED,
        StepStatus.QUEUED,
    )


def test_whoever_comes_second_is_told_by_the_journal() -> None:
    world = RunWorld(steps("id: ok, approval: {}", "id: a, needs: [ok], task: t"))
    world.approve("ok", by="first")
    second = world.approve("ok", by="second")
    assert [event.order for event in world.events(e.OrderRefused) if isinstance(event, e.OrderRefused)] == [second.id]
    assert world.run.refused == {second.id: Ignored.NOT_ASKED.value}
    told = len(world.journal)
    world.decide([second])
    assert len(world.journal) == told, "once"


@pytest.mark.parametrize("what", ["cancel", "signal"])
def test_what_was_said_to_a_life_that_ended_is_not_said_to_the_next(what: str) -> None:
    world = RunWorld(steps("id: a, task: t", "id: hear, wait_signal: {name: go}"))
    world.fail("a")
    world.send(MessageType.RETRY, by="me", reason="mended")
    assert world.run.tries == 1
    if what == "cancel":
        world.cancel(**{"try": 0})
    else:
        world.send(MessageType.SIGNAL, name="go", by="me", **{"try": 0})
    assert world.run.status is RunStatus.RUNNING
    assert world.status("hear") is StepStatus.LISTENING
    assert world.ignored[-1] is Ignored.OTHER_TRY
    world.cancel(**{"try": 1})
    assert [event.type for event in world.events()][-1] == "run.cancelled"


def test_a_map_that_is_taken_up_again_asks_for_its_key_first() -> None:
    text = steps("id: m, map: {over: input, task: t}, concurrency: {key: \"'k'\"}")
    world = RunWorld(text, [1, 2])
    world.let_in("m")
    world.complete("m--0", "done")
    world.fail("m--1")
    world.send(MessageType.RETRY, by="me", reason="mended")
    assert (world.status("m"), world.tasks()) == (StepStatus.BLOCKED, {})
    world.let_in("m")
    assert list(world.tasks()) == ["m--1"], "and goes on with what is not done"
    world.complete("m--1", "too")
    assert world.run.output == {"m": ["done", "too"]}


def test_maps_of_one_run_have_so_many_items_together() -> None:
    half = MAX_ITEMS_OF_RUN // 2
    world = RunWorld(steps(*(f"id: m{number}, map: {{over: input, task: t}}" for number in range(3))), [0] * half)
    assert (world.failure.code, world.run.failed_step) == ("expression", "m2")


def test_steps_that_are_written_backwards_cost_no_more(time_bounds: TimeBounds) -> None:
    """One look over them moves the run on, however they stand in the document."""
    names = [f"s{number}" for number in range(250)]
    lines = [f"id: {name}, when: 'false', task: t, needs: [{', '.join(names[:at])}]" for at, name in enumerate(names)]
    read = definition.parse(steps(*reversed(lines)))
    start = {"definition": read.model_dump(mode="json", by_alias=True, exclude_defaults=True), "digest": read.digest}
    began = time.process_time()
    decided = decide("run-1", None, [Message("start", MessageType.START, start)], 0)
    assert decided.state is not None
    assert decided.state.status is RunStatus.SUCCEEDED
    time_bounds.check(time.process_time() - began, 5)


@pytest.mark.parametrize(
    "text",
    [
        steps("id: a, task: t, with: {v: {$blob: \"'sha256:0'\"}}"),
        steps("id: a, task: t", more="output: {$blob: \"'sha256:0'\"}\n"),
        steps("id: a, task: t, compensate: {task: u, with: [{$blob: '1'}]}"),
        steps("id: a, task: t", more="on_failure: {task: u, with: {$blob: '1'}}\n"),
        steps("id: a, task: t", more="continue_as_new: {when: 'false', input: {$blob: '1'}}\n"),
    ],
)
def test_a_definition_cannot_name_what_is_kept_by_reference(text: str) -> None:
    with pytest.raises(InvalidDefinitionError, match="not for definitions"):
        definition.parse(text)


def test_nor_can_an_expression_make_it_up() -> None:
    forged = f"{{'$blob': 'sha256:{'0' * 64}', 'size': 5}}"
    world = RunWorld(steps(f'id: a, task: t, with: {{v: "{forged}"}}'))
    assert world.failure.code == "expression"
