"""How long a worker waits before it dials again.

A console that went away is dialled again soon, at a random moment, so that a thousand workers do not come back at once.
Who was refused, or replaced by another process with the same credentials, has nothing to win by hurry: two of those
would throw each other out for ever.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 5.0
"""A stream that lived so long was a good one: the next pause is a short one again."""
FIRST_REFUSED_SECONDS: Final = 1.0
LONGEST_REFUSED_SECONDS: Final = 60.0
UNDISPUTED_SECONDS: Final = 2 * LONGEST_REFUSED_SECONDS
"""Longer than somebody who is thrown out time and again takes to come back."""


class Ending(StrEnum):
    """What became of a stream, or of the attempt to have one."""

    LOST = "lost"
    """The console does not answer, went away, or fell silent."""
    REFUSED = "refused"
    """It does not know us, or does not understand us."""
    REPLACED = "replaced"
    """Another process came with the same credentials."""


class Pauses:
    def __init__(self, targets: int, chance: random.Random) -> None:
        """Of several targets each is tried before the pause grows."""
        self._targets = targets
        self._chance = chance
        self._lost = 0
        self._refused = 0

    def after(self, ending: Ending, lived: float) -> float:
        """Seconds. `lived`: how long the console had taken the stream, 0 when it never did."""
        if ending is Ending.LOST:
            return self._after_lost(lived)
        return self._after_refused(lived)

    def _after_lost(self, lived: float) -> float:
        if lived >= STEADY_SECONDS:
            self._lost = 0
        longest = _grown(FIRST_SECONDS, self._lost // self._targets, LONGEST_SECONDS)
        self._lost += 1
        return self._chance.uniform(0.0, longest)

    def _after_refused(self, lived: float) -> float:
        if lived >= UNDISPUTED_SECONDS:
            self._refused = 0
        longest = _grown(FIRST_REFUSED_SECONDS, self._refused, LONGEST_REFUSED_SECONDS)
        self._refused += 1
        return self._chance.uniform(longest / 2, longest)


def _grown(first: float, times: int, most: float) -> float:
    return min(most, first * 2.0 ** min(times, 32))
