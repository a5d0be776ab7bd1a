"""Who gets a place where there are fewer of them than wishes: nobody keeps all of them while others wait.

As long as nobody is turned away, one owner may have everything. From then on whoever has a quarter or more gets no
further place until those who were turned away had their turn, or have not asked again for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

SHARE: Final = 4
"""One part of so many is everybody's own."""
PATIENCE_SECONDS: Final = 30.0
"""Who was turned away and has not asked again for so long does not wait any more."""
MOST_WAITING: Final = 1024
"""Owners of whom it is remembered that they wait."""


class Shares:
    """Of `most` places. Who has how many is counted by whoever asks."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._share = max(1, most // SHARE)
        self._clock = clock
        self._waiting: dict[str, float] = {}
        """Owners who were turned away, and when last, in this order."""

    def is_fair(self, owner: str, taken: Mapping[str, int]) -> bool:
        """Whether this owner may have one more, if there is one."""
        return taken.get(owner, 0) < self._share or not self._others_wait(owner)

    def turned_away(self, owner: str) -> None:
        """There was no place left for it."""
        self._waiting.pop(owner, None)
        self._waiting[owner] = self._clock()
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def served(self, owner: str) -> None:
        self._waiting.pop(owner, None)

    def _others_wait(self, owner: str) -> bool:
        since = self._clock() - PATIENCE_SECONDS
        return any(when >= since for other, when in self._waiting.items() if other != owner)
