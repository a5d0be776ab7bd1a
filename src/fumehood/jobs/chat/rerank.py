"""`oa.retrieval_rerank.v1` by a model: it puts a handful of candidates in order, and a window carries the best forward.

A model orders 20 texts well and 200 badly. So a window of at most 20 slides over the list from its end to its front, by
half its size: the better half of each window meets the next candidates, and the best of all arrive at the top (the
"sliding window" of RankGPT, Sun et al. 2023). N candidates take about N / 10 calls; the first ten places have had to
stand up to all others, places further down are less sure. Candidates are numbered from 1 in each window, so that no
identifier has to be copied.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from fumehood.jobs.base import Context, Workbench
from fumehood.jobs.chat.answers import (
    NUMBER,
    OPTIONAL_TEXT,
    WHOLE,
    MisfitError,
    OptionalText,
    Said,
    Share,
    Whole,
    a_list,
    an_object,
    those_that_fit,
    whole,
)
from fumehood.jobs.chat.client import Chat, ChatEndpoint, Question
from fumehood.jobs.chat.failures import too_large
from fumehood.jobs.types.retrieval_rerank import RankedCandidate, RerankCandidate, RerankRequest, RerankResponse

WINDOW = 20
MAX_CALLS = 128
MAX_WHY = 500
_RULES_CHARS = 4000
"""Kept free in a prompt for what is not candidates, beside the task and the rubric."""

DUTY = f"""\
You order search results by how much each helps with a task. Put all `candidates` into `ranking`, the most helpful \
first, each once, by its `number`. `score` is from 0 (of no use) to 1 (exactly what is needed); `why` is one short \
sentence of at most {MAX_WHY} characters, or null."""
TRUSTED = "Its members `task` and `rubric` say what is wanted."
SCHEMA = an_object(ranking=a_list(an_object(number=WHOLE, score=NUMBER, why=OPTIONAL_TEXT)))


class _Place(Said):
    number: Whole
    score: Share
    why: OptionalText = None


class _Ranking(Said):
    ranking: list[Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    candidate: RerankCandidate
    score: float | None = None
    """None: the model left it out when it last saw it."""
    why: str | None = None


class ChatRerank:
    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    @classmethod
    def make(cls, workbench: Workbench) -> ChatRerank:
        return cls(ChatEndpoint.of(workbench))

    async def run(self, request: RerankRequest, context: Context) -> RerankResponse:
        entries = [_Entry(one) for one in _first_order(request.candidates)]
        size = self._window(request)
        async with self._endpoint.conversation() as chat:
            for start, end in _slides(len(entries), size):
                entries[start:end] = await _ranked(chat, request, entries[start:end])
            return RerankResponse(topk=_topk(entries, request.k), provenance=chat.provenance(context))

    def _window(self, request: RerankRequest) -> int:
        """How many candidates go into one prompt, whichever they are; refused before anything is spent."""
        most = self._endpoint.options.max_input_chars
        room = most - _RULES_CHARS - len(json.dumps([request.user_task, request.ranking_rubric], ensure_ascii=False))
        lengths = sorted(
            (len(json.dumps(_shown(1, one), ensure_ascii=False)) for one in request.candidates), reverse=True
        )
        size = 0
        for length in lengths[:WINDOW]:
            room -= length
            if room < 0:
                break
            size += 1
        if size < min(2, len(lengths)):
            raise too_large(f"two candidates do not fit into a prompt of {most} characters")
        calls = len(_slides(len(lengths), size))
        if calls > MAX_CALLS:
            raise too_large(f"{len(lengths)} candidates of this length take {calls} calls; {MAX_CALLS} is the limit")
        return size


def _first_order(candidates: tuple[RerankCandidate, ...]) -> list[RerankCandidate]:
    """The order of the search, where all candidates have its score; else the order in which they came."""
    scores = [one.original_score for one in candidates]
    if any(score is None for score in scores):
        return list(candidates)
    return sorted(candidates, key=lambda one: -(one.original_score or 0.0))


def _slides(count: int, size: int) -> list[tuple[int, int]]:
    """From the end to the front; each window takes over the first half of the one before."""
    if count == 0:
        return []
    step = max(1, size // 2)
    slides = math.ceil(max(0, count - size) / step)
    ends = [count - step * number for number in range(slides + 1)]
    return [(max(0, end - size), end) for end in ends]


async def _ranked(chat: Chat, request: RerankRequest, window: list[_Entry]) -> list[_Entry]:
    data: dict[str, Any] = {"task": request.user_task}
    if request.ranking_rubric is not None:
        data["rubric"] = request.ranking_rubric
    data["candidates"] = [_shown(number, one.candidate) for number, one in enumerate(window, 1)]
    places = await chat.ask(Question("ranking", DUTY, TRUSTED, data, SCHEMA, lambda said: _places(said, len(window))))
    named = [_Entry(window[one.number - 1].candidate, one.score, (one.why or "")[:MAX_WHY] or None) for one in places]
    numbers = {one.number for one in places}
    # What the model left out stays in the list for the windows to come, behind what it named.
    return named + [_Entry(one.candidate) for number, one in enumerate(window, 1) if number not in numbers]


def _shown(number: int, candidate: RerankCandidate) -> dict[str, Any]:
    shown: dict[str, Any] = {"number": number, "content": candidate.content}
    if candidate.path is not None:
        shown["path"] = candidate.path
    if candidate.metadata:
        shown["metadata"] = candidate.metadata
    return shown


def _places(said: object, most: int) -> list[_Place]:
    places = [one for one in those_that_fit(_Place, whole(_Ranking, said).ranking) if 1 <= one.number <= most]
    if not places:
        raise MisfitError(f"`ranking` names none of the candidates 1 to {most}")
    first: dict[int, _Place] = {}
    for one in places:
        first.setdefault(one.number, one)
    return list(first.values())


def _topk(entries: list[_Entry], k: int) -> tuple[RankedCandidate, ...]:
    """Only what the model ranked: an order that it did not give must not pass for its own. Scores come from different
    windows: none may be above the one before it."""
    ranked: list[RankedCandidate] = []
    score = 1.0
    for entry in [one for one in entries if one.score is not None][:k]:
        score = min(score, entry.score or 0.0)
        said = {"rank": len(ranked) + 1, "id": entry.candidate.id, "score": score}
        ranked.append(RankedCandidate.model_validate(said if entry.why is None else {**said, "why": entry.why}))
    return tuple(ranked)
