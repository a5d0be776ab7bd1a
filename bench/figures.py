"""Medians, percentiles and ratios of interleaved pairs.

On a shared machine a time means little and the ratio of two times taken side by side means much. So every figure that
is judged here comes from pairs, and carries an interval that says how far it can be trusted.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 1000
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Summary:
    """A set of times, in milliseconds."""

    n: int
    p50: float
    p95: float
    mean: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over bare: of the medians, and the interval in which it lies with 95 % (bootstrap over the pairs)."""

    value: float
    low: float
    high: float
    pairwise: float
    """The median of the ratios within each pair: steadier where the machine's pace drifts."""


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def summary(seconds: Sequence[float]) -> Summary:
    times = [1000 * value for value in seconds]
    return Summary(len(times), statistics.median(times), percentile(times, 0.95), statistics.fmean(times))


def ratio(ours: Sequence[float], bare: Sequence[float]) -> Ratio:
    """Both in the order of their pairs."""
    pairs = list(zip(ours, bare, strict=True))
    dice = random.Random(1)
    drawn = sorted(_of_medians(dice.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return Ratio(
        value=_of_medians(pairs),
        low=drawn[int(0.025 * RESAMPLES)],
        high=drawn[int(0.975 * RESAMPLES)],
        pairwise=statistics.median(ours / bare for ours, bare in pairs),
    )


def _of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(ours for ours, _ in pairs) / statistics.median(bare for _, bare in pairs)
