"""What an analyser or a rule found, and how several of them become one list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fumehood.jobs.analysis.catalogue import MEANINGS

SAID_BY = {
    "assignment-in-condition": {"always"},
    "nan-compare": {"always"},
    "unsafe": {"unwrap"},
    "self-compare": {"always"},
    "double-free": {"use-after-free"},
}
"""A meaning, and what need not be said beside it on the same line."""
RANK = {"low": 0, "medium": 1, "high": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    """From 1, within the chunk."""
    meaning: str
    """From the catalogue, or an analyser's own word."""
    severity: str
    description: str
    suggestion: str | None
    source: str
    """The analyser; `rules` for ours."""

    @classmethod
    def of(cls, meaning: str, line: int, *, severity: str | None = None, note: str | None = None) -> Finding:
        """By a rule of ours."""
        known = MEANINGS[meaning]
        description = f"{known.description} {note}" if note else known.description
        return cls(line, meaning, severity or known.severity, description, known.suggestion, "rules")


def combine(found: Iterable[Finding]) -> list[Finding]:
    """One for each line and meaning. Where several say the same, the words are those of the analyser that named the
    rule, and the severity is the highest."""
    kept: dict[tuple[int, str], Finding] = {}
    for one in sorted(found, key=_order):
        key = (one.line, one.meaning)
        first = kept.setdefault(key, one)
        if RANK[one.severity] > RANK[first.severity]:
            kept[key] = replace(first, severity=one.severity)
    for line, meaning in list(kept):
        for implied in SAID_BY.get(meaning, ()):
            kept.pop((line, implied), None)
    return sorted(kept.values(), key=lambda one: (one.line, one.meaning))


def _order(one: Finding) -> tuple[int, str, bool, str, str]:
    return (one.line, one.meaning, one.source == "rules", one.source, one.description)
