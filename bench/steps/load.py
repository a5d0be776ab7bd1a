"""Runs a second, and one run alone: all sides in turns, and another one begins each round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.field.samples import Times, interval, times
from bench.figures import Ratio, ratio
from bench.steps.rows import OURS, ROWS
from bench.steps.side import Side

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of it, of each side."""

    rounds: int
    runs: int
    """In each round."""
    at_once: int
    alone: int
    """Runs in each round, one after the other."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's part of a round."""

    per_second: float
    cpu_ms: Mapping[str, float]
    """For each run, by process."""
    alone: Sequence[float]
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one side did."""

    per_second: float
    low: float
    high: float
    """The interval in which the median of the rounds lies with 95 % (bootstrap)."""
    least: float
    most: float
    alone: Times
    cpu_ms: dict[str, float] = field(default_factory=dict)
    ahead: Ratio | None = None
    """Our runs a second over its: above 1 we are ahead."""


def order(sides: Sequence[T], number: int) -> list[T]:
    """Of a round: the one that was second before begins, and the first one is the last."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


async def measure(sides: Sequence[Side], amount: Amount) -> dict[str, Found]:
    turns: dict[str, list[Turn]] = {side.name: [] for side in sides}
    for number in range(amount.rounds):
        for side in order(sides, number):
            turns[side.name].append(await _turn(side, amount))
    return found(turns)


async def warm_up(sides: Sequence[Side], at_once: int) -> None:
    for side in sides:
        await side.many(2 * at_once, at_once)
        await side.alone(5)


async def _turn(side: Side, amount: Amount) -> Turn:
    before = side.cpu_seconds()
    seconds = await side.many(amount.runs, amount.at_once)
    after = side.cpu_seconds()
    used = {what: 1000 * (after[what] - before[what]) / amount.runs for what in after}
    return Turn(amount.runs / seconds, used, await side.alone(amount.alone))


def found(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Found]:
    """By side, in the order of the table."""
    rates = {name: [turn.per_second for turn in taken] for name, taken in turns.items()}
    return {
        name: _found(turns[name], rates[name], rates[OURS] if OURS in rates and name != OURS else None)
        for name in ROWS
        if name in turns
    }


def _found(turns: Sequence[Turn], rates: Sequence[float], ours: Sequence[float] | None) -> Found:
    low, high = interval(rates)
    return Found(
        per_second=statistics.median(rates),
        low=low,
        high=high,
        least=min(rates),
        most=max(rates),
        alone=times([seconds for turn in turns for seconds in turn.alone]),
        cpu_ms={what: statistics.median(turn.cpu_ms[what] for turn in turns) for what in turns[0].cpu_ms},
        ahead=None if ours is None else ratio(ours, rates),
    )
