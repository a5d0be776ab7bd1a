"""`oa.code_chunk_analysis.v1`: what a piece of code does and holds, what may be wrong with it, where to look next."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from fumehood.jobs.base import Handler, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.jobs import U32, Adjudication, JobModel, Line, Mode, Option, Share, Verification

MAX_CONTENT = 1024 * 1024
LEVELS = ("low", "medium", "high")


def _one_of_the_levels(value: str) -> str:
    if value not in LEVELS:
        raise ValueError("must be low, medium or high")
    return value


Level = Annotated[str, AfterValidator(_one_of_the_levels), Field(json_schema_extra={"enum": list(LEVELS)})]


class CodeChunk(JobModel):
    """The code in question."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Of its file, from the root of the repository."""
    start_line: Line
    """The first is 1."""
    end_line: Line
    """The last line that belongs to it."""
    content: Annotated[str, Field(max_length=MAX_CONTENT)]
    """The code itself."""
    language: Option[Annotated[str, Field(min_length=1, max_length=64)]] = None
    """Like `rust` or `python`; unset: as the path says."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end_line < self.start_line:
            raise ValueError("end_line is before start_line")
        return self


class OutputConstraints(JobModel):
    """How much a response may hold, whoever gives it; unset: as much as there is."""

    max_summary_length: Option[U32] = None
    """In characters."""
    max_symbols: Option[U32] = None
    max_faults: Option[U32] = None
    max_next_probes: Option[U32] = None


class ChunkAnalysisRequest(JobRequest):
    """A piece of code, and what somebody wants to know about it."""

    task: Annotated[str, Field(min_length=1, max_length=16_384)]
    """What to look for, like `Find security issues`."""
    user_task: Option[Annotated[str, Field(max_length=16_384)]] = None
    """What the user asked for in the first place."""
    chunk: CodeChunk
    """The code to analyse."""
    output_constraints: OutputConstraints = OutputConstraints()
    """How much the response may hold."""
    verification: Verification = Verification(mode=Mode.SUBJECTIVE, redundancy=2, adjudication=Adjudication.JUDGE_MODEL)


class Symbol(JobModel):
    """Something that the code defines."""

    name: str
    kind: str
    """Like `function`, `struct`, `trait`."""
    line: Line
    description: Option[str] = None


class SuspectedFault(JobModel):
    """Something that may be wrong."""

    line: Line
    severity: Level
    description: str
    suggestion: Option[str] = None


class NextProbe(JobModel):
    """Where to look next."""

    path: str
    reason: str
    priority: Level


class ChunkAnalysisResponse(JobResponse):
    """What was found in the code."""

    summary: str
    """What the code does."""
    symbols: Annotated[tuple[Symbol, ...], Field(strict=False)] = ()
    """What it defines."""
    suspected_faults: Annotated[tuple[SuspectedFault, ...], Field(strict=False)] = ()
    """What may be wrong with it."""
    recommended_next_probes: Annotated[tuple[NextProbe, ...], Field(strict=False)] = ()
    """Where to look next."""
    confidence: Share
    """From 0 to 1, the provider's own."""

    def declared(self) -> Any:
        """What was found where; the words for it are each provider's own."""
        return {
            "symbols": [[one.line, one.kind, one.name] for one in self.symbols],
            "suspected_faults": [[one.line, one.severity] for one in self.suspected_faults],
        }


def _local(workbench: Workbench) -> Handler[ChunkAnalysisRequest, ChunkAnalysisResponse]:
    from fumehood.jobs.analysis.local import LocalAnalysis

    return LocalAnalysis()


def _openai(workbench: Workbench) -> Handler[ChunkAnalysisRequest, ChunkAnalysisResponse]:
    from fumehood.jobs.chat.analysis import ChatAnalysis

    return ChatAnalysis.make(workbench)


def _enforce(request: ChunkAnalysisRequest, response: ChunkAnalysisResponse) -> ChunkAnalysisResponse:
    from fumehood.jobs.analysis.constraints import enforce

    return enforce(request, response)


def _merge(request: ChunkAnalysisRequest, responses: Any) -> ChunkAnalysisResponse:
    from fumehood.jobs.analysis.merge import merge

    return merge(request, responses)


JOB_TYPE = JobType(
    name="oa.code_chunk_analysis.v1",
    version=SchemaVersion(1, 0, 0),
    about="Summary, symbols, suspected faults and next probes of a piece of code.",
    request=ChunkAnalysisRequest,
    response=ChunkAnalysisResponse,
    handlers={"local": _local, "openai": _openai},
    enforce=_enforce,
    merge=_merge,
)
