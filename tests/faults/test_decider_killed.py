"""A decider is killed with SIGKILL at every point between reading, appending, doing and acking; nothing is lost.

For each case of `engine_cases.py` and `engine_people_cases.py` a first decider works undisturbed and tells which points
it passes. Then, for each of them, a decider is killed exactly there and another process takes over, on a run of its
own. Every run must end as the case says, with every completion counted once, and leave nothing behind: no task in the
queue, no message without an answer, no lease, no timer, no snapshot, no concurrency key.

All of these trials go on at the same time, each in a partition of its own, so that a decider's death concerns only its
own run; the waits (2 s until a dead decider's messages come again) overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket
from fumehood.control import loading
from fumehood.control.decider import Decider
from fumehood.errors import BrokerError
from fumehood.wire.protocol import EventType, TaskPayload
from tests.conformance.broker_bench import NatsServer
from tests.faults.decider_process import SNAPSHOT_EVERY, stay_near
from tests.integration.engine_cases import Case, Event, Say
from tests.integration.engine_people_cases import ALL_CASES
from tests.integration.engine_world import (
    Journals,
    Workers,
    drained,
    ended,
    held_leases,
    is_drained,
    queue_is_empty,
    run_in,
    shape,
    speak,
    start,
)
from tests.waiting import PATIENCE

LANES = 96
"""Partitions, and so trials that can rest or run at one time."""
AT_ONCE = 48
SHORT_LIFE, MOST_LIVES = 13, 6
"""Beside one death at each point, every case is tried with deciders of which each dies after a few points."""
HEALED = frozenset({"map", "timeout", "cancel"})
"""Cases in which a second decider dies, too, at each of the points at which it heals what the first one left: once when
that one had just begun the run, and once when it had just ended it."""
HEALING = 14
"""Points that this takes; beyond, it works as any other."""
LONG = frozenset({"queue", "reject", "taken up"})
THIRD = 3
"""Cases in which only every third point is tried, so that the test stays short: most of theirs are points of others,
too. Not every second one: before and after a call take turns."""
AT_LEAST = frozenset(
    f"{side} {call}"
    for side in ("before", "after")
    for call in (
        "journal.read",
        "journal.append",
        "journal.last",
        "mailboxes.send",
        "tasks.publish",
        "tasks.purge_run",
        "timers.set",
        "timers.cancel",
        "bucket.definitions.get",
        "bucket.leases.update",
        "bucket.locks.create",
        "bucket.locks.delete",
        "bucket.snapshots.get",
        "bucket.snapshots.put",
        "bucket.snapshots.delete",
        "bucket.summaries.update",
        "ack",
    )
) | {"after pull", "after ack was sent"}
"""If a decider comes to work by other calls, this test must not go blind without a word."""

ROOT = Path(__file__).parent.parent.parent


class Nursery:
    """The process that forks deciders, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._count = 0
        self._ends: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, server: NatsServer, errors: Path) -> AsyncIterator[Nursery]:
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.faults.decider_process",
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=2**20,
            )
        made = cls(process)
        listening = asyncio.create_task(made._listen())
        options = server.options()
        made._tell(
            {
                "servers": options.servers,
                "user": options.user,
                "password": options.password,
                "inbox_prefix": options.inbox_prefix,
                "partitions": server.partitions,
            }
        )
        try:
            yield made
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await listening

    def _tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            if "signal" in told:
                death = self._ends.pop(told["id"])
                if not death.cancelled():  # or whoever waited for it does not any more
                    death.set_result(told)

    def fork(self, run_id: str, partition: int, kill_at: int | None = None) -> Doomed:
        self._count += 1
        death = self._ends[self._count] = asyncio.get_running_loop().create_future()
        self._tell({"id": self._count, "run": run_id, "partition": partition, "kill_at": kill_at})
        return Doomed(self, self._count, death)

    def kill(self, number: int) -> None:
        self._tell({"id": number, "end": True})


