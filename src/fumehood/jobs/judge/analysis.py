"""Judges analyses of code by what can be looked up in the code: that a symbol stands where it is said to stand, that a
fault is on a line that is there, and that its description has to do with that line."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fumehood.jobs.embedding.minilm import MiniLM, cosines
from fumehood.jobs.judge.definitions import definitions
from fumehood.jobs.judge.marks import Between, Mark, Marks, misfit, named, share
from fumehood.jobs.rerank.terms import asked, terms
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisRequest, ChunkAnalysisResponse, SuspectedFault, Symbol

NEAR = 2
"""Lines: decorators and comments stand above a definition, and some count from there."""
ELSEWHERE = 0.5
"""For a symbol that is in the code, but not where it is said to be."""
MAX_LOOKED_AT = 1000
"""Of the symbols, and of the faults, of one candidate."""
MAX_TEXT = 16 * 1024
"""Characters of what is given to the model: more than it reads."""
MAX_WORDS = 2048
"""Characters of a line, and of a fault's description."""
NO_FAULTS = 0.5
"""For naming no fault: not wrong, and worth less than one that holds."""
_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Code:
    start: int
    lines: Sequence[str]
    names: Mapping[str, Sequence[int]]
    """On which of them each name stands, from above."""
    defined: frozenset[str]

    @classmethod
    def read(cls, request: ChunkAnalysisRequest) -> _Code:
        lines = request.chunk.content.split("\n")
        names: dict[str, list[int]] = {}
        for at, line in enumerate(lines):
            for name in _NAME.findall(line):
                names.setdefault(name, []).append(at)
        defined = frozenset(name for _, name in definitions(lines))
        return cls(request.chunk.start_line, lines, names, defined)

    def near(self, line: int, name: str) -> bool:
        places, at = self.names.get(name, ()), line - self.start
        first = bisect_left(places, at - NEAR)
        return first < len(places) and places[first] <= at + NEAR

    def text(self, line: int, around: int = 0) -> str:
        """Of a line that is counted as the file counts, and of its neighbours."""
        at = line - self.start
        some = self.lines[max(0, at - around) : max(0, at + around + 1)]
        return " ".join(one[:MAX_WORDS] for one in some)


def judge(
    request: dict[str, Any], candidates: Sequence[dict[str, Any]], model: MiniLM, between: Between
) -> list[Marks]:
    """`ValidationError` if the request is none of this type."""
    asked_for = ChunkAnalysisRequest.model_validate(request)
    code = _Code.read(asked_for)
    answers = [_answer(one) for one in candidates]
    about = f"{asked_for.task}\n{asked_for.chunk.content}"[:MAX_TEXT]
    summaries = ["" if one is None else one.summary[:MAX_TEXT] for one in answers]
    vectors = model.texts([about, *summaries], between)
    close = cosines(vectors[1:], vectors[0])
    return [
        misfit() if one is None else _marks(asked_for, code, one, near)
        for one, near in zip(answers, close, strict=True)
    ]


def _answer(candidate: dict[str, Any]) -> ChunkAnalysisResponse | None:
    try:
        return ChunkAnalysisResponse.model_validate(named(candidate))
    except ValidationError:
        return None


def _marks(request: ChunkAnalysisRequest, code: _Code, answer: ChunkAnalysisResponse, close: float) -> Marks:
    return Marks(
        (
            _symbols(code, answer.symbols[:MAX_LOOKED_AT]),
            _coverage(request, code, answer.symbols[:MAX_LOOKED_AT]),
            *_faults(code, answer.suspected_faults[:MAX_LOOKED_AT]),
            _summary(answer.summary, close),
            _constraints(request, answer),
            _repeated(answer),
        )
    )


def _symbols(code: _Code, symbols: Sequence[Symbol]) -> Mark:
    found = [_symbol(code, one) for one in symbols]
    placed = sum(value == 1.0 for value in found)
    value = share(sum(found), len(found), none=0.0 if code.defined else 1.0)
    return Mark(0.25, value, f"{placed} of {len(found)} symbols stand where it says")


def _symbol(code: _Code, symbol: Symbol) -> float:
    name = _last_name(symbol.name)
    if code.near(symbol.line, name):
        return 1.0
    return ELSEWHERE if name in code.names else 0.0


def _last_name(name: str) -> str:
    """`Cache.get` and `impl Cache` are looked up as their last word."""
    found = _NAME.findall(name)
    return found[-1] if found else name


def _coverage(request: ChunkAnalysisRequest, code: _Code, symbols: Sequence[Symbol]) -> Mark:
    limit = request.output_constraints.max_symbols
    wanted = len(code.defined) if limit is None else min(limit, len(code.defined))
    have = len(code.defined & {_last_name(one.name) for one in symbols})
    return Mark(0.20, min(1.0, share(have, wanted)), f"{have} of {len(code.defined)} definitions are named")


def _faults(code: _Code, faults: Sequence[SuspectedFault]) -> tuple[Mark, Mark]:
    placed = [one for one in faults if code.text(one.line).strip()]
    fitting = [one for one in placed if _fits(code, one)]
    return (
        Mark(
            0.15,
            share(len(placed), len(faults), NO_FAULTS),
            f"{len(placed)} of {len(faults)} faults are on lines of the code",
        ),
        Mark(0.15, share(len(fitting), len(faults), NO_FAULTS), f"{len(fitting)} of them speak of what stands there"),
    )


def _fits(code: _Code, fault: SuspectedFault) -> bool:
    return not set(asked(fault.description[:MAX_WORDS])).isdisjoint(terms(code.text(fault.line, around=1)))


def _summary(summary: str, close: float) -> Mark:
    value = max(0.0, close) if summary.strip() else 0.0
    return Mark(0.15, value, f"the summary is {value:.2f} close to task and code")


def _constraints(request: ChunkAnalysisRequest, answer: ChunkAnalysisResponse) -> Mark:
    limits = request.output_constraints
    pairs = (
        (limits.max_summary_length, len(answer.summary)),
        (limits.max_symbols, len(answer.symbols)),
        (limits.max_faults, len(answer.suspected_faults)),
        (limits.max_next_probes, len(answer.recommended_next_probes)),
    )
    kept = sum(limit is None or size <= limit for limit, size in pairs)
    return Mark(0.05, kept / len(pairs), f"{kept} of {len(pairs)} limits are kept")


def _repeated(answer: ChunkAnalysisResponse) -> Mark:
    said: list[object] = [(one.line, one.kind, one.name) for one in answer.symbols]
    said += [(one.line, one.description) for one in answer.suspected_faults]
    said += [one.path for one in answer.recommended_next_probes]
    again = len(said) - len(set(said))
    return Mark(0.05, 1 - share(again, len(said), none=0.0), f"{again} things are said twice")
