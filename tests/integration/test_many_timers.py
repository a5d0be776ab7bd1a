"""A great many runs that wait, each on a timer of its own: what that costs a decider, and that none is forgotten.

The timers are the broker's. A decider that dies while all of them are pending must be replaced by one that knows
nothing and is at work at once: it does not read what waits, only what happens. So its memory is bounded by what it
decides, not by how many runs there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from bench.child import Child
from bench.engine_wire import Login, Wire
from bench.engine_work import run_name, start_body
from bench.engine_world import document, login, open_broker, read_journals, start_run
from bench.figures import percentile
from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import DECIDERS, GIB, Shape, run_stream
from fumehood.engine.events import Record, StepCompleted, StepSleeping
from fumehood.engine.fold import fold
from fumehood.engine.state import RunStatus
from tests.conformance.broker_bench import NatsServer
from tests.waiting import until

SHAPE = Shape(2, storage=4 * GIB)
AT_ONCE = 256
STARTS_PER_SECOND = 400
"""What a slow and busy machine does at least: the timers are due when all runs must have been started."""
WINDOW = 5
"""Seconds over which the timers are spread."""
MEMORY = 600 * 1024 * 1024
RESTART = 15.0


@functools.cache
def sleeping(seconds: int) -> bytes:
    return start_body(f"name: nap\nsteps:\n- {{id: nap, sleep: {seconds}s}}\n")


class Watched:
    """What is appended, as it is appended."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self._naps: dict[str, asyncio.Future[None]] = {}

    def nap(self, run_id: str) -> asyncio.Future[None]:
        """Done when the run has gone to sleep."""
        return self._naps.setdefault(run_id, asyncio.get_running_loop().create_future())

    async def appended(self, message: Msg) -> None:
        run_id = message.subject.rpartition(".")[2]
        if b'"step.sleeping"' in message.data and run_id in self._naps:
            nap = self._naps.pop(run_id)
            if not nap.done():
                nap.set_result(None)
        if b'"run.succeeded"' in message.data:
            self.ended.add(run_id)


class Memory:
    """The highest resident memory of whoever is the decider at the moment."""

    def __init__(self, decider: Child) -> None:
        self.decider = decider
        self.highest = 0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(OSError, StopIteration):
                self.highest = max(self.highest, self.decider.rss_bytes())
            await asyncio.sleep(0.25)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Cell:
    broker: NatsBroker
    wire: Wire
    server: NatsServer
    memory: Memory
    watched: Watched

    async def start(self, run_id: str, seconds: int) -> None:
        await start_run(self.wire, self.broker.partition_of(run_id), run_id, sleeping(seconds))

    async def new_decider(self) -> None:
        self.memory.decider = await Child.start("decider", document(self.server.options(), SHAPE))


@contextlib.asynccontextmanager
async def cell(path: Path) -> AsyncIterator[Cell]:
    async with contextlib.AsyncExitStack() as stack:
        server = NatsServer(path, SHAPE.partitions)
        stack.callback(server.kill)
        await asyncio.to_thread(server.start)
        broker = await open_broker(server.options(), SHAPE)
        stack.push_async_callback(broker.close)
        wire = await Wire.open(Login.read(login(server.options())))
        stack.push_async_callback(wire.close)
        watched = Watched()
        await wire.subscribe("journal.*.*", watched.appended)
        memory = Memory(await Child.start("decider", document(server.options(), SHAPE)))
        stack.push_async_callback(memory.close)
        made = Cell(broker, wire, server, memory, watched)
        try:
            yield made
        finally:
            await memory.decider.stop()


async def put_to_sleep(here: Cell, runs: list[str], due: float) -> None:
    """Starts them all, at most `AT_ONCE` ahead of the decider."""
    left = iter(enumerate(runs))

    async def one_by_one() -> None:
        for number, run_id in left:
            wait = due + WINDOW * number / len(runs) - time.time()
            asleep = here.watched.nap(run_id)
            await here.start(run_id, max(1, round(wait)))
            await asleep

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_by_one())


