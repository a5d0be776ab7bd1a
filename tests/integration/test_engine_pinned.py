"""A run keeps the definition that it was started with, whatever is applied under its name later."""

from __future__ import annotations

import time
from pathlib import Path

from fumehood.control.runs import Runs, Start
from fumehood.control.workflows import Workflows
from fumehood.wire.protocol import EventType, TaskPayload
from tests.integration.engine_cases import Say
from tests.integration.engine_world import World, world

FIRST = b"""
name: recipe
output: {made: steps.b.output, by: "'the first'"}
steps:
- {id: a, task: t}
- {id: b, task: t, needs: [a], with: {after: steps.a.output}}
"""
SECOND = b"""
name: recipe
output: {made: steps.c.output, by: "'the second'"}
steps:
- {id: c, task: t}
"""


async def answer_next(here: World, run_id: str, step: str, output: str) -> TaskPayload:
    (delivery,) = await here.take("t")
    task = TaskPayload.model_validate_json(delivery.data)
    assert (task.run_id, task.step_id) == (run_id, step)
    await here.say(task, Say(EventType.COMPLETED, output))
    await here.broker.tasks.ack(delivery.token)
    return task


async def test_what_is_applied_later_does_not_change_a_run_that_lives(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        workflows = Workflows(here.broker, now_ms=lambda: time.time_ns() // 1_000_000)
        runs = Runs(here.broker, workflows, now_ms=lambda: time.time_ns() // 1_000_000)
        await workflows.apply("recipe", FIRST, is_json=False)
        old, _ = await runs.start(Start("recipe"))
        await here.journals.until(old, lambda events: len(events) > 0)
        await workflows.apply("recipe", SECOND, is_json=False)
        for decider in here.deciders:
            decider._known.clear()  # as after a restart: what is known comes from the journal
        await answer_next(here, old, "a", "flour")
        assert (await answer_next(here, old, "b", "bread")).input == {"after": "flour"}
        new, _ = await runs.start(Start("recipe"))
        await answer_next(here, new, "c", "cake")
        assert (await here.journals.until(old))[-1]["output"] == {"made": "bread", "by": "the first"}
        assert (await here.journals.until(new))[-1]["output"] == {"made": "cake", "by": "the second"}
