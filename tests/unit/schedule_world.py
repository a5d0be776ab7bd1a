"""Schedulers over the in-memory broker, in a time that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from fumehood.broker.clock import ManualClock
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer
from fumehood.control.callers import ADMIN, Caller
from fumehood.control.schedule import Schedule
from fumehood.control.scheduler import Scheduler
from fumehood.control.schedules import Plan
from fumehood.control.service import Service
from fumehood.engine.zones import zone
from fumehood.wire.schedule_api import CatchUp

SMALL = b"name: w\nsteps:\n  - {id: a, task: t}\n"
DAY = 86_400.0


def instant(text: str, where: str = "UTC") -> int:
    """`2026-03-29 02:30` on the clocks of a zone."""
    read = dt.datetime.fromisoformat(text)
    return int((read if read.tzinfo else read.replace(tzinfo=zone(where))).timestamp() * 1000)


def told(at_ms: int, where: str = "UTC") -> str:
    return dt.datetime.fromtimestamp(at_ms // 1000, zone(where)).isoformat(" ", "minutes")


class ScheduleWorld:
    def __init__(self, begins: str, where: str = "UTC") -> None:
        self.where = where
        self.clock = ManualClock(instant(begins, where) / 1000)
        self.server = MemoryServer(self.clock)
        self.service = self.connect()

    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    def connect(self, faults: Faults | None = None) -> Service:
        """One more server; its scheduler is not at work."""
        return Service(MemoryBroker(self.server, faults=faults or Faults()), clock_ms=self.now_ms)

    def scheduler(self, faults: Faults | None = None, draw: random.Random | None = None) -> Scheduler:
        broker = MemoryBroker(self.server, faults=faults or Faults())
        runs = Service(broker, clock_ms=self.now_ms).runs
        return Scheduler(broker, runs, now_ms=self.now_ms, sleep=self.pause, look_seconds=DAY, draw=draw)

    async def apply(self, text: bytes = SMALL, caller: Caller = ADMIN) -> None:
        await self.service.workflows.apply("w", text, is_json=False, tenant=caller.tenant)

    async def put(self, cron: str, name: str = "s", *, catch_up: str = "none", **more: Any) -> Schedule:
        """In the zone of this world."""
        plan = Plan("w", cron, self.where, catch_up=CatchUp(catch_up), **more)
        return (await self.service.schedules.put(name, plan, ADMIN))[0]

    async def shown(self, name: str = "s") -> Schedule:
        return await self.service.schedules.get(name, ADMIN)

    # --- time ----------------------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        bell = asyncio.Event()
        cancel = self.clock.call_at(self.clock.now() + seconds, bell.set)
        try:
            await bell.wait()
        finally:
            cancel()

    async def settle(self) -> None:
        """Until nobody can move but by time."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)

    async def until(self, when: str | int) -> None:
        """Let time pass, with everything that happens on the way."""
        end = (instant(when, self.where) if isinstance(when, str) else when) / 1000
        await self.settle()
        while (due := self.clock.next_at()) is not None and due <= end:
            self.clock.advance_to(due)
            await self.settle()
        self.clock.advance_to(end)
        await self.settle()

    @contextlib.asynccontextmanager
    async def at_work(self, *schedulers: Scheduler) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(one.work()) for one in schedulers or (self.scheduler(),)]
        await self.settle()
        try:
            yield
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what came of it -----------------------------------------------------------------------------------

    def starts(self) -> dict[str, dict[str, Any]]:
        """What every run was started with, by its id, in the order of the starts."""
        found: dict[str, dict[str, Any]] = {}
        for log in self.server.inboxes:
            for _, message in sorted(log.messages.items()):
                body = json.loads(message.data)
                if body["type"] == "start":
                    found.setdefault(message.subject, body)
        return found

    def fired(self, name: str = "s") -> list[int]:
        """The times of a schedule that became runs, in order; a time that became two runs stands there twice."""
        about = [body["meta"]["schedule"] for body in self.starts().values()]
        return [one["at"] for one in about if one["name"] == name]

    def fired_at(self, name: str = "s") -> list[str]:
        return [told(at, self.where) for at in self.fired(name)]

    def runs_by_time(self) -> dict[tuple[str, int], list[str]]:
        found: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for run_id, body in self.starts().items():
            about = body["meta"]["schedule"]
            found[about["name"], about["at"]].append(run_id)
        return found