@dataclass(frozen=True)
class Doomed:
    """One forked decider."""

    nursery: Nursery
    number: int
    death: asyncio.Future[dict[str, Any]]

    async def kill(self) -> list[str]:
        """The points that it passed."""
        self.nursery.kill(self.number)
        end = await self.death
        assert end["signal"] == signal.SIGKILL, f"a decider ended by itself after {end['trace'][-3:]}"
        trace: list[str] = end["trace"]
        return trace


@dataclass
class Coverage:
    """What came of all trials of one case."""

    points: list[str] = field(default_factory=list)
    """Those that an undisturbed decider passes."""
    tried: int = 0
    covered: int = 0
    """So many of them were somebody's last."""
    deaths: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _appends(points: list[str]) -> tuple[int, int]:
    """Where the first and the last decision have just been stored, and nothing else done."""
    numbers = [number for number, name in enumerate(points, 1) if name == "after journal.append"]
    return numbers[0], numbers[-1]


class Campaign:
    """All trials of all cases."""

    def __init__(self, broker: NatsBroker, survivors: NatsBroker, nursery: Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self._journals = Journals(broker)
        self._workers = Workers(broker, self._journals, after=self._after)
        self._survivor = Decider(survivors, now_ms=lambda: time.time_ns() // 1_000_000)
        self._lanes: asyncio.Queue[int] = asyncio.Queue()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.coverage = {case.name: Coverage() for case in ALL_CASES}
        for lane in range(broker.partitions):
            self._lanes.put_nowait(lane)

    async def run(self) -> None:
        await self._journals.open()
        async with self._workers.at_work(), asyncio.TaskGroup() as group:
            for case in ALL_CASES:
                group.create_task(self._all_points(case))
                group.create_task(self._trial(case, [SHORT_LIFE] * MOST_LIVES))

    async def _after(self, task: TaskPayload, said: Say) -> None:
        """One message, one decision: or the number of points would depend on how messages happen to meet."""
        if said.type is EventType.STARTED:
            await self._journals.until(
                task.run_id,
                lambda events: ended(events) or any(event["type"] == "step.started" for event in events),
            )

    async def _all_points(self, case: Case) -> None:
        (points,) = await self._trial(case, [])
        assert points, f"{case.name}: a decider that does nothing"
        self.coverage[case.name].points = points
        numbers = range(1, len(points) + 1, THIRD if case.name in LONG else 1)
        self.coverage[case.name].tried = len(numbers)
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self._one_point(case, number))
            for first in _appends(points) if case.name in HEALED else ():
                for second in range(1, HEALING + 1):
                    group.create_task(self._trial(case, [first, second]))

    async def _one_point(self, case: Case, number: int) -> None:
        first, *_ = await self._trial(case, [number])
        self.coverage[case.name].covered += len(first) == number

    async def _trial(self, case: Case, lives: Sequence[int]) -> list[list[str]]:
        """One run whose deciders die after so many points, one after the other, until this process takes over. What
        each of them passed; the first one lives if none is to die."""
        found = self.coverage[case.name]
        async with self._slots:
            lane = await self._lanes.get()
            run_id = run_in(self._broker, lane)
            self._workers.cases[run_id] = case
            doomed: list[Doomed] = []
            speaking = asyncio.create_task(speak(self._broker, self._journals, run_id, case))
            try:
                await self._live(case, run_id, lane, lives, doomed)
            except (AssertionError, TimeoutError, BrokerError) as error:
                first, *_ = str(error).splitlines() or [repr(error)]
                found.problems.append(f"{case.name}, {run_id}, killed at {list(lives)}: {first}")
            finally:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)
                passed = [await decider.kill() for decider in doomed]
                self._lanes.put_nowait(lane)
        died = zip(passed, lives, strict=False)
        found.deaths += [points[-1] for points, life in died if len(points) == life]
        return passed

    async def _live(self, case: Case, run_id: str, lane: int, lives: Sequence[int], doomed: list[Doomed]) -> None:
        await start(self._broker, run_id, case.text, case.given_to(run_id), case.calls)
        if not lives:
            doomed.append(self._nursery.fork(run_id, lane))
            await self._judge(case, run_id, lane)
            return
        for life in lives:
            doomed.append(self._nursery.fork(run_id, lane, life))
            if await self._is_done_with(case, run_id, lane, doomed[-1]):
                break
        async with self._taking_over(lane):
            await self._judge(case, run_id, lane)

    @contextlib.asynccontextmanager
    async def _taking_over(self, lane: int) -> AsyncIterator[None]:
        work = asyncio.create_task(self._survivor.work(lane))
        try:
            yield
            assert not work.done(), f"the survivor ended: {work}"
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _is_done_with(self, case: Case, run_id: str, lane: int, decider: Doomed) -> bool:
        """Whether a decider outlived the run, with all that is to be done after its end, instead of dying."""
        ending = asyncio.create_task(self._over(case, run_id))
        await asyncio.wait((ending, decider.death), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        end = time.monotonic() + PATIENCE
        while not decider.death.done():
            assert time.monotonic() < end, "a decider neither died nor finished"
            await asyncio.wait((decider.death,), timeout=0.2)
            if not decider.death.done() and await is_drained(self._broker, lane):
                return True
        return False

    async def _over(self, case: Case, run_id: str) -> dict[str, list[Event]]:
        """The run's events, and those of the runs that follow from it, once all have ended."""
        events = await self._journals.until(run_id, case.is_over)
        return {run_id: events} | await self._journals.relatives(events)

    async def _judge(self, case: Case, run_id: str, lane: int) -> None:
        """When no message is left, nothing else may be."""
        at_the_end = await self._over(case, run_id)
        await drained(self._broker, lane)
        events = {one: await self._journals.events(one) for one in at_the_end}
        begun, *relatives = events.values()
        problems = case.problems(begun, self._workers.seen[run_id], relatives)
        for one, known in at_the_end.items():
            await queue_is_empty(self._broker, one)
            problems += await self._left_by(one, known, events[one])
        assert not problems, "; ".join(problems)

    async def _left_by(self, run_id: str, at_the_end: list[Event], events: list[Event]) -> list[str]:
        left = {
            "journal after the end": events[len(at_the_end) :],
            "leases": await held_leases(self._broker, run_id),
            "timers": await self._broker.timers.pending(run_id),
            "snapshot": await self._broker.bucket(Bucket.SNAPSHOTS).keys(run_id),
        }
        problems = [f"{run_id} left behind: {what} {rest}" for what, rest in left.items() if rest]
        line = await self._broker.bucket(Bucket.SUMMARIES).get(run_id)
        listed = json.loads(line.value)["status"] if line is not None else None
        if f"run.{listed}" != events[-1]["type"]:
            problems.append(f"the list of runs says {listed} of {run_id}")
        return problems


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_a_decider_killed_at_any_point_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "EVERY", SNAPSHOT_EVERY)
    stay_near(LANES, monkeypatch.setattr)
    began = time.monotonic()
    server = NatsServer(tmp_path / "nats", LANES)
    server.start()
    try:
        broker, survivors = [await NatsBroker.open(server.options(), shape(LANES)) for _ in range(2)]
        async with Nursery.open(server, tmp_path / "errors") as nursery:
            campaign = Campaign(broker, survivors, nursery)
            await campaign.run()
        locks = await broker.bucket(Bucket.LOCKS).keys()
        await survivors.close()
        await broker.close()
    finally:
        server.kill()
    found = campaign.coverage
    with capsys.disabled():
        print(f"\n{sum(len(one.deaths) for one in found.values())} deaths in {time.monotonic() - began:.0f} s")
        for name, one in found.items():
            reached = (
                f"{one.covered:3} of {one.tried:3} tried of {len(one.points):3} points, {len(one.deaths):3} deaths"
            )
            print(f"  {name:15} {reached}")
            record_property(name, " ".join(reached.split()))
    problems = [problem for one in found.values() for problem in one.problems]
    assert not problems, "\n".join([*problems, (tmp_path / "errors").read_text()[-4000:]])
    assert locks == [], "a concurrency key is still held"
    for name, one in found.items():
        # where a timer and a worker race, the way of one run may have points that another one's has not
        assert one.covered >= 0.8 * one.tried, f"{name}: too many points were not reached"
    assert {death for one in found.values() for death in one.deaths} >= AT_LEAST
