"""Which ended commands go first when there are too many, or when they take too much room. Pure.

Those go that were not used for longest: the end of a command is a use, and so is every question for it afterwards.
Whoever began a command and waited for its end thus finds it, however many others ended meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Kept(Protocol):
    @property
    def used(self) -> float:
        """When it ended, or was last asked for."""
        ...

    @property
    def kept(self) -> int:
        """Bytes of its output on disk."""
        ...


T = TypeVar("T", bound=Kept)


def surplus(ended: Iterable[T], most: int, idle_since: float) -> list[T]:
    """Those beyond a number, but none that was used since."""
    order = _longest_unused(ended)
    return [one for one in order[: max(0, len(order) - most)] if one.used <= idle_since]


def excess(ended: Iterable[T], over: int, idle_since: float) -> list[T]:
    """Those whose output must go to free so many bytes, or as many as can be had; but none that was used since."""
    gone: list[T] = []
    for one in _longest_unused(ended):
        if over <= 0 or one.used > idle_since:
            break
        if one.kept:
            gone.append(one)
            over -= one.kept
    return gone


def _longest_unused(ended: Iterable[T]) -> list[T]:
    return sorted(ended, key=lambda one: one.used)
