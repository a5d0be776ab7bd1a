"""`python -m bench engine`: what the engine costs above a bare loop. README.md says what is compared."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from bench import facts, junit, record
from bench.attempts import attempts
from bench.engine_load import Amount, Hop, Pair, Throughput, pair
from bench.engine_report import HOP_BOUND, EngineReport


@dataclass(frozen=True, slots=True)
class Size:
    kind: str
    amounts: dict[int, Amount]
    """By the number of replicas."""


FULL = Size(
    kind="full",
    amounts={
        1: Amount(rounds=20, runs=500, at_once=128, hop_rounds=20, hop_runs=10),
        3: Amount(rounds=20, runs=300, at_once=128, hop_rounds=20, hop_runs=10),
    },
)
QUICK = Size(
    kind="quick",
    amounts={
        1: Amount(rounds=5, runs=200, at_once=128, hop_rounds=3, hop_runs=10),
        3: Amount(rounds=3, runs=150, at_once=128, hop_rounds=3, hop_runs=5),
    },
)


async def measure(size: Size, report: EngineReport, *, profile: Path | None = None) -> None:
    for replicas, amount in size.amounts.items():
        name = f"R{replicas}"
        say(f"{name}: {amount.rounds} rounds of {amount.runs} five-step runs, {amount.at_once} at once, of each side")
        path = str(profile.with_suffix(f".{name}.txt")) if profile is not None else None
        async with pair(replicas, amount.at_once, profile=path) as both:
            report.throughput[name] = await _throughput(both, amount, report.floor)
            say(f"{name}: hops")
            report.hop[name] = await _hops(both, amount)


async def _throughput(both: Pair, amount: Amount, floor: float) -> Throughput:
    found = await attempts(lambda: both.throughput(amount), lambda one: one.ratio.value >= floor)
    best = max(found, key=lambda one: one.ratio.value)
    return replace(best, attempts=tuple(one.ratio.value for one in found))


async def _hops(both: Pair, amount: Amount) -> Hop:
    found = await attempts(lambda: both.hops(amount), lambda one: one.ratio.value <= HOP_BOUND)
    best = min(found, key=lambda one: one.ratio.value)
    return replace(best, attempts=tuple(one.ratio.value for one in found))


def say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def main(*, quick: bool, record_as: str | None, tests: list[junit.TestRun], profile: Path | None = None) -> int:
    began = time.monotonic()
    report = EngineReport("quick" if quick else "full", facts.machine(), facts.broker_versions())
    report.tests = tests
    uvloop.run(measure(QUICK if quick else FULL, report, profile=profile))
    print(report.text())
    if record_as is not None:
        say(f"kept in {record.write(report, record_as)}")
    rates = ", ".join(f"{name} {rate.ratio.value:.3f}" for name, rate in report.throughput.items())
    hops = ", ".join(f"{name} {hop.ratio.value:.2f}" for name, hop in report.hop.items())
    verdict = f"DOES NOT HOLD ({'; '.join(report.failures)})" if report.failures else "holds"
    print(f"bench: {verdict}: throughput {rates}; hop {hops}; {time.monotonic() - began:.0f} s")
    return 1 if report.failures else 0
