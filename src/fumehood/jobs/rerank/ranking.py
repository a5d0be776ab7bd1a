"""The order itself: words that a question and a candidate share, and how close they are in meaning.

    score = 0.80 meaning + 0.15 words + 0.05 prior

*meaning* is the cosine of MiniLM (of the window that is closest, and of all on average), as a share of the best one's.
*words* is BM25, bent so that 8 gives a half. *prior* is where the original score lies between the lowest and the
highest; without original scores the other two take its part. The weights were chosen on two thirds of the questions
in `bench/corpus/rerank`; docs/explanation/local-reranking.md has what they are worth on the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

import numpy as np

from fumehood.jobs.embedding.minilm import MiniLM, cosines
from fumehood.jobs.embedding.safetensors import Floats
from fumehood.jobs.rerank.bm25 import Match, bm25
from fumehood.jobs.rerank.reading import ROOM, allotted, readable, shortened, windows
from fumehood.jobs.rerank.terms import asked, terms
from fumehood.jobs.types.retrieval_rerank import RerankCandidate, RerankRequest

MEANING, WORDS, PRIOR = 0.80, 0.15, 0.05
RUBRIC = 0.25
"""What the rubric counts beside the task, in words and in meaning."""
HALF = 8.0
LEAST_BEST = 0.2
"""Where even the closest one is farther away than this, its closeness is noise, and not made a 1."""
DIGITS = 4
"""Processors differ in the last digits of a sum. Scores that differ only there are equal, and the original order
decides; so two workers differ only where a score lies within 1e-7 of a step."""

Between = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Ranked:
    at: int
    """Its place among the candidates of the request."""
    score: float
    similarity: float
    match: Match


@dataclass(frozen=True, slots=True)
class Ranking:
    """All candidates, the best one first."""

    order: tuple[Ranked, ...]
    pieces: int
    """That the model has read."""


def rank(request: RerankRequest, model: MiniLM, between: Between) -> Ranking:
    """`between` is called between parts of the work, and may raise."""
    if not request.candidates:
        return Ranking((), 0)
    contents = shortened(request.candidates)
    matches = _words(request, contents, between)
    closeness, pieces = _meaning(request, contents, model, between)
    scores = fused(closeness, [one.score for one in matches], [one.original_score for one in request.candidates])
    found = [Ranked(at, score, closeness[at], matches[at]) for at, score in enumerate(scores)]
    return Ranking(tuple(sorted(found, key=lambda one: (-one.score, one.at))), pieces)


def fused(closeness: Sequence[float], words: Sequence[float], original: Sequence[float | None]) -> list[float]:
    """A score from 0 to 1 for each candidate."""
    best = max(LEAST_BEST, *closeness, 0.0)
    prior = _between_lowest_and_highest(original)
    weights = (MEANING, WORDS, 0.0 if prior is None else PRIOR)
    parts = zip(closeness, words, prior or [0.0] * len(words), strict=True)
    sums = (
        weights[0] * max(0.0, close) / best + weights[1] * word / (word + HALF) + weights[2] * before
        for close, word, before in parts
    )
    return [round(min(1.0, one / sum(weights)), DIGITS) for one in sums]


def _words(request: RerankRequest, contents: Sequence[str], between: Between) -> list[Match]:
    documents = []
    for one, content in zip(request.candidates, contents, strict=True):
        between()
        documents.append(Counter(terms(content)) + Counter(terms(one.path or "")))
    return bm25(question(request), documents)


def question(request: RerankRequest) -> dict[str, float]:
    """A weight for each term of the task; those that only the rubric has count for less."""
    rubric = dict.fromkeys(asked(request.ranking_rubric or ""), RUBRIC)
    return rubric | dict.fromkeys(asked(request.user_task), 1.0)


def _meaning(
    request: RerankRequest, contents: Sequence[str], model: MiniLM, between: Between
) -> tuple[list[float], int]:
    pieces = [_pieces(one, text, model, between) for one, text in zip(request.candidates, contents, strict=True)]
    allowed = allotted([len(some) for some in pieces], ROOM)
    cut = [windows(some[:length]) for some, length in zip(pieces, allowed, strict=True)]
    flat = [window for some in cut for window in some]
    close = iter(cosines(model.embed(flat, between), _query(request, model)))
    return [_closeness(list(islice(close, len(some)))) for some in cut], sum(map(len, flat))


def _pieces(candidate: RerankCandidate, content: str, model: MiniLM, between: Between) -> list[int]:
    between()
    return model.pieces(readable(candidate.path, content), ROOM)


def _query(request: RerankRequest, model: MiniLM) -> Floats:
    """What a candidate's vector is multiplied with: the task's, and a little of the rubric's."""
    if not request.ranking_rubric:
        task: Floats = model.texts([request.user_task])[0]
        return task
    task, rubric = model.texts([request.user_task, request.ranking_rubric])
    mixed: Floats = (task + np.float32(RUBRIC) * rubric) / np.float32(1 + RUBRIC)
    return mixed


def _closeness(found: Sequence[float]) -> float:
    return (max(found) + fmean(found)) / 2


def _between_lowest_and_highest(original: Sequence[float | None]) -> list[float] | None:
    """`None` where there is nothing to tell them apart. A candidate without a score counts as the lowest."""
    given = [one for one in original if one is not None]
    low, high = min(given, default=0.0), max(given, default=0.0)
    width = high / 2 - low / 2  # halves: the whole may be more than a number can hold
    if width <= 0.0:
        return None
    return [0.0 if one is None else (one / 2 - low / 2) / width for one in original]
