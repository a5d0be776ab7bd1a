"""Judges rankings by how well they agree with our own: NDCG, with our scores as what each candidate is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fumehood.jobs.embedding.minilm import MiniLM
from fumehood.jobs.judge.marks import Between, Mark, Marks, misfit, named, share
from fumehood.jobs.rerank.constraints import enforce
from fumehood.jobs.rerank.ranking import rank
from fumehood.jobs.types.retrieval_rerank import RerankRequest, RerankResponse


def judge(
    request: dict[str, Any], candidates: Sequence[dict[str, Any]], model: MiniLM, between: Between
) -> list[Marks]:
    """`ValidationError` if the request is none of this type."""
    wanted = RerankRequest.model_validate(request)
    worth = _worth(wanted, model, between)
    return [_marks(wanted, worth, one) for one in candidates]


def _worth(request: RerankRequest, model: MiniLM, between: Between) -> Mapping[str, float]:
    """From 0 for what we put last to 1 for what we put first: the scores themselves lie close together."""
    ours = rank(request, model, between).order
    low = min((one.score for one in ours), default=0.0)
    width = max((one.score for one in ours), default=0.0) - low
    return {request.candidates[one.at].id: (one.score - low) / width if width else 1.0 for one in ours}


def _marks(request: RerankRequest, worth: Mapping[str, float], candidate: dict[str, Any]) -> Marks:
    try:
        answer = RerankResponse.model_validate(named(candidate))
    except ValidationError:
        return misfit()
    kept = [one.id for one in enforce(request, answer).topk]
    best = sorted(worth.values(), reverse=True)[: request.k]
    ideal = _gain(best)
    agreed = _gain([worth[one] for one in kept]) / ideal if ideal else 1.0
    valid = share(len(kept), len(answer.topk))
    return Marks(
        (
            Mark(
                0.9,
                agreed,
                f"agrees with our own ranking to {agreed:.3f} (NDCG), {len(kept)} of {len(best)} places filled",
            ),
            Mark(0.1, valid, f"{len(kept)} of {len(answer.topk)} entries are valid"),
        )
    )


def _gain(values: Sequence[float]) -> float:
    return math.fsum(value / math.log2(place + 1) for place, value in enumerate(values, start=1))
