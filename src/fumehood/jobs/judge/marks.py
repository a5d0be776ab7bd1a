"""What a judge thinks of one candidate: several marks from 0 to 1, each with what it counts and the words for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DIGITS = 4
"""Marks that differ only beyond are equal: a processor may differ there from the next one."""

Between = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Mark:
    weight: float
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Marks:
    parts: tuple[Mark, ...]

    @property
    def total(self) -> float:
        """From 0 to 1: the mean by weight."""
        weights = math.fsum(one.weight for one in self.parts)
        if weights == 0:
            return 0.0
        found = math.fsum(one.weight * min(1.0, max(0.0, one.value)) for one in self.parts) / weights
        return round(found, DIGITS)

    @property
    def words(self) -> str:
        return "; ".join(one.words for one in self.parts)


def misfit(words: str = "it does not have the form of an answer to this") -> Marks:
    return Marks((Mark(1.0, 0.0, words),))


def share(part: float, of: int, none: float = 1.0) -> float:
    """`none`: what it is where there was nothing to count."""
    return part / of if of else none


UNNAMED = {"model_id": "unnamed"}


def named(candidate: dict[str, Any]) -> dict[str, Any]:
    """Candidates come without their provenance; their models want one."""
    return {**candidate, "provenance": UNNAMED}
