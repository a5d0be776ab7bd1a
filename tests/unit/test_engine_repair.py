"""Repair: runs that are taken up again, and steps that somebody decides about by hand."""

from __future__ import annotations

import pytest

from fumehood.engine import events as e
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.state import Override, RunStatus, StepStatus
from tests.unit.run_world import RunWorld, steps


def failed(*lines: str, more: str = "", given: object = None) -> RunWorld:
    """Step `a` is done, and then `b` failed."""
    world = RunWorld(steps("id: a, task: t", "id: b, needs: [a], task: t", *lines, more=more), given)
    world.complete("a", "kept")
    world.fail("b", "broken")
    assert world.run.status is RunStatus.FAILED
    return world


# --- retries -----------------------------------------------------------------------------------------------


def test_a_run_is_taken_up_at_its_failed_step_and_nothing_is_done_twice() -> None:
    world = failed("id: c, needs: [b], task: t, with: {x: steps.a.output}")
    world.retry()
    assert (world.run.status, world.run.tries, world.run.failure) == (RunStatus.RUNNING, 1, None)
    assert {name: task.attempt for name, task in world.tasks().items()} == {"b": 2}, "attempts go on"
    world.complete("b", attempt=1)
    world.complete("b")
    assert world.tasks()["c"].input == {"x": "kept"}
    world.complete("c")
    assert (world.run.status, world.ignored) == (RunStatus.SUCCEEDED, [Ignored.OTHER_ATTEMPT])


def test_a_step_has_all_its_attempts_again() -> None:
    world = RunWorld(steps("id: a, task: t, retry: {attempts: 2, backoff: 1s, jitter: 0}"))
    for number in range(2):
        if number:
            world.retry()
        began = world.run.steps["a"].attempt
        world.fail("a")
        assert (world.run.steps["a"].wake_at or 0) - world.now == 1000, "and the first wait is a short one again"
        world.fire()
        world.fail("a")
        assert (world.run.status, world.run.steps["a"].attempt) == (RunStatus.FAILED, began + 1)
    assert world.run.steps["a"].attempt == 4


def test_a_map_goes_on_with_the_items_that_are_not_done() -> None:
    world = RunWorld(steps("id: m, map: {over: input, task: t, concurrency: 2}, with: {v: item}"), [7, 8, 9])
    world.complete("m--0", "first")
    world.fail("m--1")
    world.retry()
    assert {name: (task.attempt, task.input) for name, task in world.tasks().items()} == {
        "m--1": (2, {"v": 8}),
        "m--2": (2, {"v": 9}),
    }
    world.complete("m--2", "third")
    world.complete("m--1", "second")
    assert world.run.output == {"m": ["first", "second", "third"]}


def test_what_waited_begins_to_wait_anew_and_old_answers_are_for_nobody() -> None:
    waiting = ["id: nap, sleep: 1m", "id: sig, wait_signal: {name: x, timeout: 1h}", "id: ok, approval: {timeout: 1h}"]
    world = RunWorld(
        steps("id: a, task: t", *waiting, "id: sub, sub_workflow: {workflow: w2}"), pins={"w2": "sha256:0"}
    )
    old, first = world.timers(), world.child("sub")
    world.fail("a")
    world.now += 1000
    world.retry()
    assert {timer.id for timer in world.timers()}.isdisjoint(timer.id for timer in old)
    assert [timer.at - world.now for timer in world.timers()] == [60_000, 3_600_000, 3_600_000]
    for timer in old:
        world.ring(timer)
    world.send(MessageType.APPROVE, step="ok", attempt=1, approved=True, by="ann")
    world.send(MessageType.CHILD_ENDED, step="sub", child=first.run_id, status="succeeded")
    assert world.ignored == [*[Ignored.STALE_TIMER] * 3, *[Ignored.NOT_ASKED] * 2]
    assert world.child("sub").run_id != first.run_id
    assert world.run.steps["sub"].former == (first.run_id,)


def test_a_signal_that_was_taken_stays_taken() -> None:
    lines = ["id: s, wait_signal: {name: x}", "id: u, needs: [b], wait_signal: {name: x}"]
    world = RunWorld(steps("id: b, task: t", *lines))
    world.signal("x", 1)
    world.fail("b")
    world.retry()
    world.complete("b")
    assert world.status("u") is StepStatus.LISTENING, "the signal was the other step's"
    world.signal("x", 2)
    assert world.run.output == {"s": 1, "u": 2}


