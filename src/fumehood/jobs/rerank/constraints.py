"""Holds a ranking to its request, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator

from fumehood.jobs.types.retrieval_rerank import RankedCandidate, RerankRequest, RerankResponse

MAX_WHY = 1024


def enforce(request: RerankRequest, response: RerankResponse) -> RerankResponse:
    """Only candidates of the request, each once, at most `k`, ranks from 1 without gaps, scores from 0 to 1 that never
    rise. What is wrong is left out; nothing is put in its place: where a provider ranked only some, the rest stays
    unranked, for an order that nobody gave must not bear the provider's signature."""
    return response.model_copy(update={"topk": tuple(_kept(request, response))})


def _kept(request: RerankRequest, response: RerankResponse) -> Iterator[RankedCandidate]:
    left = {one.id for one in request.candidates}
    rank, highest = 0, 1.0
    for one in sorted(response.topk, key=lambda one: one.rank):
        if one.id not in left or rank == request.k:
            continue
        left.discard(one.id)
        rank, highest = rank + 1, max(0.0, min(highest, one.score))
        why = {} if one.why is None else {"why": one.why[:MAX_WHY]}
        yield one.model_copy(update={"rank": rank, "score": highest, **why})
