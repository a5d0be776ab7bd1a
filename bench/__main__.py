"""`python -m bench [worker-api | field | engine | steps | sessions | rerank | analysis] [--quick] [--record [NAME]]`,
from the root."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import analysis, cold, engine, facts, inside, junit, load, record, rerank, sessions
from bench.attempts import attempts
from bench.bare import Bare
from bench.disturbance import Disturbance, verdict
from bench.field import bench as field
from bench.ours import Ours, Removals
from bench.report import BOUND, Report
from bench.steps import bench as steps
from bench.world import SOCKET, BenchError, NodeProcess, image, node

PARTS = ("worker-api", "field", "engine", "steps", "sessions", "rerank", "analysis")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    kind: str
    pairs: dict[str, int]
    inside: int
    rates: dict[str, dict[int, int]]
    """For each runtime: concurrency, and the number of jobs at it."""
    flood_mebibytes: dict[str, int]
    flood_rounds: int
    memory_jobs: int
    cold_seconds: float
    """For all pairs of one attempt."""
    skip_after: float
    """Seconds since the beginning after which nothing is begun that is not judged."""


FULL = Size(
    kind="full",
    pairs={"runc": 120, "runsc": 50},
    inside=60,
    rates={"runc": {1: 40, 4: 80, 8: 96}, "runsc": {1: 16, 4: 32, 8: 32}},
    flood_mebibytes={"runc": 1024, "runsc": 512},
    flood_rounds=3,
    memory_jobs=300,
    cold_seconds=900,
    skip_after=3600,
)
QUICK = Size(
    kind="quick",
    pairs={"runc": 24, "runsc": 4},
    inside=6,
    rates={"runc": {4: 16}},
    flood_mebibytes={"runc": 50},
    flood_rounds=1,
    memory_jobs=16,
    cold_seconds=18,
    skip_after=60,
)


class Bench:
    def __init__(self, size: Size, report: Report, scratch: Path) -> None:
        self._size = size
        self._report = report
        self._scratch = scratch
        self._began = time.monotonic()
        self._image = image("python")

    async def run(self) -> None:
        async with Removals.watch() as removals:
            for runtime in self._size.pairs:
                if runtime == "runc" or self._time_for(runtime):
                    await self._runtime(runtime, removals)

    async def _runtime(self, runtime: str, removals: Removals) -> None:
        async with AsyncExitStack() as stack:
            started = await stack.enter_async_context(node(runtime))
            ours = await stack.enter_async_context(Ours(started, self._image, removals))
            bare = await stack.enter_async_context(Bare(self._image, runtime, self._scratch))
            await self._cold(runtime, started, ours, bare)
            await self._rest(runtime, started, ours, bare)

    async def _cold(self, runtime: str, started: NodeProcess, ours: Ours, bare: Bare) -> None:
        """Only the ratio on runc is judged."""
        size = self._size

        async def measure() -> cold.Cold:
            _say(f"{runtime}: {size.pairs[runtime]} interleaved pairs of cold jobs")
            return await cold.measure(started, ours, bare, size.pairs[runtime], seconds=size.cold_seconds)

        found = await attempts(measure, lambda one: runtime != "runc" or one.full_ratio.value <= BOUND)
        self._report.cold[runtime] = min(found, key=lambda one: one.full_ratio.value)
        self._report.attempts[runtime] = [one.full_ratio.value for one in found]

    async def _rest(self, runtime: str, started: NodeProcess, ours: Ours, bare: Bare) -> None:
        size, report = self._size, self._report
        if self._time_for(f"{runtime}: inside a running sandbox"):
            report.inside[runtime] = await inside.measure(bare, size.inside)
        for concurrency, jobs in size.rates.get(runtime, {}).items():
            if self._time_for(f"{runtime}: {jobs} jobs, {concurrency} at once"):
                rate = await load.throughput(ours, bare, concurrency, jobs)
                report.throughput.setdefault(runtime, []).append(rate)
        amount, rounds = size.flood_mebibytes.get(runtime, 0), size.flood_rounds
        if amount and self._time_for(f"{runtime}: {amount} MiB of output"):
            report.flood[runtime] = await load.flood(started, ours, bare, amount, rounds)
        if runtime == "runc" and self._time_for(f"{runtime}: the node's memory over {size.memory_jobs} jobs"):
            report.memory[runtime] = await load.memory(started, ours, size.memory_jobs)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _time_for(self, part: str) -> bool:
        """Say what comes next, or note that there is no time for it."""
        if self._elapsed > self._size.skip_after:
            self._report.skipped.append(part)
            return False
        _say(part)
        return True


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


async def _versions(scratch: Path) -> dict[str, str]:
    async with Bare("", "runc", scratch) as bare:
        return facts.versions(await bare.versions())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", nargs="?", default="worker-api", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="a small size; fails beyond the bound")
    parser.add_argument("--record", nargs="?", const="", metavar="NAME", help="keep it in bench/records/")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="a report of tests to put into the record")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="engine: where the decider's processor time goes")
    parser.add_argument("--label", default="", metavar="TEXT", help="field: what is special about this engine")
    parser.add_argument("--socket", type=Path, default=SOCKET, metavar="PATH", help="field: the engine's socket")
    parser.add_argument("--runtimes", default="", metavar="A,B", help="field: the engine's runtimes, by name")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="field, steps: peers, too")
    options = parser.parse_args()
    tests = junit.read(options.junit, options.part) if options.junit is not None else []
    name = None if options.record is None else options.record or options.part
    disturbance = Disturbance()
    try:
        return verdict(_part(options, name, tests), disturbance.share, quick=options.quick)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _part(options: argparse.Namespace, name: str | None, tests: list[junit.TestRun]) -> int:
    match options.part:
        case "engine":
            code = engine.main(quick=options.quick, record_as=name, tests=tests, profile=options.profile)
        case "analysis":
            code = analysis.main(record_as=name)
        case "rerank":
            code = rerank.main(record_as=name)
        case "field":
            code = field.main(_field(options), record_as=name)
        case "steps":
            code = steps.main(steps.Options(options.quick, options.peers), record_as=name)
        case "sessions":
            code = sessions.main(quick=options.quick, record_as=name, tests=tests)
        case _:
            code = worker_api(quick=options.quick, record_as=name, tests=tests)
    return code


def _field(options: argparse.Namespace) -> field.Options:
    runtimes = tuple(name for name in options.runtimes.split(",") if name)
    return field.Options(options.quick, options.label, options.socket.resolve(), options.peers, runtimes)


def worker_api(*, quick: bool, record_as: str | None, tests: list[junit.TestRun]) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fumehood-bench-", dir="/var/tmp") as folder:
        size, scratch = QUICK if quick else FULL, Path(folder)
        report = Report(size.kind, facts.machine(), uvloop.run(_versions(scratch)))
        uvloop.run(Bench(size, report, scratch).run())
    report.tests = tests
    print(report.text())
    if record_as is not None:
        _say(f"kept in {record.write(report, record_as)}")
    word = "holds" if report.within_bound else "DOES NOT HOLD"
    best = report.cold["runc"].full_ratio.value
    print(f"bench: {word}: full ratio on runc {best:.3f}, at most {BOUND}; {time.monotonic() - began:.0f} s")
    return 0 if report.within_bound else 1


if __name__ == "__main__":
    sys.exit(main())
