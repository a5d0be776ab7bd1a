"""Concurrency keys and `max_parallel`: what waits for its turn."""

from __future__ import annotations

import pytest

from fumehood.engine.messages import Ignored, MessageType
from fumehood.engine.moving import LONGEST_KEY
from fumehood.engine.state import RunStatus, StepStatus
from tests.unit.run_world import RunWorld, steps

ONE_EACH = "concurrency: {key: input.user}\n"
GATED = "id: a, task: t, concurrency: {key: input.user, limit: 2}"


def test_a_run_does_nothing_before_it_has_its_key_and_keeps_it_to_its_end() -> None:
    world = RunWorld(steps("id: a, task: t", "id: nap, sleep: 1s", more=ONE_EACH), {"user": "ann"})
    assert (world.claims()[""].key, world.claims()[""].limit, world.claims()[""].held) == ("ann", 1, False)
    assert (world.tasks(), world.timers()) == ({}, [])
    world.let_in()
    assert set(world.tasks()) == {"a"}
    assert world.claims()[""].held
    world.fire()
    world.complete("a")
    assert (world.run.status, [claim.key for claim in world.done.leave]) == (RunStatus.SUCCEEDED, ["ann"])


def test_a_key_may_be_any_value() -> None:
    keys = [RunWorld(steps("id: a, task: t", more=ONE_EACH), {"user": user}).claims()[""].key for user in (1, [1], "x")]
    assert keys == ["1", "[1]", "x"]


@pytest.mark.parametrize("user", [None, "x" * (LONGEST_KEY + 1)])
def test_a_key_that_cannot_be_had_fails_the_run(user: str | None) -> None:
    world = RunWorld(steps("id: a, task: t", more=ONE_EACH), {"user": user} if user else {})
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "expression")
    assert world.failure.message.startswith("concurrency: ")


def test_a_run_that_is_refused_its_key_fails_and_says_why() -> None:
    text = steps("id: a, task: t", more="concurrency: {key: input.user, on_conflict: reject}\n")
    world = RunWorld(text, {"user": "ann"})
    assert not world.claims()[""].queue
    world.let_in(refused="refused")
    assert (world.run.status, world.failure.code) == (RunStatus.FAILED, "concurrency")
    assert "'ann'" in world.failure.message
    assert world.status("a") is StepStatus.CANCELLED


def test_a_step_waits_for_its_key_and_gives_it_up_when_it_ends() -> None:
    world = RunWorld(steps(f"{GATED}, retry: {{attempts: 2}}", "id: b, task: t"), {"user": "ann"})
    assert (world.status("a"), set(world.tasks())) == (StepStatus.BLOCKED, {"b"})
    assert world.claims()["a"].limit == 2
    world.let_in("a")
    world.fail("a")
    assert world.claims()["a"].held, "a step that is tried again keeps its place"
    world.fire()
    world.complete("a")
    assert (world.claims(), [claim.step for claim in world.done.leave]) == ({}, ["a"])


def test_a_step_that_is_skipped_asks_for_nothing() -> None:
    world = RunWorld(steps(f"{GATED}, when: 'false'"), {"user": "ann"})
    assert (world.status("a"), world.claims()) == (StepStatus.SKIPPED, {})


def test_a_step_that_is_refused_its_key_fails_and_others_may_go_on() -> None:
    world = RunWorld(steps(f"{GATED}, on_failure: continue", "id: b, needs: [a], task: t"), {"user": "ann"})
    world.let_in("a", refused="full")
    assert (world.status("a"), set(world.tasks())) == (StepStatus.FAILED, {"b"})


def test_an_answer_of_the_keys_keeper_counts_once_and_only_to_who_asked() -> None:
    world = RunWorld(steps(GATED, "id: b, task: t"), {"user": "ann"})
    world.send(MessageType.GATE, step="", gate=".0")
    world.send(MessageType.GATE, step="b", gate="b.0")
    world.send(MessageType.GATE, step="a", gate="a.7")
    assert world.status("a") is StepStatus.BLOCKED
    told = world.let_in("a")
    world.decide([told])
    world.let_in("a")
    world.let_in("a", refused="refused")
    assert set(world.tasks()) == {"a", "b"}
    assert world.ignored == [*[Ignored.NOT_ASKED] * 3, Ignored.DUPLICATE, *[Ignored.NOT_ASKED] * 2]


