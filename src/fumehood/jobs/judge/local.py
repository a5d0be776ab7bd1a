"""A judge on this machine that needs no model service: it looks up what can be looked up, and says the numbers.

It cannot tell whether a fault is a real one, or a summary a wise one: docs/explanation/local-reranking.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from fumehood.errors import JobFailedError
from fumehood.jobs.base import Context
from fumehood.jobs.embedding import minilm
from fumehood.jobs.embedding.minilm import MiniLM
from fumehood.jobs.embedding.stoppable import in_thread
from fumehood.jobs.judge import analysis, general, ranking
from fumehood.jobs.judge.marks import Between, Marks
from fumehood.jobs.types.candidate_judge import JudgeRequest, JudgeResponse
from fumehood.wire.jobs import Provenance

NAME = "local"
MODEL_ID = f"fumehood-judge/{version('fumehood')}+{minilm.MODEL_ID}"
_MAX_REASON = 4096

Judge = Callable[[dict[str, Any], Sequence[dict[str, Any]], MiniLM, Between], list[Marks]]
JUDGES: Mapping[str, Judge] = {
    "oa.code_chunk_analysis.v1": analysis.judge,
    "oa.retrieval_rerank.v1": ranking.judge,
}
"""All other types are judged by `general`."""


class LocalJudge:
    def __init__(self) -> None:
        """`ConfigurationError` where the model is not installed. It is loaded with the first job."""
        minilm.folder()

    async def run(self, request: JudgeRequest, context: Context) -> JudgeResponse:
        """`JobFailedError` if another judge was asked for by name, or the request is none of the type that it names."""
        if request.judge_model not in (None, NAME, MODEL_ID):
            raise JobFailedError("other_judge", "another judge was asked for than this worker has", again=True)
        marks = await in_thread(lambda between: judged(request, minilm.shared(), between))
        context.observe(model={"id": minilm.MODEL_ID, "sha256": minilm.EXPECTED[minilm.WEIGHTS]})
        index = max(range(len(marks)), key=lambda at: (marks[at].total, -at))
        return JudgeResponse(index=index, reason=_reason(marks, index), provenance=Provenance(model_id=MODEL_ID))


def judged(request: JudgeRequest, model: MiniLM, between: Between) -> list[Marks]:
    """What we think of each candidate; the same of each, in whatever order they come."""
    judge = JUDGES.get(request.job_type, general.judge)
    try:
        return judge(request.request, request.candidates, model, between)
    except ValidationError:
        raise JobFailedError("invalid_request", f"what was to be judged is no request of {request.job_type}") from None


def _reason(marks: Sequence[Marks], index: int) -> str:
    others = ", ".join(f"{one.total:.4f}" for at, one in enumerate(marks) if at != index)
    beside = f"the others have {others}" if others else "there is no other"
    return f"It has {marks[index].total:.4f} of 1; {beside}. {marks[index].words}."[:_MAX_REASON]
