"""The engine by itself: what is handed to workers, what they say about it, and the ways to end."""

from __future__ import annotations

from typing import Any

import pytest

from fumehood.engine.desired import desired, effects
from fumehood.engine.draft import backoff_ms
from fumehood.engine.messages import Ignored, MessageType
from fumehood.engine.parts import Retry
from fumehood.engine.state import RunStatus, StepStatus
from tests.unit.run_world import RUN, RunWorld, steps


def test_a_chain_runs_in_order_and_ends_with_its_last_output() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, task: t, needs: [a], with: {x: steps.a.output.y + 1}"), {"k": 1})
    assert world.tasks()["a"].input == {"k": 1}
    assert set(world.tasks()) == {"a"}
    world.complete("a", {"y": 41})
    assert world.tasks()["b"].input == {"x": 42}
    world.complete("b", "done")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"b": "done"})
    assert not desired(world.state).tasks


def test_what_is_late_repeated_or_foreign_changes_nothing() -> None:
    world = RunWorld(steps("id: a, task: t, retry: {attempts: 2}", "id: b, task: t, needs: [a]"))
    world.complete("nobody")
    world.complete("b")
    world.complete("a", attempt=2)
    world.complete("a", iteration=1)
    world.fail("a")
    world.complete("a", "late", attempt=1, iteration=0)
    world.fire()
    world.complete("a", "old attempt", attempt=1)
    assert world.status("a") is StepStatus.QUEUED
    world.complete("a", 1)
    world.complete("a", 2, attempt=2)
    assert world.run.steps["a"].output == 1
    assert world.ignored == [
        Ignored.UNKNOWN_STEP,
        Ignored.NOT_HANDED_OUT,
        Ignored.OTHER_ATTEMPT,
        Ignored.OTHER_ITERATION,
        Ignored.NOT_HANDED_OUT,
        Ignored.OTHER_ATTEMPT,
        Ignored.NOT_HANDED_OUT,
    ]


def test_retries_wait_longer_and_longer_and_then_the_run_fails() -> None:
    world = RunWorld(steps("id: a, task: t, retry: {attempts: 3, backoff: 1s, jitter: 0}"))
    waits = []
    for _ in range(2):
        world.fail("a", message="no")
        waits.append((world.run.steps["a"].wake_at or 0) - world.now)
        world.fire()
    world.fail("a")
    assert waits == [1000, 2000]
    assert (world.run.status, world.run.steps["a"].attempt) == (RunStatus.FAILED, 3)
    assert world.run.failure is not None
    assert world.run.failure.code == "failed"


@pytest.mark.parametrize("more", [{"retryable": False}, {"code": "bad_input"}])
def test_what_cannot_be_retried_is_not(more: dict[str, Any]) -> None:
    world = RunWorld(steps("id: a, task: t, retry: {attempts: 9, non_retryable: [bad_input]}"))
    world.fail("a", **more)
    assert world.run.status is RunStatus.FAILED


def test_a_failed_step_ends_the_run_and_calls_the_others_back() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, task: t", "id: c, task: t, needs: [b]"))
    world.fail("a")
    assert world.run.status is RunStatus.FAILED
    assert [world.status(step) for step in "abc"] == ["failed", "cancelled", "cancelled"]
    world.complete("b", attempt=1)
    assert world.ignored == [Ignored.RUN_ENDED]


def test_a_skipped_step_lets_those_who_need_it_go_on() -> None:
    skipped = 'id: b, task: t, needs: [a], when: "steps.a.output > 3"'
    world = RunWorld(steps("id: a, task: t", skipped, "id: c, task: t, needs: [b]"))
    world.complete("a", 1)
    assert world.status("b") is StepStatus.SKIPPED
    assert set(world.tasks()) == {"c"}


def test_an_expression_that_fails_fails_its_step_with_a_reason() -> None:
    world = RunWorld(steps("id: a, task: t, with: {x: input.missing.y}"), {})
    assert world.run.status is RunStatus.FAILED
    assert world.run.failure is not None
    assert world.run.failure.code == "expression"


def test_a_loop_continues_until_it_is_done_or_has_had_enough() -> None:
    text = steps("id: a, agent_loop: {task: llm, max_iterations: 3}")
    world = RunWorld(text, {"goal": "x"})
    world.send(MessageType.STEP_CONTINUE, step="a", attempt=1, iteration=0, output={"n": 1})
    assert world.tasks()["a"].iteration == 1
    assert world.tasks()["a"].input == {"goal": "x", "previous": {"n": 1}}
    world.send(MessageType.STEP_CONTINUE, step="a", attempt=1, iteration=0, output={"n": 9})
    assert world.ignored == [Ignored.OTHER_ITERATION]
    world.complete("a", "end")
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"a": "end"})
    endless = RunWorld(text)
    for iteration in range(3):
        endless.send(MessageType.STEP_CONTINUE, step="a", iteration=iteration)
    assert endless.run.failure is not None
    assert endless.run.failure.code == "max_iterations"


