"""The index over the real broker: through its restarts, and made anew from the runs' own histories."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket
from fumehood.broker.topology import GIB, Shape
from fumehood.control.index import Index, Source, Stage
from fumehood.control.index_query import RunFilter
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.integration.engine_world import world
from tests.unit.index_world import BEGAN, encode, line
from tests.waiting import until

NAP = "name: nap\nsteps:\n  - {id: a, sleep: 1h}\n"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def listed(index: Index, expected: set[str]) -> None:
    async def look() -> bool:
        page = await index.runs("default", RunFilter(), limit=200)
        return {run.run_id for run in page.runs} == expected

    await until(look)


async def test_a_list_is_complete_after_the_broker_was_killed(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", 1)
    server.start()
    shape = Shape(1, storage=4 * GIB, timing=TIMING)
    broker, other = [await NatsBroker.open(server.options(), shape) for _ in range(2)]
    index = Index(broker, now_ms=now_ms, base=tmp_path / "index")
    bucket = other.bucket(Bucket.SUMMARIES)
    try:
        async with index.working():
            for number in range(100):
                await bucket.put(f"run-{number:03}", encode(line(BEGAN + number)))
            await listed(index, {f"run-{number:03}" for number in range(100)})
            server.kill()
            assert len((await index.runs("default", RunFilter(), limit=200)).runs) == 100, "it serves what it knows"
            await asyncio.to_thread(server.start)
            await bucket.put("run-000", encode(line(BEGAN, status="failed")))
            await bucket.put("run-new", encode(line(BEGAN)))
            await bucket.delete("run-001")
            await listed(index, {"run-new", *(f"run-{number:03}" for number in range(100) if number != 1)})
            (dead,) = (await index.runs("default", RunFilter(dead=True))).runs
            assert dead.run_id == "run-000"

            async def young() -> bool:
                age = (await index.state()).age_seconds
                return age is not None and age < 2

            await until(young)
            assert index.failed == 0
    finally:
        for one in (broker, other):
            await one.close()
        server.kill()


async def test_lines_that_are_lost_come_back_from_the_journals(tmp_path: Path) -> None:
    async with world(tmp_path, 2, deciders=1) as here:
        runs = {await here.begin(NAP) for _ in range(30)}
        index = Index(here.broker, now_ms=now_ms, base=tmp_path / "index")
        async with index.working():
            await listed(index, runs)
            bucket = here.broker.bucket(Bucket.SUMMARIES)
            for run_id in runs:
                await bucket.purge(run_id)
            index.rebuild()
            await until(lambda: _is_ready(index))
            await listed(index, set())
            index.rebuild(Source.JOURNALS)
            await until(lambda: _is_ready(index))
            await listed(index, runs)
            assert await index.running("default") == 30


async def _is_ready(index: Index) -> bool:
    return (await index.state()).stage is Stage.READY
