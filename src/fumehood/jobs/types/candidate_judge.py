"""`oa.candidate_judge.v1`, ours: which of several unnamed answers to a request is best, and why.

What `judge_model` asks. The judge sees the candidates in an order that says nothing about who gave them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fumehood.jobs.base import Handler, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.base import WHOLE
from fumehood.wire.jobs import MAX_REDUNDANCY, Adjudication, JobTypeName, Mode, Option, Verification


class JudgeRequest(JobRequest):
    """Several answers to one request, unnamed."""

    job_type: JobTypeName
    """Of the request that was answered."""
    request: dict[str, Any]
    """What the candidates are answers to, in its typed form."""
    candidates: Annotated[tuple[dict[str, Any], ...], Field(strict=False, min_length=1, max_length=MAX_REDUNDANCY)]
    """Responses without provenance, shuffled."""
    judge_model: Option[Annotated[str, Field(min_length=1, max_length=256)]] = None
    """Which model is to judge; unset: whichever the judge has."""
    verification: Verification = Verification(mode=Mode.SUBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)


class JudgeResponse(JobResponse):
    """Which one is best."""

    index: Annotated[int, Field(ge=0, le=MAX_REDUNDANCY - 1), WHOLE]
    """Of the best one, in the order that the request has."""
    reason: Annotated[str, Field(min_length=1, max_length=4096)]
    """Why, for people."""


def _local(workbench: Workbench) -> Handler[JudgeRequest, JudgeResponse]:
    from fumehood.jobs.judge.local import LocalJudge

    return LocalJudge()


def _openai(workbench: Workbench) -> Handler[JudgeRequest, JudgeResponse]:
    from fumehood.jobs.chat.judge import ChatJudge

    return ChatJudge.make(workbench)


JOB_TYPE = JobType(
    name="oa.candidate_judge.v1",
    version=SchemaVersion(1, 0, 0),
    about="Says which of several answers to a request is best, and why.",
    request=JudgeRequest,
    response=JudgeResponse,
    handlers={"local": _local, "openai": _openai},
    allowed=frozenset({Adjudication.NONE, Adjudication.MAJORITY_VOTE}),
)
