"""A run keeps the definition that it was started with, whatever is applied under its name later."""

from __future__ import annotations

import time
from pathlib import Path

from fumehood.control.callers import ADMIN, DEFAULT_TENANT
from fumehood.control.runs import Runs, Start
from fumehood.control.workflows import Workflows
from fumehood.wire.protocol import EventType, TaskPayload
from tests.integration.engine_cases import Event, Say
from tests.integration.engine_world import World, world

FIRST = b"""
name: recipe
output: {made: steps.b.output, by: "'the first'"}
steps:
- {id: a, task: t}
- {id: b, task: t, needs: [a], with: {after: steps.a.output}}
"""
WHOLE = b"""
name: meal
output: steps.bake.output
steps:
- {id: shop, task: t}
- {id: bake, needs: [shop], sub_workflow: {workflow: recipe}, retry: {attempts: 2, backoff: 100ms}}
"""
SECOND = b"""
name: recipe
output: {made: steps.c.output, by: "'the second'"}
steps:
- {id: c, task: t}
"""


async def answer_next(here: World, run_id: str, step: str, answer: str | Say) -> TaskPayload:
    (delivery,) = await here.take("t")
    task = TaskPayload.model_validate_json(delivery.data)
    assert (task.run_id, task.step_id) == (run_id, step)
    await here.say(task, answer if isinstance(answer, Say) else Say(EventType.COMPLETED, answer))
    await here.broker.tasks.ack(delivery.token)
    return task


async def test_what_is_applied_later_does_not_change_a_run_that_lives(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        workflows = Workflows(here.broker, now_ms=lambda: time.time_ns() // 1_000_000)
        runs = Runs(here.broker, workflows, now_ms=lambda: time.time_ns() // 1_000_000)
        await workflows.apply("recipe", FIRST, is_json=False, tenant=DEFAULT_TENANT)
        old, _ = await runs.start(Start("recipe"), ADMIN)
        await here.journals.until(old, lambda events: len(events) > 0)
        await workflows.apply("recipe", SECOND, is_json=False, tenant=DEFAULT_TENANT)
        for decider in here.deciders:
            decider._known.clear()  # as after a restart: what is known comes from the journal
        await answer_next(here, old, "a", "flour")
        assert (await answer_next(here, old, "b", "bread")).input == {"after": "flour"}
        new, _ = await runs.start(Start("recipe"), ADMIN)
        await answer_next(here, new, "c", "cake")
        assert (await here.journals.until(old))[-1]["output"] == {"made": "bread", "by": "the first"}
        assert (await here.journals.until(new))[-1]["output"] == {"made": "cake", "by": "the second"}


async def test_what_a_run_will_call_is_what_it_was_when_the_run_began(tmp_path: Path) -> None:
    """Also in its second attempt, and although what it calls is applied anew before it is called."""
    async with world(tmp_path, 1) as here:
        workflows = Workflows(here.broker, now_ms=lambda: time.time_ns() // 1_000_000)
        runs = Runs(here.broker, workflows, now_ms=lambda: time.time_ns() // 1_000_000)
        await workflows.apply("recipe", FIRST, is_json=False, tenant=DEFAULT_TENANT)
        await workflows.apply("meal", WHOLE, is_json=False, tenant=DEFAULT_TENANT)
        old, _ = await runs.start(Start("meal"), ADMIN)
        await here.journals.until(old, lambda events: len(events) > 0)
        await workflows.apply("recipe", SECOND, is_json=False, tenant=DEFAULT_TENANT)
        await answer_next(here, old, "shop", "flour")
        await answer_next(here, await called(here, old, 1), "a", Say(EventType.FAILED, "burnt"))
        second = await called(here, old, 2)
        await answer_next(here, second, "a", "dough")
        await answer_next(here, second, "b", "bread")
        assert (await here.journals.until(old))[-1]["output"] == {"made": "bread", "by": "the first"}
        new, _ = await runs.start(Start("meal"), ADMIN)
        await answer_next(here, new, "shop", "sugar")
        await answer_next(here, await called(here, new, 1), "c", "cake")
        assert (await here.journals.until(new))[-1]["output"] == {"made": "cake", "by": "the second"}


async def called(here: World, run_id: str, attempt: int) -> str:
    """The run that does the work of a run's step."""

    def calls(events: list[Event]) -> list[Event]:
        return [event for event in events if event["type"] == "step.calling" and event["attempt"] == attempt]

    events = await here.journals.until(run_id, lambda events: bool(calls(events)))
    return str(calls(events)[0]["run_id"])
