"""The labelled set of code questions in `corpus/rerank/`: what a plain keyword search finds for each, and its worth.

The search counts words, as `grep` would. Its scores are the `original_score` of the candidates: nobody chose them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fumehood.jobs.types.retrieval_rerank import RerankCandidate, RerankRequest

FOLDER = Path(__file__).parent / "corpus" / "rerank"
FOUND = 20
"""Candidates for each question."""
HELD_OUT = 3
"""One question in so many."""
_COMMON_WORDS = (
    "a an and any are as at be by can do does for from has have how i if in into is it its may must my no not of on or"
    " our so that the their there this to too we what when where which who will with"
)


@dataclass(frozen=True, slots=True)
class Question:
    request: RerankRequest
    grades: Mapping[str, int]
    """By the candidate's id; those that are not here are worth nothing."""
    held_out: bool


def load(folder: Path = FOLDER, *, found_only: bool = False) -> Sequence[Question]:
    """`found_only`: without the good ones that the search did not find, and without questions that this leaves empty.
    Otherwise they stand at the end, with the scores that they have."""
    snippets = _snippets(folder / "snippets.txt")
    asked = tomllib.loads((folder / "questions.toml").read_text(encoding="utf-8"))["question"]
    questions = (
        _question(one["text"], one["relevant"], snippets, held_out=number % HELD_OUT == 0)
        for number, one in enumerate(asked, start=1)
    )
    return [one for one in map(_as_found, questions) if one.grades] if found_only else list(questions)


def _as_found(question: Question) -> Question:
    found = question.request.candidates[:FOUND]
    grades = {one.id: question.grades[one.id] for one in found if one.id in question.grades}
    return replace(question, request=question.request.model_copy(update={"candidates": found}), grades=grades)


def _snippets(path: Path) -> Mapping[str, str]:
    parts = re.split(r"^=== (\S+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _question(text: str, relevant: Mapping[str, int], snippets: Mapping[str, str], *, held_out: bool) -> Question:
    unknown = relevant.keys() - snippets.keys()
    if unknown:
        raise ValueError(f"{text!r} names snippets that are not there: {', '.join(sorted(unknown))}")
    scores = {path: keyword_score(text, f"{path}\n{content}") for path, content in snippets.items()}
    best = sorted(snippets, key=lambda path: (-scores[path], path))
    chosen = best[:FOUND] + [path for path in best[FOUND:] if path in relevant]
    candidates = tuple(
        RerankCandidate(id=path, path=path, content=snippets[path], original_score=scores[path]) for path in chosen
    )
    return Question(RerankRequest(user_task=text, candidates=candidates), relevant, held_out)


def keyword_score(question: str, text: str) -> float:
    """For each word of the question that stands anywhere in the text: 1, and a little more for standing there often."""
    found = text.lower()
    words = set(re.findall(r"[a-z0-9]+", question.lower())) - set(_COMMON_WORDS.split())
    counts = (found.count(word) for word in words)
    return round(sum(1 + math.log(count) for count in counts if count), 4)


def ndcg(order: Sequence[str], grades: Mapping[str, int], at: int = 10) -> float:
    """1 for the best order that there is, 0 if nothing of worth is among the first."""
    gained = _gain([grades.get(one, 0) for one in order[:at]])
    return gained / _gain(sorted(grades.values(), reverse=True)[:at])


def _gain(grades: Sequence[int]) -> float:
    return math.fsum((2**grade - 1) / math.log2(place + 1) for place, grade in enumerate(grades, start=1))
