"""Throughput and hops: the engine and the bare loop in turns, so that whatever else the machine does hits both alike.

Each side has its own servers, its own process in the middle and its own worker, all of the same kind; while one side
works, the other only waits.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass

from bench.engine_world import Side, side
from bench.figures import Ratio, Summary, ratio, summary


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of it."""

    rounds: int
    runs: int
    """Five-step runs of each side in each round."""
    at_once: int
    hop_rounds: int
    hop_runs: int
    """Runs of each side in each round of hops, one at a time; each has four hops."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Five-step runs a second."""

    rounds: int
    runs: int
    at_once: int
    ours_per_second: float
    bare_per_second: float
    ours_spread: tuple[float, float]
    bare_spread: tuple[float, float]
    ratio: Ratio
    """Ours over bare: 1 would be an engine that costs nothing."""
    decider_cpu_ms: float
    """Processor time of our process in the middle, for each run."""
    bare_cpu_ms: float
    worker_cpu_ms: float
    attempts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """From a worker's publishing of what it did until it holds the next task; one run at a time."""

    ours: Summary
    bare: Summary
    ratio: Ratio
    attempts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's part of a round."""

    per_second: float
    middle_cpu_ms: float
    worker_cpu_ms: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides, set up and warm."""

    ours: Side
    bare: Side

    async def throughput(self, amount: Amount) -> Throughput:
        ours: list[Turn] = []
        bare: list[Turn] = []
        for number in range(amount.rounds):
            turns = [(self.ours, ours), (self.bare, bare)]
            for one, kept in turns if number % 2 == 0 else reversed(turns):
                kept.append(await _turn(one, amount))
        rates = [turn.per_second for turn in ours], [turn.per_second for turn in bare]
        return Throughput(
            amount.rounds,
            amount.runs,
            amount.at_once,
            statistics.median(rates[0]),
            statistics.median(rates[1]),
            (min(rates[0]), max(rates[0])),
            (min(rates[1]), max(rates[1])),
            ratio(*rates),
            statistics.median(turn.middle_cpu_ms for turn in ours),
            statistics.median(turn.middle_cpu_ms for turn in bare),
            statistics.median(turn.worker_cpu_ms for turn in ours + bare),
        )

    async def hops(self, amount: Amount) -> Hop:
        ours: list[list[float]] = []
        bare: list[list[float]] = []
        for _ in range(amount.hop_rounds):
            for one, kept in ((self.ours, ours), (self.bare, bare)):
                await one.worker.figures()
                await one.driver.many(amount.hop_runs, 1)
                kept.append((await one.worker.figures())["hops"])
        return Hop(
            summary([hop for hops in ours for hop in hops]),
            summary([hop for hops in bare for hop in hops]),
            ratio([statistics.median(hops) for hops in ours], [statistics.median(hops) for hops in bare]),
        )


async def _turn(one: Side, amount: Amount) -> Turn:
    before = (await one.middle.figures())["cpu"], (await one.worker.figures())["cpu"]
    seconds = await one.driver.many(amount.runs, amount.at_once)
    after = (await one.middle.figures())["cpu"], (await one.worker.figures())["cpu"]
    middle, worker = (1000 * (then - now) / amount.runs for then, now in zip(after, before, strict=True))
    return Turn(amount.runs / seconds, middle, worker)


@contextlib.asynccontextmanager
async def pair(replicas: int, at_once: int, *, profile: str | None = None) -> AsyncIterator[Pair]:
    async with side("decider", replicas, profile=profile) as ours, side("bare", replicas) as bare:
        for one in (ours, bare):
            await one.driver.many(2 * at_once, at_once)
        yield Pair(ours, bare)