def test_a_key_that_comes_after_the_end_is_not_taken() -> None:
    world = RunWorld(steps(GATED), {"user": "ann"})
    world.cancel()
    assert [claim.step for claim in world.done.leave] == ["a"]
    world.let_in("a")
    assert (world.ignored, world.claims()) == ([Ignored.RUN_ENDED], {})


def test_a_key_that_comes_while_things_are_undone_is_not_taken() -> None:
    undoable = "id: b, task: t, compensate: {task: undo}"
    world = RunWorld(steps(undoable, f"{GATED}, needs: [b]"), {"user": "ann"})
    world.complete("b")
    world.cancel()
    world.let_in("a")
    assert (world.status("a"), world.ignored) == (StepStatus.CANCELLED, [Ignored.NOT_ASKED])
    assert set(world.tasks()) == {"b--undo"}


def test_a_step_by_hand_gives_up_the_place_it_waited_for() -> None:
    world = RunWorld(steps(GATED, "id: b, task: t"), {"user": "ann"})
    world.override("a")
    assert [claim.step for claim in world.done.leave] == ["a"]


# --- max_parallel ------------------------------------------------------------------------------------------


def test_no_more_steps_are_at_work_than_may_be() -> None:
    world = RunWorld(steps(*(f"id: s{number}, task: t" for number in range(4)), more="max_parallel: 2\n"))
    assert set(world.tasks()) == {"s0", "s1"}
    world.complete("s1")
    assert set(world.tasks()) == {"s0", "s2"}
    world.fail("s0", retryable=False)
    assert not world.tasks()


def test_a_step_that_waits_for_its_next_attempt_keeps_its_place() -> None:
    world = RunWorld(steps("id: a, task: t, retry: {attempts: 2}", "id: b, task: t", more="max_parallel: 1\n"))
    world.fail("a")
    assert world.tasks() == {}
    world.fire()
    assert set(world.tasks()) == {"a"}
    world.complete("a")
    assert set(world.tasks()) == {"b"}


def test_a_map_is_one_step_and_so_is_a_call() -> None:
    lines = ["id: each, map: {over: input, task: t}", "id: sub, sub_workflow: {workflow: w2}", "id: b, task: t"]
    world = RunWorld(steps(*lines, more="max_parallel: 2\n"), [1, 2, 3], pins={"w2": "sha256:0"})
    assert set(world.tasks()) == {"each--0", "each--1", "each--2"}
    assert world.child("sub").attempt == 1
    world.child_ended("sub")
    assert set(world.tasks()) == {"each--0", "each--1", "each--2", "b"}


def test_what_only_waits_needs_no_place_and_takes_none() -> None:
    waiting = ["id: nap, sleep: 1h", "id: sig, wait_signal: {name: x}", "id: ok, approval: {}"]
    world = RunWorld(steps("id: a, task: t", *waiting, "id: b, task: t", more="max_parallel: 1\n"))
    found = [world.status(step) for step in ("nap", "sig", "ok")]
    assert found == [StepStatus.SLEEPING, StepStatus.LISTENING, StepStatus.AWAITING_APPROVAL]
    world.complete("a")
    assert set(world.tasks()) == {"b"}


def test_a_step_that_waits_for_its_key_leaves_its_place_to_others() -> None:
    world = RunWorld(steps(GATED, "id: b, task: t", "id: c, task: t", more="max_parallel: 1\n"), {"user": "ann"})
    assert set(world.tasks()) == {"b"}
    world.let_in("a")
    assert set(world.tasks()) == {"b"}, "it has its key, and waits for its place"
    world.complete("b")
    assert set(world.tasks()) == {"a"}
