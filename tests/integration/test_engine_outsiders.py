"""Workers are outsiders: what they say late, twice, wrongly or about others changes nothing, and is counted."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from fumehood.wire.protocol import EventType, TaskPayload
from tests.integration.engine_cases import STARTED, Event, Say
from tests.integration.engine_world import World, world
from tests.waiting import until

ONE = "name: w\nsteps:\n- {id: a, task: t, retry: {attempts: 3, backoff: 100ms}}\n"


def done(value: Any) -> Say:
    return Say(EventType.COMPLETED, value)


async def first_task(here: World, text: str = ONE) -> TaskPayload:
    await here.begin(text)
    (task,) = await here.take("t")
    await here.broker.tasks.ack(task.token)
    return TaskPayload.model_validate_json(task.data)


async def ignored(here: World, reason: str, count: int = 1) -> None:
    async def look() -> bool:
        return here.ignored()[reason] >= count

    await until(look)


async def finish(here: World, task: TaskPayload, value: Any = "the real one") -> list[Event]:
    """The run is still alive, and takes the answer that counts."""
    await here.say(task, done(value))
    events = await here.journals.until(task.run_id)
    assert events[-1] == {"type": "run.succeeded", "output": {"a": value}}
    return events


@pytest.mark.parametrize("partitions", [1, 4])
async def test_the_answer_of_an_older_attempt_is_not_taken(tmp_path: Path, partitions: int) -> None:
    async with world(tmp_path, partitions) as here:
        older = await first_task(here)
        await here.say(older, Say(EventType.FAILED, {"code": "unlucky"}))
        (delivery,) = await here.take("t")
        newer = TaskPayload.model_validate_json(delivery.data)
        assert newer.attempt == 2
        await here.say(older, done("late"))
        await here.say(older, Say(EventType.FAILED, {"code": "late"}))
        await ignored(here, "other_attempt", 2)
        await finish(here, newer)


async def test_an_answer_that_comes_twice_or_after_the_end_is_taken_once(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        task = await first_task(here)
        events = await finish(here, task)
        for value in ("late", "later"):
            await here.say(task, done(value))
        await ignored(here, "run_ended", 2)
        assert await here.journals.events(task.run_id) == events


async def test_events_about_another_run_or_an_unknown_step_are_ignored(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        task, victim = await first_task(here), await first_task(here)
        forged = done("forged").about(victim)
        await here.broker.histories.publish(task.run_id, forged.event_id, forged.encode())
        await ignored(here, "not_a_message")
        await here.say(task, done("?"), step_id="nowhere")
        await ignored(here, "unknown_step")
        await here.say(task, done("?"), iteration=3)
        await ignored(here, "other_iteration")
        await finish(here, task)
        await finish(here, victim)


async def test_an_event_about_a_run_that_never_began_makes_none(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        run_id = f"run-{uuid.uuid4().hex[:12]}"
        task = TaskPayload(task_id=f"{run_id}.a", run_id=run_id, step_id="a")
        await here.say(task, STARTED)
        await ignored(here, "no_run")
        assert await here.broker.journal.read(run_id) == []


def garbage(task: TaskPayload) -> list[bytes]:
    event = json.loads(done("garbage").about(task).encode())
    wrong: list[dict[str, Any]] = [
        {"type": "run.succeeded"},
        {"type": "cancel"},
        {"type": "start", "definition": {}},
        {"type": "timer", "kind": "deadline"},
        {"type": ["step.completed"]},
        {"run_id": "a.b"},
        {"step_id": 7},
        {"attempt": "1"},
        {"attempt": -1},
        {"attempt": 1.5},
        {"iteration": True},
        {"iteration": 10**30},
    ]
    documents = [json.dumps({**event, **change}).encode() for change in wrong]
    texts = [b"", b"\xff\xfe", b"null", b"[]", b'"step.completed"', b"{", b"[" * 100_000, b"\x00" * 1000]
    return [*documents, *texts]


async def test_garbage_on_history_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        task = await first_task(here)
        sent = garbage(task)
        for number, data in enumerate(sent):
            await here.broker.histories.publish(task.run_id, f"garbage-{number}", data)
        await ignored(here, "not_a_message", len(sent))
        await finish(here, task)
        assert all(decider.counters.failed == 0 for decider in here.deciders)


@pytest.mark.parametrize("payload", [b"NaN", b"Infinity", b"1e999", b'"\\ud800"', b"1" * 5000])
async def test_a_value_that_json_cannot_carry_stops_no_decider(tmp_path: Path, payload: bytes) -> None:
    """The step fails or the event is ignored; either way the run, and every other run, goes on."""
    async with world(tmp_path, 1) as here:
        task, other = await first_task(here), await first_task(here)
        event = done("@").about(task)
        await here.broker.histories.publish(task.run_id, event.event_id, event.encode().replace(b'"@"', payload))
        await finish(here, other)
        await here.settled()
        assert all(decider.counters.failed == 0 for decider in here.deciders)
        events = await here.journals.events(task.run_id)
        assert "step.completed" not in {event["type"] for event in events}


async def test_an_answer_as_large_as_a_message_may_be_is_taken(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        task = await first_task(
            here, "name: w\noutput: size(steps.a.output)\nsteps:\n- {id: a, task: t}\n- {id: b, task: t, needs: [a]}\n"
        )
        size = 1_900_000
        await here.say(task, done("x" * size))
        (delivery,) = await here.take("t")
        await here.say(TaskPayload.model_validate_json(delivery.data), done(None))
        events = await here.journals.until(task.run_id)
        assert events[-1] == {"type": "run.succeeded", "output": size}
