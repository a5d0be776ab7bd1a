"""`python -m bench rerank`: what the local reranker is worth on the code questions of `corpus/rerank/`, as NDCG@10.

README.md there says how the set was made.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from bench import facts, record, rerank_set
from bench.report import table
from bench.rerank_set import Question
from bench.world import BenchError
from fumehood import __version__
from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding import minilm
from fumehood.jobs.embedding.minilm import MiniLM
from fumehood.jobs.embedding.safetensors import Floats
from fumehood.jobs.rerank.ranking import DIGITS, Ranked, rank

FLOOR = 0.25
"""What the fused order must have above the original one on the questions that were held out."""
HELD = "held out"
Key = Callable[[Ranked], float]
WAYS: Mapping[str, Key] = {
    "original order": lambda one: -one.at,
    "BM25 alone": lambda one: round(one.match.score, DIGITS),
    "MiniLM alone": lambda one: round(one.similarity, DIGITS),
    "fused": lambda one: one.score,
}
"""Each way to order the candidates: the highest first, ties in the original order."""


class Remembering(MiniLM):
    """Most questions have the same candidates."""

    def __init__(self) -> None:
        super().__init__(minilm.folder())
        self._known: dict[tuple[int, ...], Floats] = {}

    def embed(self, texts: Sequence[Sequence[int]], between: Callable[[], None] = lambda: None) -> Floats:
        unknown = [text for text in texts if tuple(text) not in self._known]
        self._known.update(zip(map(tuple, unknown), super().embed(unknown, between), strict=True))
        return minilm.stacked([self._known[tuple(text)] for text in texts])


def worth(questions: Sequence[Question], model: MiniLM) -> Mapping[str, float]:
    """The mean NDCG@10 of each way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for one in questions:
        ranked = rank(one.request, model, lambda: None).order
        for way, key in WAYS.items():
            best = sorted(ranked, key=lambda item, key=key: (-key(item), item.at))  # type: ignore[misc]
            order = [one.request.candidates[item.at].id for item in best]
            found[way].append(rerank_set.ndcg(order, one.grades))
    return {way: fmean(values) for way, values in found.items()}


@dataclass(slots=True)
class RerankReport:
    part: ClassVar[str] = "rerank"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    questions: Mapping[str, int]
    """How many there are in each part of the set."""
    figures: Mapping[str, Mapping[str, float]]
    """For each part, what each way is worth."""

    @property
    def margin(self) -> float:
        return self.figures[HELD]["fused"] - self.figures[HELD]["original order"]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "margin": self.margin, "floor": FLOOR}

    def text(self) -> str:
        rows = [[way, *(f"{found[way]:.3f}" for found in self.figures.values())] for way in WAYS]
        header = ["NDCG@10", *(f"{name} ({count})" for name, count in self.questions.items())]
        return table("Local reranking", header, rows) + "\n"


def main(*, record_as: str | None) -> int:
    try:
        model = Remembering()
    except ConfigurationError as error:
        raise BenchError(error.detail) from None
    began = time.monotonic()
    every, narrow = rerank_set.load(), rerank_set.load(found_only=True)
    parts = {
        "chosen on": [one for one in every if not one.held_out],
        HELD: [one for one in every if one.held_out],
        f"{HELD}, as found": [one for one in narrow if one.held_out],
    }
    report = RerankReport(
        kind="full",
        machine=facts.machine(),
        versions={"fumehood": __version__, "numpy": np.__version__, "model": minilm.MODEL_ID},
        questions={name: len(questions) for name, questions in parts.items()},
        figures={name: worth(questions, model) for name, questions in parts.items()},
    )
    print(report.text())
    if record_as is not None:
        print(f"… kept in {record.write(report, record_as)}", file=sys.stderr, flush=True)
    verdict = "holds" if report.margin >= FLOOR else "DOES NOT HOLD"
    took = time.monotonic() - began
    print(f"bench: {verdict}: fused is {report.margin:+.3f} above the original order, at least {FLOOR}; {took:.0f} s")
    return 0 if report.margin >= FLOOR else 1
