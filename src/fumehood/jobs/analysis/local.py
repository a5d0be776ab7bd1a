"""The provider of `oa.code_chunk_analysis.v1` that needs no model service.

The same request gives the same outputs, byte for byte, at every provider of the same versions: they are in `model_id`.
"""

from __future__ import annotations

from importlib.metadata import version

from fumehood.jobs.analysis import probes, tools
from fumehood.jobs.analysis.confidence import confidence
from fumehood.jobs.analysis.constraints import RANK, present
from fumehood.jobs.analysis.languages import Language, detect
from fumehood.jobs.analysis.process import Found, FoundFault, Limits, analyse
from fumehood.jobs.analysis.relevance import Wanted, words_of
from fumehood.jobs.analysis.summary import unknown, written
from fumehood.jobs.base import Context
from fumehood.jobs.types.code_chunk_analysis import (
    ChunkAnalysisRequest,
    ChunkAnalysisResponse,
    NextProbe,
    SuspectedFault,
    Symbol,
)
from fumehood.wire.jobs import Provenance


class LocalAnalysis:
    def __init__(self, limits: Limits | None = None) -> None:
        """`ConfigurationError` where an analyser is missing: an answer without it would not be what others give."""
        self._limits = limits or Limits()
        analysers = ",".join(f"{name}-{number}" for name, number in sorted(tools.versions().items()))
        self.model_id = f"fumehood-analysis/{version('fumehood')}+{analysers}"

    async def run(self, request: ChunkAnalysisRequest, context: Context) -> ChunkAnalysisResponse:
        chunk = request.chunk
        language = detect(chunk.language, chunk.path, chunk.content)
        provenance = Provenance(model_id=self.model_id)
        if language is None:
            nothing = confidence(known=False, error_share=0, analyser=False, analyser_read=False, whole=True)
            return ChunkAnalysisResponse(summary=unknown(chunk), confidence=nothing, provenance=provenance)
        whole = chunk.start_line == 1
        found = await analyse(language.name, chunk.content, whole=whole, limits=self._limits)
        return _Answer(request, language, found).response(provenance)


class _Answer:
    """What was found, in the words and the order that the request asks for."""

    def __init__(self, request: ChunkAnalysisRequest, language: Language, found: Found) -> None:
        self._request, self._chunk = request, request.chunk
        self._language, self._found = language, found
        self._wanted = Wanted.of(request.task, request.user_task)
        self._faults = self._in_order()

    def response(self, provenance: Provenance) -> ChunkAnalysisResponse:
        chunk, found = self._chunk, self._found
        return ChunkAnalysisResponse(
            summary=written(chunk, self._language, found, self._faults, self._wanted),
            symbols=tuple(
                Symbol(name=one.name, kind=one.kind, line=self._line(one.line), description=one.description)
                for one in found.symbols
                if self._within(one.line)
            ),
            suspected_faults=tuple(
                SuspectedFault.model_validate(
                    present(
                        line=self._line(one.line),
                        severity=one.severity,
                        description=one.description,
                        suggestion=one.suggestion,
                    )
                )
                for one in self._faults
            ),
            recommended_next_probes=tuple(self._probes()),
            confidence=confidence(
                known=True,
                error_share=found.error_share,
                analyser=found.tool is not None,
                analyser_read=found.tool_read,
                whole=chunk.start_line == 1,
            ),
            provenance=provenance,
        )

    def _line(self, within: int) -> int:
        """Of the file."""
        return self._chunk.start_line + within - 1

    def _within(self, line: int) -> bool:
        return self._line(line) <= self._chunk.end_line

    def _fits(self, fault: FoundFault) -> bool:
        return self._wanted.fits(fault.meaning, fault.description)

    def _in_order(self) -> list[FoundFault]:
        """What the task asks for first, then by severity, then by line."""
        found = [one for one in self._found.findings if self._within(one.line)]
        return sorted(found, key=lambda one: (not self._fits(one), -RANK[one.severity], one.line, one.meaning))

    # --- where to look next ----------------------------------------------------------------------------------

    def _probes(self) -> list[NextProbe]:
        chunk, found = self._chunk, self._found
        made: dict[str, NextProbe] = {}
        for path, one in probes.paths(self._language.name, chunk.path, found.imports):
            line = self._line(one.line)
            reason = f"imported in line {line} as {' '.join(one.what.split())[:100]}"
            made.setdefault(path, NextProbe(path=path, reason=reason, priority=self._import_priority(path)))
        if chunk.start_line > 1:
            reason = f"lines 1 to {chunk.start_line - 1} come before this chunk: imports and definitions that it uses"
            made.setdefault(chunk.path, NextProbe(path=chunk.path, reason=reason, priority="medium"))
        callers = self._callers()
        if callers is not None:
            made.setdefault(callers.path, callers)
        test = probes.test_of(self._language.name, chunk.path)
        if test is not None:
            made.setdefault(test, NextProbe(path=test, reason="the tests of this file", priority="low"))
        return sorted(made.values(), key=lambda one: -RANK[one.priority])

    def _import_priority(self, path: str) -> str:
        """High where the task names it, or a line that is suspected speaks of it."""
        stem = path.rpartition("/")[2].partition(".")[0]
        lines = self._chunk.content.splitlines()
        suspected = " ".join(lines[one.line - 1] for one in self._faults[:100] if one.line <= len(lines))
        if words_of(stem) & self._wanted.words:
            return "high"
        return "high" if words_of(stem) & words_of(suspected) else "medium"

    def _callers(self) -> NextProbe | None:
        """Of the functions with the gravest faults: whether data of others reaches them is decided there."""
        names: dict[str, FoundFault] = {}
        for fault in self._faults:
            name = self._function_at(fault.line)
            if name is not None and RANK[fault.severity] >= RANK["medium"]:
                names.setdefault(name, fault)
        if not names:
            return None
        shown = list(names)[:3]
        grave = any(one.severity == "high" and self._fits(one) for one in names.values())
        reason = f"who calls {', '.join(shown)}, and with what: a fault is suspected there"
        return NextProbe(path=probes.folder_of(self._chunk.path), reason=reason, priority="high" if grave else "medium")

    def _function_at(self, line: int) -> str | None:
        before = [one for one in self._found.symbols if one.line <= line and one.kind in ("function", "method")]
        return before[-1].name if before else None
