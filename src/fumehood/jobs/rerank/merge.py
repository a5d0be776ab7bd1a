"""One ranking of several, by reciprocal rank: what many put high comes high, whatever their scores mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fumehood.jobs.rerank.constraints import enforce
from fumehood.jobs.types.retrieval_rerank import RankedCandidate, RerankRequest, RerankResponse
from fumehood.wire.jobs import Provenance

DEPTH = 60
"""How little the very first places count above the next ones; the value of the paper that proposed this."""
DIGITS = 6


def merge(request: RerankRequest, responses: Sequence[RerankResponse]) -> RerankResponse:
    """The same in whatever order the responses come. A score of 1 is the first place with all of them."""
    ranks: dict[str, list[int]] = {one.id: [] for one in request.candidates}
    for response in responses:
        for one in enforce(request, response).topk:
            ranks[one.id].append(one.rank)
    scores = {name: _score(found, len(responses)) for name, found in ranks.items() if found}
    best = sorted(scores, key=lambda name: -scores[name])[: request.k]  # stable: ties in the order of the request
    topk = tuple(
        RankedCandidate(rank=place, id=name, score=scores[name], why=_why(ranks[name], len(responses)))
        for place, name in enumerate(best, start=1)
    )
    return RerankResponse(topk=topk, provenance=Provenance(model_id="merge"))


def _score(ranks: Sequence[int], of: int) -> float:
    return round(math.fsum(1 / (DEPTH + rank) for rank in ranks) * (DEPTH + 1) / of, DIGITS)


def _why(ranks: Sequence[int], of: int) -> str:
    places = ", ".join(str(rank) for rank in sorted(ranks))
    return f"ranked by {len(ranks)} of {of}, at {places}"
