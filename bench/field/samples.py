"""Medians with intervals, and the tail. Times are taken in seconds and told in milliseconds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.field.rows import ROWS
from bench.figures import RESAMPLES, Ratio, percentile, ratio


@dataclass(frozen=True, slots=True)
class Times:
    """A set of times, in milliseconds."""

    n: int
    p50: float
    low: float
    high: float
    """The interval in which the median lies with 95 % (bootstrap)."""
    p95: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One row on one runtime."""

    times: Times
    ratio: Ratio | None = None
    """To the row of the bare engine of the same rounds that it stands against."""


@dataclass(slots=True)
class Figures:
    """What was measured on one runtime: samples in the order of their rounds, so that they are pairs."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, taken: Mapping[str, float]) -> None:
        for name, seconds in taken.items():
            self.samples.setdefault(name, []).append(seconds)

    def measured(self) -> dict[str, Measured]:
        """By row, in the order of the table."""
        return {name: self._row(name) for name in ROWS if name in self.samples}

    def _row(self, name: str) -> Measured:
        own, against = self.samples[name], ROWS[name].against
        beside = self.samples.get(against or "")
        return Measured(times(own), ratio(own, beside) if beside is not None and len(beside) == len(own) else None)


def times(seconds: Sequence[float]) -> Times:
    found = [1000 * value for value in seconds]
    low, high = interval(found)
    return Times(
        n=len(found),
        p50=statistics.median(found),
        low=low,
        high=high,
        p95=percentile(found, 0.95),
        p99=percentile(found, 0.99),
        mean=statistics.fmean(found),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, with 95 %. The dice fall the same way each time: the same samples have the same interval."""
    dice = random.Random(1)
    drawn = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def written(measured: Mapping[str, Measured]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in measured.items()}
