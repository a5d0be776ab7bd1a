"""Steps that want a worker in time, and workers that differ."""

from __future__ import annotations

import pytest

from fumehood.engine.definition import parse
from fumehood.engine.events import StepFailed
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunStatus, StepStatus
from fumehood.errors import InvalidDefinitionError
from tests.unit.run_world import RunWorld, steps


def test_a_step_that_no_worker_begins_in_time_fails_for_good() -> None:
    world = RunWorld(steps("id: a, task: t, start_within: 5s, retry: {attempts: 3}"))
    (timer,) = world.timers()
    assert timer.at == world.now + 5000
    world.fire()
    assert world.run.status is RunStatus.FAILED
    assert world.failure.code == "not_started"
    assert len(world.events(StepFailed)) == 1, "what never began is not tried again"


def test_a_step_that_was_begun_has_all_the_time_it_needs() -> None:
    world = RunWorld(steps("id: a, task: t, start_within: 5s"))
    (late,) = world.timers()
    world.send(MessageType.STEP_STARTED, step="a", attempt=1, iteration=0, worker_id="w")
    assert not world.timers()
    world.ring(late)
    assert world.status("a") is StepStatus.RUNNING
    world.complete("a", 1)
    assert world.run.status is RunStatus.SUCCEEDED


def test_each_attempt_is_waited_for_anew_and_the_timeout_begins_with_the_work() -> None:
    world = RunWorld(
        steps("id: a, task: t, start_within: 5s, timeout: 9s, retry: {attempts: 2, backoff: 1s, jitter: 0}")
    )
    world.send(MessageType.STEP_STARTED, step="a", attempt=1, iteration=0)
    assert [timer.body["kind"] for timer in world.timers()] == ["timeout"]
    world.fail("a", attempt=1, iteration=0)
    world.fire()  # the retry
    (timer,) = world.timers()
    assert (timer.body["kind"], timer.body["attempt"]) == ("start", 2)
    world.fire()
    assert world.failure.code == "not_started"


def test_a_step_that_goes_on_without_a_worker_lets_the_others_look() -> None:
    world = RunWorld(
        steps(
            "id: a, task: t, start_within: 1s, on_failure: continue",
            "id: b, task: t, needs: [a], with: {why: steps.a.error.code}",
        )
    )
    world.fire()
    assert world.tasks()["b"].input == {"why": "not_started"}


def test_the_word_for_workers_that_differ_travels_with_the_task() -> None:
    world = RunWorld(steps("id: a, task: t, distinct: many", "id: b, task: t"))
    assert {name: task.distinct for name, task in world.tasks().items()} == {"a": "many", "b": None}


@pytest.mark.parametrize("step", ["id: a, sleep: 1s, start_within: 1s", "id: a, approval: {}, distinct: x"])
def test_what_has_no_worker_waits_for_none(step: str) -> None:
    with pytest.raises(InvalidDefinitionError, match="has no worker"):
        parse(steps(step))
