"""Reranks on this machine: BM25 fused with MiniLM. No model service, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from fumehood.jobs.base import Context
from fumehood.jobs.embedding import minilm
from fumehood.jobs.embedding.stoppable import in_thread
from fumehood.jobs.rerank.ranking import Ranked, Ranking, question, rank
from fumehood.jobs.rerank.terms import spelled
from fumehood.jobs.types.retrieval_rerank import RankedCandidate, RerankRequest, RerankResponse
from fumehood.wire.jobs import Provenance, Tokens

MODEL_ID = f"fumehood-rerank/{version('fumehood')}+{minilm.MODEL_ID}"
_NAMED = 6
"""Terms in an explanation."""
_WORD = 40
"""Characters of each of them."""
_CLOSE = ((0.6, "very close in meaning"), (0.4, "close in meaning"), (0.2, "somewhat related"))


class LocalRerank:
    def __init__(self) -> None:
        """`ConfigurationError` where the model is not installed. It is loaded with the first job."""
        minilm.folder()

    async def run(self, request: RerankRequest, context: Context) -> RerankResponse:
        found = await in_thread(lambda between: rank(request, minilm.shared(), between))
        context.observe(model={"id": minilm.MODEL_ID, "sha256": minilm.EXPECTED[minilm.WEIGHTS]})
        provenance = Provenance(model_id=MODEL_ID, tokens=Tokens(input=found.pieces, output=0))
        return RerankResponse(topk=_topk(request, found), provenance=provenance)


def _topk(request: RerankRequest, found: Ranking) -> tuple[RankedCandidate, ...]:
    spelling = spelled(f"{request.ranking_rubric or ''} {request.user_task}")
    terms = len(question(request))
    return tuple(
        RankedCandidate(rank=place, id=request.candidates[one.at].id, score=one.score, why=_why(one, spelling, terms))
        for place, one in enumerate(found.order[: request.k], start=1)
    )


def _why(one: Ranked, spelling: Mapping[str, str], terms: int) -> str:
    near = next((words for least, words in _CLOSE if one.similarity >= least), "far away in meaning")
    return f"{near} ({max(0.0, one.similarity):.2f}); {_shared(one.match.terms, spelling, terms)}"


def _shared(found: Sequence[str], spelling: Mapping[str, str], terms: int) -> str:
    if not found:
        return "has none of the words of the task"
    named = ", ".join(f"“{spelling.get(term, term)[:_WORD]}”" for term in found[:_NAMED])
    more = ", …" if len(found) > _NAMED else ""
    return f"has {len(found)} of {terms} words of the task: {named}{more}"