def test_only_a_loop_may_continue() -> None:
    world = RunWorld(steps("id: a, task: t"))
    world.send(MessageType.STEP_CONTINUE, step="a")
    assert world.run.status is RunStatus.FAILED
    assert world.run.failure is not None
    assert world.run.failure.code == "not_a_loop", "its worker has answered, and will not answer again"


def test_a_map_over_nothing_is_done_at_once() -> None:
    world = RunWorld(steps("id: a, map: {over: input, task: t}"), [])
    assert (world.run.status, world.run.output) == (RunStatus.SUCCEEDED, {"a": []})


def test_a_map_keeps_its_bound_and_its_order() -> None:
    world = RunWorld(steps("id: a, map: {over: input, task: t, concurrency: 2}, with: {v: item, i: index}"), [7, 8, 9])
    assert {name: task.input for name, task in world.tasks().items()} == {
        "a--0": {"v": 7, "i": 0},
        "a--1": {"v": 8, "i": 1},
    }
    world.complete("a--1", "second")
    assert set(world.tasks()) == {"a--0", "a--2"}
    world.complete("a--2", "third")
    world.complete("a--0", "first")
    assert world.run.output == {"a": ["first", "second", "third"]}


def test_an_item_that_fails_fails_the_map_and_calls_the_others_back() -> None:
    world = RunWorld(steps("id: a, map: {over: input, task: t}"), [1, 2])
    world.fail("a--0")
    assert world.run.status is RunStatus.FAILED
    assert not desired(world.state).tasks


def test_a_map_over_something_else_fails_with_a_reason() -> None:
    world = RunWorld(steps("id: a, map: {over: input, task: t}"), {"no": "list"})
    assert world.run.failure is not None
    assert "not a list" in world.run.failure.message


def test_a_sleep_ends_by_its_timer_only() -> None:
    world = RunWorld(steps("id: a, sleep: 5s", "id: b, task: t, needs: [a]"))
    world.complete("a")
    assert world.status("a") is StepStatus.SLEEPING
    began = world.now
    world.fire()
    assert world.now - began == 5000
    assert set(world.tasks()) == {"b"}


def test_a_timeout_counts_from_the_start_of_the_attempt() -> None:
    world = RunWorld(steps("id: a, task: t, timeout: 10s, retry: {attempts: 2}"))
    assert not desired(world.state).timers
    world.send(MessageType.STEP_STARTED, step="a", attempt=1, worker_id="w")
    world.fire()
    assert world.status("a") is StepStatus.WAITING
    assert world.run.steps["a"].failure is not None
    assert world.run.steps["a"].failure.code == "timeout"


def test_a_deadline_ends_the_run_whatever_our_own_clock_says() -> None:
    """The broker fires it once, by its clock; ours may be behind."""
    world = RunWorld(steps("id: a, task: t", more="deadline: 1m\n"))
    world.send(MessageType.TIMER, kind="deadline")
    assert world.run.failure is not None
    assert world.run.failure.message.endswith("a was queued"), "what it waited for is said"
    assert (world.run.status, world.status("a")) == (RunStatus.TIMED_OUT, StepStatus.CANCELLED)


def test_a_cancel_calls_back_what_is_queued_and_running() -> None:
    world = RunWorld(steps("id: a, task: t", "id: b, task: t", "id: c, sleep: 1h"))
    world.send(MessageType.STEP_STARTED, step="a")
    before = world.state
    world.send(MessageType.CANCEL, reason="changed my mind", by="me")
    assert world.run.status is RunStatus.CANCELLED
    undone = effects(before, world.state)
    assert {task.step for task in undone.revoke} == {"a", "b"}
    assert len(undone.cancel) == 1


def test_a_run_is_started_once() -> None:
    world = RunWorld(steps("id: a, task: t"))
    world.send(MessageType.START, definition={}, digest="other")
    assert world.ignored == [Ignored.DUPLICATE]


def test_jitter_is_bounded_and_always_the_same() -> None:
    retry = Retry(attempts=5, backoff=1000, jitter=0.5)
    waits = [backoff_ms(retry, RUN, f"s{number}", 1) for number in range(200)]
    assert all(1000 <= wait <= 1500 for wait in waits)
    assert len(set(waits)) > 100
    assert waits == [backoff_ms(retry, RUN, f"s{number}", 1) for number in range(200)]
