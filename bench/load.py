"""Load: jobs a second beside the bare engine at the same concurrency, what a flood of output costs, and what many jobs
do to the node's memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.bare import Bare
from bench.cold import COMMAND, OUTPUT
from bench.figures import percentile
from bench.ours import Ours
from bench.world import BenchError, NodeProcess

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Throughput:
    """Whole lives (until gone) a second, at one concurrency."""

    concurrency: int
    jobs: int
    ours_per_second: float
    bare_per_second: float

    @property
    def ratio(self) -> float:
        """Bare over ours: time for each, as with all other ratios here."""
        return self.bare_per_second / self.ours_per_second


@dataclass(frozen=True, slots=True)
class Beside:
    """Cold jobs, one after another, while another program floods the same node, and without it."""

    jobs: int
    beside_ms: float
    alone_ms: float


@dataclass(frozen=True, slots=True)
class Flood:
    """One program that writes much. Times are whole lives up to the answer, the start of the container included."""

    mebibytes: int
    ours_per_second: float
    bare_per_second: float
    node_rss_growth_mib: float
    """The highest seen while the output flowed, above what it was before."""
    ours_beside: Beside
    bare_beside: Beside


@dataclass(frozen=True, slots=True)
class Memory:
    """The node's resident memory over many jobs."""

    jobs: int
    before_mib: float
    after_mib: float

    @property
    def growth_mib(self) -> float:
        return self.after_mib - self.before_mib


async def throughput(ours: Ours, bare: Bare, concurrency: int, jobs: int) -> Throughput:
    """In four turns (ours, bare, bare, ours), so that a drift of the machine's pace hits both alike."""
    our_job, bare_job, half = partial(_our_job, ours), partial(_bare_job, bare), max(concurrency, jobs // 2)
    first = await _timed(our_job, concurrency, half)
    bare_seconds = await _timed(bare_job, concurrency, half) + await _timed(bare_job, concurrency, half)
    our_seconds = first + await _timed(our_job, concurrency, half)
    return Throughput(concurrency, 2 * half, 2 * half / our_seconds, 2 * half / bare_seconds)


async def _our_job(ours: Ours) -> None:
    if (await ours.run(COMMAND)).output != OUTPUT:
        raise BenchError("a wrong answer")


async def _bare_job(bare: Bare) -> None:
    if (await bare.run(COMMAND)).output != OUTPUT.encode():
        raise BenchError("a wrong answer of the bare engine")


async def _timed(work: Callable[[], Awaitable[None]], concurrency: int, jobs: int) -> float:
    left = iter(range(jobs))

    async def worker() -> None:
        for _ in left:
            await work()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return time.perf_counter() - began


async def flood(node: NodeProcess, ours: Ours, bare: Bare, mebibytes: int, rounds: int) -> Flood:
    command = ("head", "-c", str(mebibytes * MIB), "/dev/zero")
    ours_seconds, bare_seconds, growth = [], [], 0
    for _ in range(rounds):
        before = node.rss_bytes()
        peak = asyncio.create_task(_peak(node))
        ours_seconds.append((await ours.run(command)).answered)
        peak.cancel()
        growth = max(growth, (await peak) - before)
        bare_seconds.append((await bare.run(command, keep=False)).answered)
    return Flood(
        mebibytes,
        mebibytes / percentile(ours_seconds, 0.5),
        mebibytes / percentile(bare_seconds, 0.5),
        growth / MIB,
        await _beside(ours.run(command), partial(_our_job, ours)),
        await _beside(bare.run(command, keep=False), partial(_bare_job, bare)),
    )


async def _beside(flooding: Coroutine[Any, Any, object], job: Callable[[], Awaitable[None]]) -> Beside:
    flood = asyncio.create_task(flooding)
    beside: list[float] = []
    try:
        while not flood.done():
            seconds = await _timed(job, 1, 1)
            if not flood.done() or not beside:
                beside.append(seconds)  # without the last, which outlasted the flood
        await flood
    finally:
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
    alone = [await _timed(job, 1, 1) for _ in beside]
    return Beside(len(beside), 1000 * percentile(beside, 0.5), 1000 * percentile(alone, 0.5))


async def _peak(node: NodeProcess) -> int:
    """The highest resident memory until this is cancelled."""
    highest = 0
    while True:
        highest = max(highest, node.rss_bytes())
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return highest


async def memory(node: NodeProcess, ours: Ours, jobs: int, concurrency: int = 4) -> Memory:
    async def job() -> None:
        await ours.run(COMMAND)

    before = node.rss_bytes()
    await _timed(job, concurrency, jobs)
    return Memory(jobs, before / MIB, node.rss_bytes() / MIB)