def test_a_deadline_counts_anew() -> None:
    world = failed(more="deadline: 10m\n")
    world.now += 3_600_000
    world.retry()
    (timer,) = world.timers()
    assert (timer.at, timer.body) == (world.now + 600_000, {"kind": "deadline", "try": 1})
    world.send(MessageType.TIMER, kind="deadline")
    assert (world.run.status, world.ignored) == (RunStatus.RUNNING, [Ignored.STALE_TIMER])
    world.fire()
    assert world.run.status is RunStatus.TIMED_OUT


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_run_that_was_cancelled_or_took_too_long_can_be_taken_up_too(end: str) -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, needs: [a], task: t", more="deadline: 10m\n"))
    world.complete("a")
    if end == "cancel":
        world.cancel()
    else:
        world.fire()
    world.retry()
    assert {name: task.attempt for name, task in world.tasks().items()} == {"b": 2}


def test_keys_are_asked_for_anew() -> None:
    text = steps("id: a, task: t, concurrency: {key: input}", more="concurrency: {key: input}\n")
    world = RunWorld(text, "k")
    world.let_in()
    world.let_in("a")
    world.fail("a")
    world.retry()
    assert [(claim.gate, claim.held) for claim in world.claims().values()] == [(".1", False)]
    world.send(MessageType.GATE, step="", gate=".0")
    assert (world.tasks(), world.ignored) == ({}, [Ignored.NOT_ASKED])
    world.let_in()
    world.let_in("a")
    assert world.tasks()["a"].attempt == 2


def test_a_step_that_was_allowed_to_fail_is_not_tried_again() -> None:
    lines = ["id: m, map: {over: input, task: t}, on_failure: continue", "id: x, task: t, on_failure: continue"]
    world = RunWorld(steps(*lines, "id: b, needs: [m, x], task: t"), [1, 2])
    world.fail("m--0")
    world.fail("x")
    world.fail("b")
    world.retry()
    assert set(world.tasks()) == {"b"}
    assert [world.status(name) for name in ("m", "m--0", "m--1", "x")] == ["failed", "failed", "cancelled", "failed"]


def test_whoever_is_told_of_failures_is_told_of_each() -> None:
    world = RunWorld(steps("id: b, task: t", more="on_failure: {task: tell}\n"))
    for number in (1, 2):
        world.fail("b")
        assert world.tasks()["--on-failure"].attempt == number
        world.complete("--on-failure")
        assert world.run.status is RunStatus.FAILED
        world.retry()
    assert set(world.tasks()) == {"b"}


def test_what_was_undone_is_not_gone_on_with() -> None:
    world = RunWorld(steps("id: a, task: t, compensate: {task: undo}", "id: b, needs: [a], task: t"))
    world.complete("a")
    world.fail("b")
    world.retry()
    world.complete("a--undo")
    world.retry()
    assert (world.run.status, world.ignored) == (RunStatus.FAILED, [Ignored.NOT_FAILED] * 2)


def test_a_run_of_which_nothing_was_undone_can_be_taken_up_and_undone_later() -> None:
    world = RunWorld(steps("id: a, task: t, compensate: {task: undo}", "id: b, needs: [a], task: t"))
    world.fail("a")
    world.retry()
    world.complete("a")
    world.fail("b")
    assert set(world.tasks()) == {"a--undo"}


def test_a_run_that_is_under_way_or_has_succeeded_is_not_taken_up() -> None:
    world = RunWorld(steps("id: a, task: t"))
    world.retry()
    world.complete("a")
    world.retry()
    assert (world.run.tries, world.ignored) == (0, [Ignored.NOT_FAILED] * 2)


def test_the_same_retry_again_is_one() -> None:
    world = failed()
    told = world.retry()
    world.fail("b")
    world.decide([told])
    assert (world.run.status, world.run.tries, world.ignored) == (RunStatus.FAILED, 1, [Ignored.DUPLICATE])


def test_an_end_and_a_retry_in_one_decision_are_both_seen() -> None:
    world = RunWorld(steps("id: sub, sub_workflow: {workflow: w2}", more="deadline: 1m\n"), pins={"w2": "sha256:0"})
    first = world.child("sub")
    timer, retry = world.timers()[0], world.retry()
    world.now += 60_000
    world.decide([Message("d", MessageType.TIMER, dict(timer.body)), Message("r", MessageType.RETRY, retry.body)])
    assert (world.run.status, world.run.tries) == (RunStatus.RUNNING, 1)
    assert world.done.stop == (first,)
    assert world.done.call == (world.child("sub"),)


