"""Five-step runs on three servers, two deciders in processes of their own, and a leader that is hit again and again.

A run is *accepted* when the broker has confirmed its start. Every accepted run must succeed, and each of its steps must
be completed exactly once in its journal, whatever was repeated on the way there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from bench.child import Child
from bench.engine_wire import Login, Wire
from bench.engine_work import CHAIN, INPUT, STEPS, TASK_TYPE, run_name, start_body
from bench.engine_world import document, login, open_broker, read_journals, start_run
from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import GIB, Shape, Timing
from fumehood.engine.events import Record, StepCompleted
from fumehood.engine.fold import fold
from fumehood.engine.state import RunStatus
from fumehood.errors import BrokerError
from tests.conformance.broker_bench import WORKER, NatsCluster, NatsServer
from tests.faults.namespaced_cluster import NamespacedCluster
from tests.waiting import until

SHAPE = Shape(1, replicas=3, storage=4 * GIB, timing=Timing(feed_ack_wait=5.0, pin_timeout=1.0, task_ack_wait=5.0))
AT_ONCE = 32
LOOK_AFTER = 3.0
"""Seconds after which a run whose end nobody told of is looked at: what is only listened to can be missed."""
DRAIN = 120.0
HELD = 10.0
"""Seconds that a server stands still, or is cut off: longer than an election."""

Hit = Callable[[NatsServer], Awaitable[None]]


@dataclass
class Load:
    """Runs, one after the other in each of `AT_ONCE` lanes, until told to stop."""

    wire: Wire
    broker: NatsBroker
    accepted: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """What each run took that has ended."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _body: bytes = field(default_factory=lambda: start_body(CHAIN, INPUT))
    _number: int = 0

    async def listen(self) -> None:
        await self.wire.subscribe("journal.*.*", self._appended)

    async def _appended(self, message: Msg) -> None:
        if b'"run.succeeded"' in message.data:
            self._tell(message.subject.rpartition(".")[2])

    def _tell(self, run_id: str) -> None:
        ended = self._ends.pop(run_id, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def lane(self) -> None:
        while not self.stop.is_set():
            self._number += 1
            run_id = run_name("run", self._number)
            ended = self._ends[run_id] = asyncio.get_running_loop().create_future()
            began = time.monotonic()
            await start_run(self.wire, 0, run_id, self._body)
            self.accepted.append(run_id)
            while not ended.done():
                await asyncio.wait([ended], timeout=LOOK_AFTER)
                if not ended.done() and await self._has_ended(run_id):
                    self._tell(run_id)
            self.seconds[run_id] = time.monotonic() - began

    async def _has_ended(self, run_id: str) -> bool:
        with contextlib.suppress(BrokerError):
            last = await self.broker.journal.last(run_id)
            return last is not None and b'"run.succeeded"' in last.data
        return False

    async def progress(self, more: int) -> None:
        """Until so many more runs have ended."""
        enough = len(self.seconds) + more

        async def grown() -> bool:
            return len(self.seconds) >= enough

        await until(grown, 90)


@dataclass
class Cell:
    """The cluster with two deciders and two workers on it."""

    cluster: NatsCluster
    broker: NatsBroker
    wire: Wire
    deciders: list[Child]
    workers: list[Child]

    async def hit(self, how: Hit) -> None:
        await how(await self.cluster.leader(self.broker, "RUN_0"))


@contextlib.asynccontextmanager
async def cell(cluster: NatsCluster) -> AsyncIterator[Cell]:
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(cluster.kill)
        await asyncio.to_thread(cluster.start)
        broker = await open_broker(cluster.options(), SHAPE)
        stack.push_async_callback(broker.close)
        await broker.tasks.consumer(TASK_TYPE)
        wire = await Wire.open(Login.read(login(cluster.options())))
        stack.push_async_callback(wire.close)

        async def child(role: str, given: dict[str, Any]) -> Child:
            made = await Child.start(role, given)
            stack.push_async_callback(made.stop)
            return made

        server, worker = document(cluster.options(), SHAPE), document(cluster.options(WORKER), SHAPE)
        deciders = [await child("decider", server) for _ in range(2)]
        yield Cell(cluster, broker, wire, deciders, [await child("worker", worker) for _ in range(2)])


async def kill(server: NatsServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


async def stand_still(server: NatsServer) -> None:
    server.pause()
    try:
        await asyncio.sleep(HELD)
    finally:
        server.resume()


def cut_off(cluster: NamespacedCluster) -> Hit:
    async def cut(server: NatsServer) -> None:
        cluster.cut(server)
        try:
            await asyncio.sleep(HELD)
        finally:
            cluster.mend(server)

    return cut


async def under_load(here: Cell, hits: list[Hit], seconds: float) -> dict[str, Any]:
    """All hits, with work getting done before and after each; then everything that was accepted must end."""
    load = Load(here.wire, here.broker)
    await load.listen()
    began = time.monotonic()
    lanes = [asyncio.create_task(load.lane()) for _ in range(AT_ONCE)]
    try:
        for hit in hits:
            await load.progress(AT_ONCE)
            await here.hit(hit)
        await load.progress(AT_ONCE)
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        load.stop.set()
        _, unfinished = await asyncio.wait(lanes, timeout=DRAIN)
        hanging = [run_id for run_id in load.accepted if run_id not in load.seconds]
        assert not unfinished, f"{len(hanging)} accepted runs did not end: {hanging[:10]}"
        await asyncio.gather(*lanes)
    finally:
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
    await check(here.broker, load.accepted)
    return await report(here, load, time.monotonic() - began)


async def check(broker: NatsBroker, runs: list[str]) -> None:
    wrong: list[str] = []

    def look(run_id: str, records: list[Record]) -> None:
        completed = Counter(
            event.step for record in records for event in record.events if isinstance(event, StepCompleted)
        )
        state = fold(run_id, records)
        if state is None or state.status is not RunStatus.SUCCEEDED:
            wrong.append(f"{run_id} is {state and state.status}")
        if completed != {f"s{number}": 1 for number in range(STEPS)}:
            wrong.append(f"{run_id} completed {dict(completed)}")

    await read_journals(broker, runs, look)
    assert not wrong, f"{len(wrong)} of {len(runs)}: {wrong[:10]}"


async def report(here: Cell, load: Load, seconds: float) -> dict[str, Any]:
    deciders = [await decider.figures() for decider in here.deciders]
    workers = [await worker.figures() for worker in here.workers]
    took = sorted(load.seconds.values())
    appends = Counter[str]()
    for decider in deciders:
        appends.update(decider["journal"])
    return {
        "accepted": len(load.accepted),
        "completed": len(load.seconds),
        "seconds": round(seconds, 1),
        "runs_per_second": round(len(load.seconds) / seconds, 1),
        "median_seconds": round(took[len(took) // 2], 2),
        "slowest_seconds": round(took[-1], 1),
        "requests_repeated": here.wire.lost + sum(worker["lost"] for worker in workers),
        "appends_repeated": appends["ambiguous"] + appends["in_flight"],
        "appends_found_stored": appends["recovered"],
        "tasks_delivered_again": sum(worker["again"] for worker in workers),
        "effects_done_again": sum(decider["rederived"] for decider in deciders),
        "given_back": sum(decider["refused"] for decider in deciders),
        "conflicts": sum(decider["conflicts"] for decider in deciders),
        "decisions": "+".join(str(decider["decisions"]) for decider in deciders),
    }


def show(found: dict[str, Any], record_property: Callable[[str, object], None]) -> None:
    print("cluster under load: " + ", ".join(f"{name} {value}" for name, value in found.items()))
    for name, value in found.items():
        record_property(name, value)
    assert found["completed"] == found["accepted"]


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_every_accepted_run_completes_once_when_the_leader_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with cell(NatsCluster(tmp_path, 1)) as here:
        show(await under_load(here, [kill], seconds=10.0), record_property)


@pytest.mark.record
@pytest.mark.timeout(600)
async def test_every_accepted_run_completes_once_when_leaders_are_killed_stopped_and_cut_off(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster = NamespacedCluster(tmp_path, 1)
    async with cell(cluster) as here:
        show(await under_load(here, [kill, stand_still, cut_off(cluster)], seconds=60.0), record_property)
