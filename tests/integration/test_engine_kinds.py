"""Every kind of step, with two deciders at work all the time, on one partition and on four."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fumehood.broker.ports import Bucket
from fumehood.engine.events import KINDS
from fumehood.wire.protocol import EventType, TaskPayload
from tests.integration.engine_cases import Say
from tests.integration.engine_people_cases import ALL_CASES
from tests.integration.engine_world import held_leases, queue_is_empty, world

COPIES = 5
"""Runs of each case at the same time."""


@pytest.mark.parametrize("partitions", [1, 4])
async def test_every_kind_ends_as_it_should(tmp_path: Path, partitions: int) -> None:
    async with world(tmp_path, partitions) as here, here.workers.at_work():
        runs = {await here.play(case): case for case in ALL_CASES for _ in range(COPIES)}
        ends = await asyncio.gather(*(here.over(run_id) for run_id in runs))
        await here.settled()
        said: set[str] = set()
        for (begun, case), (events, relatives) in zip(runs.items(), ends, strict=True):
            assert case.problems(events, here.workers.seen[begun], [*relatives.values()]) == [], case.name
            for run_id, known in {begun: events, **relatives}.items():
                said |= {event["type"] for event in known}
                assert await here.journals.events(run_id) == known, f"{case.name} went on after its end"
                await queue_is_empty(here.broker, run_id)
                assert await held_leases(here.broker, run_id) == [], case.name
                assert await here.broker.timers.pending(run_id) == [], case.name
        assert await here.broker.bucket(Bucket.LOCKS).keys() == [], "a concurrency key is still held"
        assert said == set(KINDS), "an event that no case leads to"


async def test_workers_that_say_everything_twice_and_once_more_at_the_end_change_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, 4) as here:
        said: list[tuple[TaskPayload, Say]] = []

        async def again(task: TaskPayload, what: Say) -> None:
            await here.say(task, what)
            said.append((task, what))

        here.workers.after = again
        async with here.workers.at_work():
            runs = {await here.play(case): case for case in ALL_CASES}
            ends = await asyncio.gather(*(here.over(run_id) for run_id in runs))
            for task, what in said:
                await here.say(task, what)
            await here.settled()
        for (run_id, case), (events, relatives) in zip(runs.items(), ends, strict=True):
            assert case.problems(events, here.workers.seen[run_id], [*relatives.values()]) == [], case.name
            assert await here.journals.events(run_id) == events, f"{case.name} went on after its end"
        late = sum(1 for _, what in said if what.type is EventType.COMPLETED)
        assert here.ignored()["run_ended"] >= late, "what came after the end was not counted"
