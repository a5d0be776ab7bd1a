"""`oa.code_chunk_analysis.v1` by a model. Lines are numbered for it: models read numbers better than they count."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fumehood.jobs.analysis.constraints import normalise
from fumehood.jobs.base import Context, Workbench
from fumehood.jobs.chat.answers import (
    LEVEL,
    MAX_TEXT,
    NUMBER,
    OPTIONAL_TEXT,
    TEXT,
    WHOLE,
    MisfitError,
    OptionalText,
    Said,
    Share,
    Text,
    Whole,
    a_list,
    an_object,
    those_that_fit,
    whole,
    without_nones,
)
from fumehood.jobs.chat.client import ChatEndpoint, Question
from fumehood.jobs.types.code_chunk_analysis import (
    ChunkAnalysisRequest,
    ChunkAnalysisResponse,
    CodeChunk,
    NextProbe,
    SuspectedFault,
    Symbol,
)
from fumehood.wire.jobs import Provenance

DUTY = f"""\
You analyse one piece of source code. Say in `summary` what it does; list in `symbols` the functions, classes, types \
and the like that it defines; in `suspected_faults` what is probably wrong with it, most serious first, and only what \
its lines show; in `recommended_next_probes` the files of the same repository that should be looked at next. Each line \
of `code` begins with its number and a colon: use these numbers. `confidence` says how sure you are, from 0 to 1. \
`limits` says how much is wanted at most. No text may have more than {MAX_TEXT} characters."""
TRUSTED = "Its members `task` and `user_task` say what is wanted from the analysis, and `limits` bounds it."

SCHEMA = an_object(
    summary=TEXT,
    symbols=a_list(an_object(name=TEXT, kind=TEXT, line=WHOLE, description=OPTIONAL_TEXT)),
    suspected_faults=a_list(an_object(line=WHOLE, severity=LEVEL, description=TEXT, suggestion=OPTIONAL_TEXT)),
    recommended_next_probes=a_list(an_object(path=TEXT, reason=TEXT, priority=LEVEL)),
    confidence=NUMBER,
)


class _Symbol(Said):
    name: Text
    kind: Text
    line: Whole
    description: OptionalText = None


class _Fault(Said):
    line: Whole
    severity: Text
    description: Text
    suggestion: OptionalText = None


class _Probe(Said):
    path: Text
    reason: Text
    priority: Text


class _Analysis(Said):
    summary: Text
    symbols: list[Any] = Field(default_factory=list)
    suspected_faults: list[Any] = Field(default_factory=list)
    recommended_next_probes: list[Any] = Field(default_factory=list)
    confidence: Share


class ChatAnalysis:
    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    @classmethod
    def make(cls, workbench: Workbench) -> ChatAnalysis:
        return cls(ChatEndpoint.of(workbench))

    async def run(self, request: ChunkAnalysisRequest, context: Context) -> ChunkAnalysisResponse:
        question = Question("code_analysis", DUTY, TRUSTED, _data(request), SCHEMA, _read)
        async with self._endpoint.conversation() as chat:
            said = await chat.ask(question)
            return _response(said, chat.provenance(context))


def _read(said: object) -> _Analysis:
    if not isinstance(said, dict):
        raise MisfitError("it is not a JSON object")
    return whole(_Analysis, normalise(said))


def _data(request: ChunkAnalysisRequest) -> dict[str, Any]:
    chunk = request.chunk
    limits = request.output_constraints.model_dump(exclude_none=True)
    data = {
        "task": request.task,
        "user_task": request.user_task,
        "limits": limits or None,
        "path": chunk.path,
        "language": chunk.language,
        "code": _numbered(chunk),
    }
    return {name: value for name, value in data.items() if value is not None}


def _numbered(chunk: CodeChunk) -> str:
    return "\n".join(f"{number}:{line}" for number, line in enumerate(chunk.content.split("\n"), chunk.start_line))


def _response(said: _Analysis, provenance: Provenance) -> ChunkAnalysisResponse:
    symbols = without_nones(those_that_fit(_Symbol, said.symbols))
    faults = without_nones(those_that_fit(_Fault, said.suspected_faults))
    probes = without_nones(those_that_fit(_Probe, said.recommended_next_probes))
    return ChunkAnalysisResponse(
        summary=said.summary,
        symbols=tuple(those_that_fit(Symbol, symbols)),
        suspected_faults=tuple(those_that_fit(SuspectedFault, faults)),
        recommended_next_probes=tuple(those_that_fit(NextProbe, probes)),
        confidence=said.confidence,
        provenance=provenance,
    )