# --- by hand -----------------------------------------------------------------------------------------------


def test_a_step_that_is_out_is_completed_by_hand_and_called_back() -> None:
    world = RunWorld(steps("id: a, task: t, timeout: 1m", "id: b, needs: [a], task: t, with: {x: steps.a.output}"))
    world.send(MessageType.STEP_STARTED, step="a", attempt=1)
    world.override("a", output=42)
    assert world.tasks()["b"].input == {"x": 42}
    assert [task.step for task in world.done.revoke] == ["a"]
    assert not world.timers()
    assert world.run.steps["a"].override == Override("complete", "me", "by hand")
    world.complete("a", "late", attempt=1)
    assert (world.run.steps["a"].output, world.ignored) == (42, [Ignored.NOT_HANDED_OUT])


def test_a_step_is_skipped_by_hand() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, needs: [a], task: t, when: steps.a.status == 'skipped'"))
    world.override("a", "skip")
    assert (world.status("a"), set(world.tasks())) == (StepStatus.SKIPPED, {"b"})


def test_a_run_that_failed_goes_on_where_somebody_decided_about_its_step() -> None:
    world = failed("id: c, needs: [b], task: t, with: {x: steps.b.output}", "id: d, task: t")
    world.override("b", output="by hand")
    assert (world.run.status, world.run.tries) == (RunStatus.RUNNING, 1)
    assert {name: task.attempt for name, task in world.tasks().items()} == {"c": 1, "d": 2}
    assert world.tasks()["c"].input == {"x": "by hand"}


def test_a_map_in_the_middle_is_decided_about_as_a_whole() -> None:
    world = RunWorld(steps("id: m, map: {over: input, task: t, concurrency: 2}", "id: b, task: t"), [1, 2, 3])
    world.complete("m--0", "kept")
    world.override("m", output=["by hand"])
    assert (world.run.steps["m"].output, set(world.tasks())) == (["by hand"], {"b"})
    assert {task.step for task in world.done.revoke} == {"m--1", "m--2"}
    world.fail("b")
    world.retry()
    assert set(world.tasks()) == {"b"}, "its items stay as they are"
    world.override("m--1")
    assert world.ignored == [Ignored.NOT_ASKED]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sleep: 1h", "sleeping"),
        ("wait_signal: {name: x, timeout: 1h}", "listening"),
        ("approval: {timeout: 1h}", "awaiting_approval"),
        ("sub_workflow: {workflow: w2}, timeout: 1h", "calling"),
        ("task: t, concurrency: {key: '1'}", "blocked"),
        ("task: t, needs: [z]", "pending"),
    ],
)
@pytest.mark.parametrize("action", ["skip", "complete"])
def test_whatever_a_step_waits_for_it_can_be_decided_by_hand(line: str, status: str, action: str) -> None:
    world = RunWorld(steps(f"id: a, {line}", "id: z, task: t"), pins={"w2": "sha256:0"})
    assert world.status("a") == status
    world.override("a", action, output=1)
    assert world.status("a") == {"skip": "skipped", "complete": "completed"}[action]
    assert (world.timers(), world.claims()) == ([], {})
    assert len(world.done.stop) == (status == "calling")


def test_what_has_ended_well_or_is_being_undone_is_not_decided_by_hand() -> None:
    world = RunWorld(steps("id: a, task: t, compensate: {task: undo}", "id: b, needs: [a], task: t"))
    world.complete("a")
    world.override("a")
    world.fail("b")
    world.override("b")
    world.override("a--undo")
    world.complete("a--undo")
    world.override("b")
    world.override("nobody")
    assert (world.run.status, world.ignored) == (RunStatus.FAILED, [Ignored.NOT_ASKED] * 5)


def test_the_same_decision_by_hand_again_is_one() -> None:
    world = failed("id: c, needs: [b], task: t")
    told = world.override("b")
    world.fail("c")
    world.decide([told])
    assert (world.run.status, world.ignored) == (RunStatus.FAILED, [Ignored.DUPLICATE])
    assert len(world.events(e.StepOverridden)) == 1


def test_what_was_completed_by_hand_is_undone_as_if_it_had_been_done() -> None:
    world = RunWorld(steps("id: a, task: t, compensate: {task: undo}", "id: b, needs: [a], task: t"))
    world.override("a", output={"ref": 1})
    world.fail("b")
    assert world.tasks()["a--undo"].input == {"ref": 1}
