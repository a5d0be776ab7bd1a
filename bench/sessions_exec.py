"""A command in a live session: through the warden's ways, and as `docker exec` does it, in the same container."""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bench.figures import Ratio, Summary, ratio, summary
from bench.world import BenchError

TRUE = ("true",)
PYTHON = ("python3", "-c", "print(1)")
OUTPUTS: Mapping[tuple[str, ...], bytes] = {TRUE: b"", PYTHON: b"1\n"}
BARE = "bare exec"
WARM_UP = 3

Way = Callable[[tuple[str, ...]], Awaitable[bytes]]
"""Runs a command to its end; its output. Whatever did not exit with 0 is a `BenchError`."""


@dataclass(frozen=True, slots=True)
class Live:
    """One command, by all ways."""

    command: str
    times: dict[str, Summary]
    ratios: dict[str, Ratio]
    """Each way over the bare exec."""
    attempts: tuple[float, ...] = ()
    """The largest of the ratios in every attempt, failed ones included."""


async def measure(ways: Mapping[str, Way], command: tuple[str, ...], pairs: int, *, seconds: float) -> Live:
    """All ways, `BARE` among them, in a random order each time. Fewer pairs than asked for when the time is over, but
    never fewer than half of them."""
    until = time.monotonic() + seconds
    for way in ways.values():
        for _ in range(WARM_UP):
            await _timed(way, command)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(pairs):
        if number >= pairs / 2 and time.monotonic() > until:
            break
        for name in random.sample(names, len(names)):
            taken[name].append(await _timed(ways[name], command))
    return Live(
        shlex.join(command),
        {name: summary(times) for name, times in taken.items()},
        {name: ratio(times, taken[BARE]) for name, times in taken.items() if name != BARE},
    )


async def _timed(way: Way, command: tuple[str, ...]) -> float:
    began = time.perf_counter()
    output = await way(command)
    seconds = time.perf_counter() - began
    if output != OUTPUTS[command]:
        raise BenchError(f"a wrong answer of {' '.join(command)}: {output!r}")
    return seconds
