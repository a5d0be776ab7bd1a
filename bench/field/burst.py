"""A burst: more requests at once than any pool holds. Every answer is another one, and is compared."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from bench.bare import Bare
from bench.field.engine import Watch
from bench.field.node import Jobs
from bench.field.samples import Times, times
from bench.world import BenchError

Request = Callable[[str], Awaitable[tuple[str, float]]]
"""Has a word printed: what was printed, and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The same requests, through the node with its pool on, and by hand on the bare engine."""

    requests: int
    """Of each side, all of its bursts together."""
    at_once: int
    ours: Times
    bare: Times
    ours_per_second: float
    bare_per_second: float
    attempts: tuple[float, ...] = ()
    """The ratio that is judged, of every attempt."""

    @property
    def p50(self) -> float:
        return self.ours.p50 / self.bare.p50

    @property
    def p95(self) -> float:
        return self.ours.p95 / self.bare.p95

    @property
    def p99(self) -> float:
        return self.ours.p99 / self.bare.p99

    def judged(self, *, quick: bool) -> float:
        return self.p95 if quick else self.p99


async def measure(jobs: Jobs, bare: Bare, watch: Watch, requests: int, at_once: int, turns: int) -> Burst:
    """In turns, and who begins changes: ours, bare, bare, ours. The pool is full when ours begins."""
    sides: dict[str, Request] = {"ours": _through(jobs), "bare": _by_hand(bare)}
    taken: dict[str, list[float]] = {"ours": [], "bare": []}
    whole = {"ours": 0.0, "bare": 0.0}
    for number in range(turns):
        for side in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
            await jobs.warm()
            await watch.rest()
            began = time.perf_counter()
            taken[side] += await many(sides[side], requests, at_once)
            whole[side] += time.perf_counter() - began
    return Burst(
        requests=requests * turns,
        at_once=at_once,
        ours=times(taken["ours"]),
        bare=times(taken["bare"]),
        ours_per_second=requests * turns / whole["ours"],
        bare_per_second=requests * turns / whole["bare"],
    )


async def many(request: Request, count: int, at_once: int) -> list[float]:
    """The seconds of each."""
    words: Iterator[str] = (uuid.uuid4().hex for _ in itertools.repeat(None, count))
    found: list[float] = []

    async def one_by_one() -> None:
        for word in words:
            output, seconds = await request(word)
            if output != f"{word}\n":
                raise BenchError(f"a wrong answer in a burst: {output!r}, not {word}")
            found.append(seconds)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one_by_one())
    except ExceptionGroup as errors:
        raise next((one for one in errors.exceptions if isinstance(one, BenchError)), errors) from None
    return found


def _through(jobs: Jobs) -> Request:
    async def request(word: str) -> tuple[str, float]:
        return await jobs.ask(("echo", word), str(uuid.uuid4()))

    return request


def _by_hand(bare: Bare) -> Request:
    async def request(word: str) -> tuple[str, float]:
        run = await bare.run(("echo", word))
        return run.output.decode(), run.gone

    return request
