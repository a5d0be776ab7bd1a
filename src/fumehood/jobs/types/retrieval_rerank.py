"""`oa.retrieval_rerank.v1`: candidates of a search, in the order in which they help with a task."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from fumehood.jobs.base import Handler, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.base import WHOLE
from fumehood.wire.jobs import LARGEST_INTEGER, Adjudication, JobModel, Mode, Number, Option, Share, Verification

MAX_CANDIDATES = 1000
MAX_CONTENT = 64 * 1024
MAX_METADATA = 64


class RerankCandidate(JobModel):
    """Something that a search found."""

    id: Annotated[str, Field(min_length=1, max_length=1024)]
    """Another one for each candidate."""
    content: Annotated[str, Field(max_length=MAX_CONTENT)]
    """What is judged."""
    path: Option[Annotated[str, Field(max_length=4096)]] = None
    """Of its file, where it is code."""
    original_score: Option[Number] = None
    """The search's own, on any scale."""
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=256)], Annotated[str, Field(max_length=MAX_CONTENT)]],
        Field(max_length=MAX_METADATA, json_schema_extra={"default": {}}),
    ] = Field(default_factory=dict)
    """Whatever else is known of it."""


class RerankRequest(JobRequest):
    """What a search found, to be put in order."""

    user_task: Annotated[str, Field(min_length=1, max_length=16_384)]
    """What the candidates should help with."""
    candidates: Annotated[tuple[RerankCandidate, ...], Field(strict=False, max_length=MAX_CANDIDATES)]
    """What the search found."""
    k: Annotated[int, Field(ge=1, le=LARGEST_INTEGER), WHOLE] = 10
    """How many to give back; all of them, where there are fewer."""
    ranking_rubric: Option[Annotated[str, Field(max_length=16_384)]] = None
    """What to prefer."""
    verification: Verification = Verification(
        mode=Mode.SUBJECTIVE, redundancy=2, adjudication=Adjudication.MAJORITY_VOTE
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({one.id for one in self.candidates}) != len(self.candidates):
            raise ValueError("two candidates have the same id")
        return self


class RankedCandidate(JobModel):
    """A candidate at its place."""

    rank: Annotated[int, Field(ge=1, le=MAX_CANDIDATES), WHOLE]
    """The first is 1."""
    id: str
    """Of the candidate."""
    score: Share
    """How much it helps, from 0 to 1."""
    why: Option[str] = None


class RerankResponse(JobResponse):
    """The best candidates."""

    topk: Annotated[tuple[RankedCandidate, ...], Field(strict=False)] = ()
    """In their order."""

    def declared(self) -> Any:
        """The order. Scores are sums of floating-point numbers, which differ from one processor to the next."""
        return [one.id for one in sorted(self.topk, key=lambda one: one.rank)]


def _local(workbench: Workbench) -> Handler[RerankRequest, RerankResponse]:
    from fumehood.jobs.rerank.local import LocalRerank

    return LocalRerank()


def _openai(workbench: Workbench) -> Handler[RerankRequest, RerankResponse]:
    from fumehood.jobs.chat.rerank import ChatRerank

    return ChatRerank.make(workbench)


def _enforce(request: RerankRequest, response: RerankResponse) -> RerankResponse:
    from fumehood.jobs.rerank.constraints import enforce

    return enforce(request, response)


def _merge(request: RerankRequest, responses: Any) -> RerankResponse:
    from fumehood.jobs.rerank.merge import merge

    return merge(request, responses)


JOB_TYPE = JobType(
    name="oa.retrieval_rerank.v1",
    version=SchemaVersion(1, 0, 0),
    about="Orders what a search found by how much it helps with a task.",
    request=RerankRequest,
    response=RerankResponse,
    handlers={"local": _local, "openai": _openai},
    enforce=_enforce,
    merge=_merge,
)
