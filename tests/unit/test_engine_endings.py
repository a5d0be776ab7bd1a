"""Runs that do not succeed: steps that may fail, what is undone and in which order, and who is told."""

from __future__ import annotations

import pytest

from fumehood.engine import events as e
from fumehood.engine.messages import Ignored
from fumehood.engine.state import RunStatus, StepStatus
from tests.unit.run_world import RunWorld, steps

FLIGHT = "id: flight, task: t, compensate: {task: undo, with: {ref: steps.flight.output.ref}}"
HOTEL = "id: hotel, needs: [flight], task: t, compensate: {task: undo}"
PAY = "id: pay, needs: [hotel], task: t"
TELL = "on_failure: {task: tell, with: {why: failure.code, where: failure.step}}\n"


def booked(more: str = "", *, flight: str = FLIGHT, hotel: str = HOTEL) -> RunWorld:
    """Flight and hotel are booked, and now it should be paid."""
    world = RunWorld(steps(flight, hotel, PAY, more=more))
    world.complete("flight", {"ref": "F1"})
    world.complete("hotel", {"ref": "H1"})
    assert set(world.tasks()) == {"pay"}
    return world


# --- steps that may fail -----------------------------------------------------------------------------------


def test_a_run_goes_on_over_a_step_that_may_fail_and_can_look_at_its_error() -> None:
    look = "id: b, needs: [a], task: t, when: steps.a.status == 'failed', with: {why: steps.a.error.code}"
    world = RunWorld(steps("id: a, task: t, on_failure: continue", look))
    world.fail("a", "broken")
    assert world.tasks()["b"].input == {"why": "broken"}
    world.complete("b", "mended")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"b": "mended"})


def test_a_step_that_did_not_fail_has_no_error() -> None:
    look = "id: b, needs: [a], task: t, with: {failed: has(steps.a.error)}"
    world = RunWorld(steps("id: a, task: t, on_failure: continue", look))
    world.complete("a")
    assert world.tasks()["b"].input == {"failed": False}


def test_a_run_whose_last_step_failed_all_the_same_has_succeeded() -> None:
    world = RunWorld(steps("id: a, task: t, on_failure: continue"))
    world.fail("a")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"a": None})


def test_a_map_that_may_fail_calls_back_the_items_that_are_still_out() -> None:
    each = "id: a, map: {over: input, task: t, concurrency: 2}, on_failure: continue"
    world = RunWorld(steps(each, "id: b, needs: [a], task: t"), [1, 2, 3])
    world.fail("a--0")
    assert set(world.tasks()) == {"b"}
    assert "a--1" in [task.step for task in world.done.revoke]
    assert [world.status(f"a--{number}") for number in range(3)] == ["failed", "cancelled", "cancelled"]
    world.complete("a--1", attempt=1)
    assert world.ignored == [Ignored.NOT_HANDED_OUT]


@pytest.mark.parametrize(
    "line",
    [
        "id: a, on_failure: continue, task: t, with: {x: input.missing}",
        "id: a, on_failure: continue, wait_signal: {name: x, timeout: 1s}",
        "id: a, on_failure: continue, sub_workflow: {workflow: nowhere}",
    ],
)
def test_however_a_step_that_may_fail_does_so_the_run_goes_on(line: str) -> None:
    world = RunWorld(steps(line, "id: b, needs: [a], task: t"), {})
    if world.timers():
        world.fire()
    assert (world.status("a"), set(world.tasks())) == (StepStatus.FAILED, {"b"})


# --- undoing -----------------------------------------------------------------------------------------------


def test_what_was_done_is_undone_in_reverse_order_one_after_the_other() -> None:
    world = booked()
    world.fail("pay", "no_money")
    assert (world.run.status, set(world.tasks())) == (RunStatus.RUNNING, {"hotel--undo"})
    assert world.tasks()["hotel--undo"].input == {"ref": "H1"}, "what the step gave, where nothing else is said"
    world.complete("hotel--undo")
    assert world.tasks()["flight--undo"].input == {"ref": "F1"}
    world.complete("flight--undo")
    assert (world.run.status, world.failure.code, world.run.failed_step) == (RunStatus.FAILED, "no_money", "pay")


def test_the_order_is_that_of_completion_not_that_of_the_definition() -> None:
    lines = [f"id: {name}, task: t, compensate: {{task: undo}}" for name in "abc"]
    world = RunWorld(steps(*lines, "id: last, needs: [a, b, c], task: t"))
    for name in "bca":
        world.complete(name)
    world.fail("last")
    undone = []
    while world.tasks():
        (name,) = world.tasks()
        undone.append(name)
        world.complete(name)
    assert undone == ["a--undo", "c--undo", "b--undo"]


def test_only_what_was_completed_is_undone() -> None:
    world = RunWorld(steps(FLIGHT, HOTEL, PAY))
    world.complete("flight", {"ref": "F1"})
    world.fail("hotel")
    assert set(world.tasks()) == {"flight--undo"}


def test_a_run_that_succeeds_undoes_nothing() -> None:
    world = booked()
    world.complete("pay")
    assert (world.run.status, world.tasks()) == (RunStatus.SUCCEEDED, {})


