"""How often something is measured before a bound counts as missed.

A machine that others use, too, has bad moments, and one of them says nothing about the code. Code that has become
dearer misses its bound every time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bench.disturbance import MOST_STOLEN, Disturbance

T = TypeVar("T")
ATTEMPTS = 3


async def attempts(
    measure: Callable[[], Awaitable[T]], holds: Callable[[T], bool], watch: Callable[[], Disturbance] = Disturbance
) -> list[T]:
    """Measure until it holds, `ATTEMPTS` times at most; all of them, failed ones included. Where others had the machine
    meanwhile, another attempt would tell no more."""
    found: list[T] = []
    while len(found) < ATTEMPTS:
        disturbance = watch()
        found.append(await measure())
        if holds(found[-1]) or disturbance.share > MOST_STOLEN:
            break
    return found
