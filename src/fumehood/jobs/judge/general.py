"""Judges answers of a type that nobody taught us: by whether they speak of what was asked, and as the others do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fumehood.jobs.embedding.minilm import MiniLM, cosines
from fumehood.jobs.judge.marks import Between, Mark, Marks

MAX_TEXT = 16 * 1024
"""Characters: more than the model reads."""


def judge(
    request: dict[str, Any], candidates: Sequence[dict[str, Any]], model: MiniLM, between: Between
) -> list[Marks]:
    said = [_text(one) for one in candidates]
    vectors = model.texts([_text(request), *said], between)
    about = cosines(vectors[1:], vectors[0])
    return [
        _marks(bool(text), about[at], cosines(np.delete(vectors[1:], at, axis=0), vectors[1 + at]))
        for at, text in enumerate(said)
    ]


def _marks(speaks: bool, about: float, others: Sequence[float]) -> Marks:
    about = max(0.0, about) if speaks else 0.0
    agrees = (math.fsum(others) / len(others) if others else 1.0) if speaks else 0.0
    return Marks(
        (
            Mark(0.5, about, f"{about:.2f} close to what was asked"),
            Mark(0.5, agrees, f"{max(0.0, agrees):.2f} close to the other answers" if others else "the only answer"),
        )
    )


def _text(value: object) -> str:
    """What it says, without the form that it is said in: all text and all numbers, in the order of the names."""
    found, length = [], 0
    for one in _leaves(value):
        if length >= MAX_TEXT:
            break
        found.append(one[:MAX_TEXT])
        length += len(found[-1]) + 1
    return " ".join(found)[:MAX_TEXT]


def _leaves(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one[name] for name in sorted(one, reverse=True))
        elif isinstance(one, list | tuple):
            waiting.extend(reversed(one))
        elif isinstance(one, str):
            yield one
        elif one is not None:
            yield str(one)