def test_what_is_under_way_is_called_back_before_anything_is_undone() -> None:
    world = RunWorld(steps(FLIGHT, "id: nap, sleep: 1h", "id: slow, task: t", "id: ok, approval: {timeout: 1h}"))
    world.complete("flight", {"ref": "F1"})
    world.fail("slow")
    assert set(world.tasks()) == {"flight--undo"}
    assert [world.status(name) for name in ("nap", "ok")] == ["cancelled", "cancelled"]
    assert not world.timers()


def test_an_undo_is_tried_again_and_one_that_fails_keeps_no_other_back() -> None:
    world = booked(hotel=HOTEL.replace("{task: undo}", "{task: undo, retry: {attempts: 2}, timeout: 1m}"))
    world.fail("pay", "no_money", message="poor")
    world.fail("hotel--undo")
    assert world.tasks() == {}
    world.fire()
    assert world.tasks()["hotel--undo"].attempt == 2
    world.fail("hotel--undo")
    world.complete("flight--undo")
    assert (world.run.status, world.failure.message) == (RunStatus.FAILED, "poor; not undone: hotel")


def test_an_undo_whose_input_cannot_be_made_is_one_that_failed() -> None:
    world = booked(flight=FLIGHT.replace("output.ref", "output.nothing"))
    world.cancel(reason="enough")
    world.complete("hotel--undo")
    assert world.run.status is RunStatus.CANCELLED
    assert world.events(e.RunCancelled) == [e.RunCancelled("enough; not undone: flight", "me")]


def test_an_undo_that_was_completed_counts_once() -> None:
    world = booked()
    world.fail("pay")
    world.complete("hotel--undo", attempt=1)
    world.complete("hotel--undo", attempt=1)
    assert (set(world.tasks()), world.ignored) == ({"flight--undo"}, [Ignored.NOT_HANDED_OUT])


def test_a_cancel_undoes_what_was_done() -> None:
    world = booked(TELL)
    world.cancel()
    assert (world.run.status, set(world.tasks())) == (RunStatus.RUNNING, {"hotel--undo"})
    world.complete("hotel--undo")
    world.complete("flight--undo")
    assert (world.run.status, world.tasks()) == (RunStatus.CANCELLED, {}), "a cancel is no failure to tell of"


def test_a_second_cancel_changes_nothing_unless_it_is_forced() -> None:
    world = booked()
    world.fail("pay", "no_money")
    world.cancel()
    assert (set(world.tasks()), world.ignored) == ({"hotel--undo"}, [Ignored.RUN_ENDED])
    world.cancel(force=True)
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "no_money"), "how it ends was decided before"
    assert world.failure.message.endswith("not undone: hotel, flight")
    assert [task.step for task in world.done.revoke] == ["hotel--undo"]


def test_a_deadline_begins_anew_for_the_undoing_and_ends_it() -> None:
    world = booked("deadline: 10m\n")
    first = world.timers()
    world.now += 60_000
    world.fail("pay", "no_money")
    (second,) = world.timers()
    assert second.at == world.now + 600_000
    world.complete("hotel--undo")
    for timer in first:
        world.ring(timer)
    assert (world.run.status, world.ignored) == (RunStatus.RUNNING, [Ignored.STALE_TIMER])
    world.ring(second)
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "no_money")
    assert world.failure.message.endswith("not undone: flight")


def test_a_run_whose_deadline_passes_undoes_what_it_did() -> None:
    world = booked("deadline: 10m\n")
    world.fire()
    world.complete("hotel--undo")
    world.complete("flight--undo")
    assert (world.run.status, world.failure.code) == (RunStatus.TIMED_OUT, "deadline")


# --- telling -----------------------------------------------------------------------------------------------


def test_whoever_wants_to_know_of_a_failure_is_told_after_the_undoing() -> None:
    world = booked(TELL)
    world.fail("pay", "no_money")
    world.complete("hotel--undo")
    world.complete("flight--undo")
    assert world.tasks()["--on-failure"].input == {"why": "no_money", "where": "pay"}
    assert world.tasks()["--on-failure"].type == "tell"
    world.complete("--on-failure")
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "no_money")


def test_without_an_input_of_its_own_the_errand_is_given_the_failure() -> None:
    world = RunWorld(steps("id: a, task: t", more="deadline: 1m\non_failure: {task: tell}\n"))
    world.fire()
    said = world.tasks()["--on-failure"].input
    assert (said["code"], said["status"], said["step"]) == ("deadline", "timed_out", None)


@pytest.mark.parametrize("more", ["on_failure: {task: tell}\n", "on_failure: {task: tell, with: {x: input.no}}\n"])
def test_an_errand_that_fails_changes_nothing_about_the_end(more: str) -> None:
    world = RunWorld(steps("id: a, task: t", more=more), {})
    world.fail("a", "broken")
    if world.tasks():
        world.fail("--on-failure", "mute")
    assert (world.run.status, world.failure.code, world.failure.message) == (RunStatus.FAILED, "broken", "")
    assert world.status("--on-failure") is StepStatus.FAILED


def test_a_run_that_succeeds_or_is_cancelled_tells_nobody() -> None:
    text = steps("id: a, task: t", more=TELL)
    done, cancelled = RunWorld(text), RunWorld(text)
    done.complete("a")
    cancelled.cancel()
    assert (done.run.status, cancelled.run.status) == (RunStatus.SUCCEEDED, RunStatus.CANCELLED)
