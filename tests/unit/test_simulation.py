"""The engine and its decider in bad weather: thousands of worlds, none of which may break.

Each seed is a world of a few workflows, with all that they call and go on as, two deciders, two workers, a sweep and
people who signal, approve, cancel, retry and decide by hand, under crashes, lost requests and lost answers, late,
doubled, reordered and dropped deliveries. A failing seed is named and fails the same way each time:
`python -m tests.simulation SEED`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.world import live

CHUNK = 100
IN_THE_GATE = 200
IN_FULL = 1000
RECORDED = 20_000


def weather(seeds: range) -> Counter[str]:
    """All these worlds; what happened in them, added up."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        report = asyncio.run(live(seed))
        seen.update(report.statuses)
        seen.update(crashes=report.crashes, conflicts=report.conflicts, rederived=report.rederived)
        seen.update(poisoned=report.poisoned, faults=report.faults, swept=report.swept)
    return seen


CHUNKS = [
    *range(0, IN_THE_GATE, CHUNK),
    *(pytest.param(first, marks=pytest.mark.storm) for first in range(IN_THE_GATE, IN_FULL, CHUNK)),
]


@pytest.mark.parametrize("first", CHUNKS)
def test_no_world_breaks(first: int) -> None:
    seen = weather(range(first, first + CHUNK))
    assert seen["crashes"] > 0, "the weather was too good to tell anything"
    assert seen["conflicts"] > 0
    assert seen["rederived"] > 0
    assert seen["faults"] == 0, "a decider met a fault of its own"
    assert seen["succeeded"] > CHUNK
    assert seen["failed"] + seen["timed_out"] + seen["cancelled"] > CHUNK / 4
    assert seen["swept"] <= CHUNK / 50, "the sweep is for what nobody else can put right, and that is little"


@pytest.mark.record
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(IN_FULL, RECORDED, 1000))
def test_no_world_breaks_at_full_size(first: int, record_property: Callable[[str, object], None]) -> None:
    for name, count in weather(range(first, first + 1000)).items():
        record_property(name, count)


def test_a_seed_is_one_world() -> None:
    assert asyncio.run(live(7)) == asyncio.run(live(7))
