"""Echoes: one at a time and many at once, ours and bare in turns, and every answer compared byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Ratio, Summary, ratio, summary
from bench.world import BenchError

Echo = Callable[[bytes], Awaitable[float]]
"""Asks for an echo of a payload, compares the answer, and tells how many seconds it took."""
WARM_UP = 50
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Amount:
    rounds: int
    """In each of them all sides have a turn."""
    each: int
    """Echoes of a side in a round, one at a time."""
    many: int
    """Echoes of a side in a round, `AT_ONCE` of them at once."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One way to an echo."""

    alone: Summary
    """One at a time."""
    alone_medians: tuple[float, ...]
    """Of each round, in seconds."""
    crowd: Summary
    """`AT_ONCE` at once."""
    crowd_medians: tuple[float, ...]
    per_second: float
    """Of `AT_ONCE` at once: the median of the rounds."""
    echoes: int

    def over(self, bare: Pace) -> Ratio:
        """One at a time."""
        return ratio(self.alone_medians, bare.alone_medians)

    def crowd_over(self, bare: Pace) -> Ratio:
        return ratio(self.crowd_medians, bare.crowd_medians)


def payloads(seed: int) -> Callable[[], bytes]:
    """Never the same twice: an answer to another question is a wrong one. With blanks, escapes and an order
    of keys that any parsing on the way would change."""
    dice, numbers = random.Random(seed), itertools.count()

    def payload() -> bytes:
        words = "".join(dice.choices('aé\\"/\n☃ ', k=dice.randrange(40)))
        message = json.dumps(words, ensure_ascii=dice.random() < 0.5)
        return f'{{ "z":{next(numbers)}.0,"message" : {message}, "a":[ ]}}'.encode()

    return payload


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's part of a round, in seconds."""

    alone: list[float]
    crowd: list[float]
    all_of_crowd: float


async def measure(sides: Mapping[str, Echo], amount: Amount, payload: Callable[[], bytes]) -> dict[str, list[Turn]]:
    """The turns of all sides; who begins changes with every round."""
    for echo in sides.values():
        await many(echo, WARM_UP, payload)
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(amount.rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            turns[name].append(await _turn(sides[name], amount, payload))
    return turns


async def _turn(echo: Echo, amount: Amount, payload: Callable[[], bytes]) -> Turn:
    alone = [await echo(payload()) for _ in range(amount.each)]
    began = time.perf_counter()
    crowd = await many(echo, amount.many, payload)
    return Turn(alone, crowd, time.perf_counter() - began)


async def many(echo: Echo, count: int, payload: Callable[[], bytes]) -> list[float]:
    left, times = iter(range(count)), []

    async def one_by_one() -> None:
        for _ in left:
            times.append(await echo(payload()))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one_by_one())
    except ExceptionGroup as errors:
        raise next((one for one in errors.exceptions if isinstance(one, BenchError)), errors) from None
    return times


def paces(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Pace]:
    return {name: _pace(of) for name, of in turns.items()}


def _pace(turns: Sequence[Turn]) -> Pace:
    return Pace(
        alone=summary([one for turn in turns for one in turn.alone]),
        alone_medians=tuple(statistics.median(turn.alone) for turn in turns),
        crowd=summary([one for turn in turns for one in turn.crowd]),
        crowd_medians=tuple(statistics.median(turn.crowd) for turn in turns),
        per_second=statistics.median(len(turn.crowd) / turn.all_of_crowd for turn in turns),
        echoes=sum(len(turn.alone) + len(turn.crowd) for turn in turns),
    )
