"""One answer of several: everything that any of them found, in an order that does not depend on theirs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fumehood.jobs.analysis.constraints import RANK, enforce, present
from fumehood.jobs.types.code_chunk_analysis import (
    ChunkAnalysisRequest,
    ChunkAnalysisResponse,
    NextProbe,
    SuspectedFault,
    Symbol,
)
from fumehood.wire.jobs import Provenance

BETWEEN = " / "
"""Between texts of several providers about the same place."""


def merge(request: ChunkAnalysisRequest, responses: Sequence[ChunkAnalysisResponse]) -> ChunkAnalysisResponse:
    """Symbols by line, kind and name; faults by line, each as severe as the most severe of them; probes by path. The
    summary is that of the most confident one, the confidence their mean."""
    if not responses:
        raise ValueError("there is nothing to merge")
    best = min(responses, key=lambda one: (-one.confidence, one.summary))
    merged = ChunkAnalysisResponse(
        summary=best.summary,
        symbols=_symbols(responses),
        suspected_faults=_faults(responses),
        recommended_next_probes=_probes(responses),
        confidence=min(1.0, math.fsum(one.confidence for one in responses) / len(responses)),
        provenance=Provenance(model_id="merge"),
    )
    return enforce(request, merged)


def _symbols(responses: Sequence[ChunkAnalysisResponse]) -> tuple[Symbol, ...]:
    groups: dict[tuple[int, str, str], list[Symbol]] = {}
    for response in responses:
        for one in response.symbols:
            groups.setdefault((one.line, one.kind, one.name), []).append(one)
    return tuple(
        Symbol.model_validate(
            present(line=line, kind=kind, name=name, description=_joined(one.description for one in found))
        )
        for (line, kind, name), found in sorted(groups.items())
    )


def _faults(responses: Sequence[ChunkAnalysisResponse]) -> tuple[SuspectedFault, ...]:
    groups: dict[int, list[SuspectedFault]] = {}
    for response in responses:
        for one in response.suspected_faults:
            groups.setdefault(one.line, []).append(one)
    found = [
        SuspectedFault.model_validate(
            present(
                line=line,
                severity=_highest(one.severity for one in same),
                description=_joined(one.description for one in same),
                suggestion=_joined(one.suggestion for one in same),
            )
        )
        for line, same in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-RANK[one.severity], one.line)))


def _probes(responses: Sequence[ChunkAnalysisResponse]) -> tuple[NextProbe, ...]:
    groups: dict[str, list[NextProbe]] = {}
    for response in responses:
        for one in response.recommended_next_probes:
            groups.setdefault(one.path, []).append(one)
    found = [
        NextProbe(
            path=path,
            reason=_joined(one.reason for one in same) or "",
            priority=_highest(one.priority for one in same),
        )
        for path, same in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-RANK[one.priority], one.path)))


def _highest(levels: Iterable[str]) -> str:
    return max(levels, key=lambda level: RANK[level])


def _joined(texts: Iterable[str | None]) -> str | None:
    said = sorted({text for text in texts if text is not None})
    return BETWEEN.join(said) if said else None
