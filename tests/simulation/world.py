"""A world in which everything goes wrong, the same way each time for the same seed.

The real decider, the real engine and the in-memory broker run under a scheduler that crashes processes at any call,
loses requests and answers, and delays, doubles, reorders and drops deliveries. Time moves only when nobody can. After
every append the journal is folded on and held against what must never happen.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fumehood.broker import names
from fumehood.broker.clock import ManualClock
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket, KeyValue
from fumehood.control import intake, loading, locks, rates, sweep
from fumehood.control.contended import Contended
from fumehood.control.decider import Decider
from fumehood.control.rates import Limit, Rates
from fumehood.control.sweep import Sweeper
from fumehood.engine.definition import Definition
from fumehood.engine.events import Record
from fumehood.engine.messages import MessageType
from tests.simulation import invariants
from tests.simulation.people import People
from tests.simulation.watching import BrokenError, Watched
from tests.simulation.weather import Chaos, Crashed, StormyFaults
from tests.simulation.workers import IDLE_SECONDS, Workers
from tests.simulation.workflows import RATED, plan

HANGS_SECONDS = 3 * 3600
"""No workflow here waits so long for anything."""
TIDY_SECONDS = 3600
"""Good weather, until whatever was left lying about must be gone: what nobody else finds the sweep does."""
SNAPSHOT_EVERY = 6
LIMIT = Limit(12, 60_000, 1)


@dataclass
class Report:
    """What happened in one world."""

    statuses: list[str] = field(default_factory=list)
    crashes: int = 0
    conflicts: int = 0
    decisions: int = 0
    rederived: int = 0
    poisoned: int = 0
    lost: int = 0
    faults: int = 0
    swept: int = 0
    """What only the sweep could put right."""
    virtual_seconds: float = 0.0


class World:
    def __init__(self, seed: int, *, deciders: int = 2, workers: int = 2) -> None:
        self._draw = random.Random(seed)
        self._chaos = Chaos()
        self._clock = ManualClock()
        self._server = MemoryServer(self._clock, partitions=self._draw.choice([1, 4]))
        self._calm = MemoryBroker(self._server)
        self._count = (deciders, workers)
        self._plan = plan(self._draw)
        self._runs: dict[str, Watched] = {}
        self._awaited = {f"run-{number}" for number in range(len(self._plan.runs))}
        """Runs that are there, or that will be."""
        self._called: set[str] = set()
        """Runs that others called; one may have been given up before it was started."""
        types = self._plan.task_types()
        self._workers = Workers(self._draw, self._calm, self._connect, self._pause, self._now_ms, types)
        self._people = People(self._draw, self._connect, self._pause, self._now_ms)
        self._began = self._moved = self._clock.now()
        self._tips: list[int] = []
        self._published: list[int] = []
        self.report = Report()

    # --- the whole -----------------------------------------------------------------------------------------

    async def live(self) -> Report:
        """Until every run has ended, and then until nothing moves any more."""
        await self._prepare()
        processes = self._begin()
        try:
            await self._settle()
            while not await self._all_ended():
                self._tick()
                await self._settle()
                for process in processes:
                    if process.done():
                        process.result()
            self._chaos.calm_down()
            await self._tidy()
        finally:
            await self._people.close()
            for process in processes:
                process.cancel()
            await asyncio.gather(*processes, return_exceptions=True)
        await self._check()
        await self._check_end()
        self._tell()
        return self.report

    async def _prepare(self) -> None:
        for definition in self._plan.called.values():
            key = f"digest.{names.blob_hash(definition.digest)}"
            await self._calm.bucket(Bucket.DEFINITIONS).create(key, definition.canonical())
        if "rated" in self._plan.themes:
            await Rates(self._calm, now_ms=self._now_ms).set(RATED, LIMIT)
            self._server.task_consumer(RATED).offer = self._count_rated(self._server.task_consumer(RATED).offer)  # type: ignore[method-assign]
        for number, (definition, given) in enumerate(self._plan.runs):
            await self._start(f"run-{number}", definition, given)
            self._people.expect(f"run-{number}")

    def _count_rated(self, offer: Any) -> Any:
        def counted(seq: int) -> None:
            self._published.append(self._now_ms())
            offer(seq)

        return counted

    def _begin(self) -> list[asyncio.Task[None]]:
        deciders, workers = self._count
        processes = [asyncio.create_task(self._decider()) for _ in range(deciders)]
        processes += [asyncio.create_task(self._workers.live(number)) for number in range(workers)]
        return [*processes, asyncio.create_task(self._sweeper())]

    def _tell(self) -> None:
        self.report.statuses = [run.now.status.value for run in self._runs.values()]
        self.report.crashes += self._workers.crashes
        self.report.lost, self.report.poisoned = self._workers.lost, self._workers.poisoned
        self.report.virtual_seconds = self._clock.now() - self._began

    async def _tidy(self) -> None:
        until = self._clock.now() + TIDY_SECONDS
        while (due := self._clock.next_at()) is not None and due < until:
            self._clock.advance_to(due)
            await self._settle()

    def _tick(self) -> None:
        due = self._clock.next_at()
        if due is None or due - self._moved > HANGS_SECONDS:
            left = {name: run.now.steps for name, run in self._runs.items() if not run.now.status.ended}
            raise BrokenError(f"nothing moves any more: a run hangs: {self._awaited - self._runs.keys()}, {left}")
        self._clock.advance_to(due)

    async def _settle(self) -> None:
        """Until nobody can move but by time: the loop has nothing ready any more."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)

    async def _start(self, run_id: str, definition: Definition, given: Any) -> None:
        pins = {name: called.digest for name, called in self._plan.called.items()}
        document = json.loads(definition.canonical())
        body = {"definition": document, "digest": definition.digest, "input": given, "pins": pins}
        await self._calm.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))

    async def _all_ended(self) -> bool:
        """Whether every run has, and nobody has told one anything since."""
        await self._check()
        ended = all(run.now.status.ended for run in self._runs.values())
        told = any(feed.waiting or feed.flights for feeds in self._server.feeds for feed in feeds)
        return ended and self._awaited <= self._runs.keys() and not self._people.busy and not told

    # --- processes -----------------------------------------------------------------------------------------

    def _connect(self) -> MemoryBroker:
        return MemoryBroker(self._server, faults=StormyFaults(self._draw, self._chaos, self._clock))

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    async def _pause(self, seconds: float) -> None:
        bell = asyncio.Event()
        self._clock.call_at(self._clock.now() + seconds, bell.set)
        await bell.wait()

    def contended(self, bucket: KeyValue) -> Contended:
        """Keys that several processes change: who loses waits as everything here does, and by lot."""
        return Contended(bucket, sleep=self._pause, draw=self._draw.random)

    async def _decider(self) -> None:
        """A decider that is started again whenever it dies."""
        while True:
            decider = Decider(self._connect(), now_ms=self._now_ms, sleep=self._pause, pull_seconds=IDLE_SECONDS)
            loops = [asyncio.create_task(self._serve(decider, number)) for number in range(self._server.partitions)]
            try:
                await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
                for loop in loops:
                    loop.cancel()
                ends = await asyncio.gather(*loops, return_exceptions=True)
                for end in ends:
                    if isinstance(end, Exception) and not isinstance(end, asyncio.CancelledError):
                        raise end
            finally:
                for loop in loops:
                    loop.cancel()
                self.report.conflicts += decider.counters.conflicts
                self.report.decisions += decider.counters.decisions
                self.report.rederived += decider.counters.rederived
                self.report.faults += decider.counters.failed
            await self._pause(self._draw.random() * 10)

    async def _serve(self, decider: Decider, partition: int) -> None:
        """One partition, until the process dies: then this simply returns, whatever it was doing."""
        try:
            await decider.work(partition)
        except Crashed:
            self.report.crashes += 1

    async def _sweeper(self) -> None:
        """A sweep that is started again whenever it dies."""
        while True:
            sweeper = Sweeper(self._connect(), now_ms=self._now_ms, sleep=self._pause)
            try:
                await sweeper.work()
            except BaseExceptionGroup as group:  # what it looks at together are tasks of their own
                if group.split(Crashed)[1] is not None:
                    raise
                self.report.crashes += 1
            except Crashed:
                self.report.crashes += 1
            finally:
                self.report.swept += sweeper.replaced
            await self._pause(self._draw.random() * 20)

    # --- what must never happen ----------------------------------------------------------------------------

    async def _check(self) -> None:
        """Everything that was appended since the last time."""
        if (tips := [numbers.last for numbers in self._server.numbers]) == self._tips:
            return
        self._tips = tips
        moved: list[tuple[Watched, int]] = []
        looked: set[str] = set()
        while new := sorted((self._awaited | self._called) - looked):
            looked |= set(new)
            moved += [found for run_id in new if (found := await self._grown(run_id)) is not None]
        for run, calls in moved:
            invariants.check_calls(self._runs, run, calls)
            self._people.see(run.now)
        if moved:
            self._moved = self._clock.now()
            invariants.check_keys(self._runs.values())
        invariants.check_rate(self._published, LIMIT, int(self._began * 1000))
        self._people.check()

    async def _grown(self, run_id: str) -> tuple[Watched, int] | None:
        """A run that has moved, and how many of its calls were known before."""
        run = self._runs.get(run_id) or Watched(run_id, self._workers.said)
        entries = await self._calm.journal.read(run_id)
        if len(entries) < len(run.records):
            raise BrokenError(f"the journal of {run_id} became shorter")
        if len(entries) == len(run.records):
            return None
        calls = len(run.calls)
        for entry in entries[len(run.records) :]:
            run.take(Record.decode(entry.data))
        self._runs[run_id] = run
        self._expect(run)
        return run, calls

    def _expect(self, run: Watched) -> None:
        steps = run.now.steps.values()
        self._called |= {child for step in steps for child in (*step.former, step.child) if child is not None}
        if run.now.continued_as is not None:
            self._awaited.add(run.now.continued_as)

    async def _check_end(self) -> None:
        for run in self._runs.values():
            await invariants.check_tidy(self._calm, run, self._now_ms())
            invariants.check_approvals(run, self._people.told)
        await invariants.check_all_tidy(self._calm, self._runs)
        for order in self._people.orders:
            invariants.check_order(self._runs.get(order.run_id), order)


async def live(seed: int) -> Report:
    """One world. A failure names its seed: the same seed fails the same way. Snapshots are taken far more often than
    usual, so that they matter."""
    world = World(seed)
    try:
        with (
            mock.patch.object(loading, "EVERY", SNAPSHOT_EVERY),
            mock.patch.object(locks, "Contended", world.contended),
            mock.patch.object(rates, "Contended", world.contended),
            mock.patch.object(locks, "_log"),
            mock.patch.object(sweep, "_log"),
        ):
            return await world.live()
    except Exception as error:
        raise BrokenError(f"seed {seed}: {error}") from error
