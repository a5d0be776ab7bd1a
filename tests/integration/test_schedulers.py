"""Schedulers on the real broker: several side by side, killed between a start and the word that it is done with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket
from fumehood.control.callers import ADMIN
from fumehood.control.runs import Runs
from fumehood.control.schedule import Schedule
from fumehood.control.scheduler import Scheduler
from fumehood.control.schedules import Plan, Schedules
from fumehood.control.workflows import Workflows
from fumehood.wire.schedule_api import CatchUp
from tests.conformance.broker_bench import NatsServer
from tests.integration.engine_world import World, world
from tests.integration.scheduler_process import QuickClock, said
from tests.waiting import PATIENCE, until

SMALL = b"name: w\nsteps:\n  - {id: a, task: t}\n"
SPEED = 40.0
"""A minute in a second and a half: what is caught up is bounded, and a machine that stands still for a minute falls
behind by 40."""
MINUTES = 12
NAMES = [f"s{number}" for number in range(5)]
DEATHS = [2, 5, 3, 9]
"""After how many starts each of them dies."""


@dataclass
class Cell:
    here: World
    clock: QuickClock
    schedules: Schedules = field(init=False)
    runs: Runs = field(init=False)

    async def prepare(self) -> None:
        workflows = Workflows(self.here.broker, now_ms=self.clock.now_ms)
        self.runs = Runs(self.here.broker, workflows, now_ms=self.clock.now_ms)
        self.schedules = Schedules(self.here.broker, workflows, self.runs, now_ms=self.clock.now_ms)
        await workflows.apply("w", SMALL, is_json=False, tenant=ADMIN.tenant)

    async def put(self, name: str) -> Schedule:
        plan = Plan("w", "* * * * *", catch_up=CatchUp.ALL, catch_up_limit=100)
        return (await self.schedules.put(name, plan, ADMIN))[0]

    async def times(self) -> dict[str, list[int]]:
        """For which times each schedule has runs, by their ids; a decider has looked at each."""
        found: dict[str, list[int]] = {name: [] for name in NAMES}
        for entry in await self.here.broker.bucket(Bucket.SUMMARIES).entries():
            found[json.loads(entry.value)["schedule"]].append(int(entry.key[4:16], 16))
        return {name: sorted(times) for name, times in found.items()}

    async def settled_at(self, minute: int) -> dict[str, list[int]]:
        """Once every schedule is past a minute, and the runs of all times up to it are in the list."""

        async def past() -> bool:
            found = [await self.schedules.get(name, ADMIN) for name in NAMES]
            return all(one.done_until >= minute for one in found)

        await until(past)
        await self.here.settled()
        return {name: [at for at in times if at <= minute] for name, times in (await self.times()).items()}


@contextlib.asynccontextmanager
async def cell(directory: Path) -> AsyncIterator[Cell]:
    async with world(directory, 1, deciders=1) as here:
        made = Cell(here, QuickClock(time.time(), SPEED))
        await made.prepare()
        yield made


def minutes_from(schedule: Schedule, last: int) -> list[int]:
    first = schedule.next_after(schedule.created_at)
    assert first is not None
    return list(range(first, last + 1, 60_000))


async def process(server: NatsServer, clock: QuickClock, starts: int | None) -> asyncio.subprocess.Process:
    program = (sys.executable, "-m", "tests.integration.scheduler_process")
    made = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)
    assert made.stdin is not None
    made.stdin.write(said(server.options(), clock, starts))
    made.stdin.close()
    return made


@pytest.mark.storm
async def test_processes_that_are_killed_in_the_middle_fire_each_time_once(tmp_path: Path) -> None:
    """Two at a time; whenever one has died, another takes its place."""
    async with cell(tmp_path) as here, asyncio.timeout(2 * PATIENCE):
        made = {name: await here.put(name) for name in NAMES}
        left = [*DEATHS, None, None]
        alive = [await process(here.here.server, here.clock, left.pop(0)) for _ in range(2)]
        ended: list[int] = []
        try:
            while left:
                await asyncio.wait(
                    [asyncio.ensure_future(one.wait()) for one in alive], return_when=asyncio.FIRST_COMPLETED
                )
                (dead, *_) = [one for one in alive if one.returncode is not None]
                alive.remove(dead)
                ended.append(dead.returncode or 0)
                alive.append(await process(here.here.server, here.clock, left.pop(0)))
            last = here.clock.now_ms() // 60_000 * 60_000 + MINUTES * 60_000
            found = await here.settled_at(last)
        finally:
            for one in alive:
                one.kill()
                await one.wait()
    assert ended == [-signal.SIGKILL] * len(DEATHS)
    assert found == {name: minutes_from(made[name], last) for name in NAMES}


async def test_schedulers_go_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    """It is killed under two of them, and each minute of its absence is caught up, once."""
    async with cell(tmp_path) as here, asyncio.timeout(2 * PATIENCE):
        made = {name: await here.put(name) for name in NAMES}
        brokers: list[NatsBroker] = here.here.connections
        both = [
            Scheduler(broker, here.runs, now_ms=here.clock.now_ms, sleep=here.clock.sleep)
            for broker in (here.here.broker, brokers[0])
        ]
        tasks = [asyncio.create_task(one.work()) for one in both]
        try:
            await here.settled_at(here.clock.now_ms() + 60_000)
            here.here.server.kill()
            away = here.clock.now_ms()
            await until(lambda: here.clock.now_ms() >= away + 2 * 60_000)
            here.here.server.start()
            last = here.clock.now_ms() // 60_000 * 60_000 + 60_000
            found = await here.settled_at(last)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert found == {name: minutes_from(made[name], last) for name in NAMES}