async def quiet(here: Cell) -> None:
    """Until no decider holds anything: what one holds when it dies comes late, and would blur what is measured here."""

    async def nothing_held() -> bool:
        found = [
            await here.broker.connection.api(f"CONSUMER.INFO.{run_stream(partition)}.{DECIDERS}")
            for partition in range(SHAPE.partitions)
        ]
        return not any(one["num_ack_pending"] or one["num_pending"] for one in found)

    await until(nothing_held)


async def seconds_to_a_decision(here: Cell, name: str) -> float:
    """From the death of the decider, without a word, until the next one has decided something."""
    began = time.monotonic()
    await here.memory.decider.kill()
    asleep = here.watched.nap(name)
    await here.start(name, 1)
    replacing = asyncio.create_task(here.new_decider())
    async with asyncio.timeout(60):
        await asleep
    found = time.monotonic() - began
    await replacing
    return found


async def lateness(broker: NatsBroker, runs: list[str]) -> list[float]:
    """Seconds between the moment that each was to wake up and its end; fails where one is wrong."""
    late: list[float] = []
    wrong: list[str] = []

    def look(run_id: str, records: list[Record]) -> None:
        state = fold(run_id, records)
        naps = [event for record in records for event in record.events if isinstance(event, StepSleeping)]
        ends = [record.at for record in records for event in record.events if isinstance(event, StepCompleted)]
        good = state is not None and state.status is RunStatus.SUCCEEDED and (len(naps), len(ends)) == (1, 1)
        if not good or ends[0] < naps[0].wake_at:
            wrong.append(run_id)
        else:
            late.append((ends[0] - naps[0].wake_at) / 1000)

    await read_journals(broker, runs, look)
    assert not wrong, f"{len(wrong)} of {len(runs)}: {wrong[:10]}"
    return late


async def many_timers(path: Path, count: int) -> dict[str, object]:
    runs = [run_name("nap", number) for number in range(count)]
    async with cell(path) as here:
        began = time.monotonic()
        due = time.time() + count / STARTS_PER_SECOND + 5
        await put_to_sleep(here, runs, due)
        asleep = time.monotonic() - began
        assert time.time() < due, "the machine was too slow to start them all before the first was due"
        assert not here.watched.ended
        await quiet(here)
        first = await seconds_to_a_decision(here, "after-the-restart")

        async def all_ended() -> bool:
            return len(here.watched.ended) > count  # the one after the restart, too

        await until(all_ended, due - time.time() + WINDOW + count / STARTS_PER_SECOND + 60)
        ended = time.time() - due - WINDOW
        late = await lateness(here.broker, runs)
        return {
            "runs": count,
            "starts_per_second": round(count / asleep),
            "decider_mib": round(here.memory.highest / 2**20, 1),
            "restart_to_first_decision_seconds": round(first, 1),
            "last_end_after_the_window_seconds": round(ended, 1),
            "ends_per_second": round(count / (ended + WINDOW)),
            "late_median_seconds": round(percentile(late, 0.5), 2),
            "late_p99_seconds": round(percentile(late, 0.99), 2),
            "late_most_seconds": round(max(late), 2),
        }


def judge(found: dict[str, object], record_property: Callable[[str, object], None]) -> None:
    print("many timers: " + ", ".join(f"{name} {value}" for name, value in found.items()))
    for name, value in found.items():
        record_property(name, value)
    assert float(str(found["decider_mib"])) * 2**20 < MEMORY
    assert float(str(found["restart_to_first_decision_seconds"])) < RESTART


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_thousands_of_runs_wait_and_all_wake_up(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    judge(await many_timers(tmp_path / "nats", 5_000), record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_a_hundred_thousand_runs_wait_and_all_wake_up(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    judge(await many_timers(tmp_path / "nats", 100_000), record_property)
