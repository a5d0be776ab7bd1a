"""What a request allows of an answer, whoever gives it: a model that was asked for five symbols may send fifty."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fumehood.jobs.types.code_chunk_analysis import LEVELS, ChunkAnalysisRequest, ChunkAnalysisResponse

Item = TypeVar("Item")
RANK = {level: number for number, level in enumerate(LEVELS)}
ELLIPSIS = "…"

_WORDS = {
    "low": "low minor info information informational note hint trivial negligible style optional nit",
    "medium": "medium moderate normal warning warn average important",
    "high": "high critical severe serious major blocker error fatal urgent",
}
_LEVEL_OF = {word: level for level, words in _WORDS.items() for word in words.split()}
_SHARES = {"low": 0.3, "medium": 0.6, "high": 0.9}


def enforce(request: ChunkAnalysisRequest, response: ChunkAnalysisResponse) -> ChunkAnalysisResponse:
    """The response within the request's limits. What is kept keeps its order; doing it twice changes nothing."""
    limits, first, last = request.output_constraints, request.chunk.start_line, request.chunk.end_line
    symbols = [one for one in response.symbols if first <= one.line <= last]
    faults = [one for one in response.suspected_faults if first <= one.line <= last]
    probes = list(response.recommended_next_probes)
    return response.model_copy(
        update={
            "summary": _shortened(response.summary, limits.max_summary_length),
            "symbols": tuple(symbols[: limits.max_symbols]),
            "suspected_faults": _weightiest(faults, limits.max_faults, lambda one: RANK.get(one.severity, 0)),
            "recommended_next_probes": _weightiest(
                probes, limits.max_next_probes, lambda one: RANK.get(one.priority, 0)
            ),
            "confidence": _share(response.confidence),
        }
    )


def _shortened(text: str, limit: int | None) -> str:
    """In characters, cut after a word."""
    if limit is None or len(text) <= limit:
        return text
    if limit == 0:
        return ""
    head = text[: limit - 1]
    at_word = re.sub(r"\s+\S*$", "", head) if not text[limit - 1].isspace() else head
    return (at_word or head).rstrip() + ELLIPSIS


def _weightiest(items: Sequence[Item], limit: int | None, weight: Callable[[Item], int]) -> tuple[Item, ...]:
    if limit is None or len(items) <= limit:
        return tuple(items)
    best = sorted(range(len(items)), key=lambda place: (-weight(items[place]), place))[:limit]
    return tuple(items[place] for place in sorted(best))


def _share(value: float) -> float:
    return 0.0 if math.isnan(value) else min(1.0, max(0.0, value))


def present(**fields: Any) -> dict[str, Any]:
    """Options that are unset are left out."""
    return {name: value for name, value in fields.items() if value is not None}


# --- answers of models, before they are read -------------------------------------------------------------------


def normalise(raw: dict[str, Any]) -> dict[str, Any]:
    """What a model may have meant, in the contract's form: `Critical` is `high`, `"12"` is line 12, 85 is 0.85. An item
    that has no line or no text is left out; what cannot be understood stays as it is, and the response's model refuses
    it. Doing it twice changes nothing."""
    done = dict(raw)
    for name, texts, level in (
        ("symbols", ("name", "kind"), None),
        ("suspected_faults", ("description",), "severity"),
        ("recommended_next_probes", ("path", "reason"), "priority"),
    ):
        given = done.get(name)
        items = given if isinstance(given, list | tuple) else []
        needs_line = name != "recommended_next_probes"
        found = [_item(one, texts, level, needs_line=needs_line) for one in items if isinstance(one, dict)]
        done[name] = [one for one in found if one is not None]
    if "confidence" in done:
        done["confidence"] = _confidence(done["confidence"])
    return done


def _item(raw: dict[str, Any], texts: Sequence[str], level: str | None, *, needs_line: bool) -> dict[str, Any] | None:
    one = {name: value for name, value in raw.items() if value is not None}
    if not all(isinstance(one.get(name), str) and one[name].strip() for name in texts):
        return None
    for name in ("description", "suggestion"):
        if name in one and not isinstance(one[name], str):
            del one[name]
    if needs_line:
        line = _line(one.get("line"))
        if line is None:
            return None
        one["line"] = line
    if level is not None:
        said = one.get(level)
        one[level] = _LEVEL_OF.get(said.strip().lower(), "medium") if isinstance(said, str) else "medium"
    return one


def _line(value: object) -> int | None:
    if isinstance(value, str):
        found = re.match(r"\s*[lL]?(?:ines?\s*)?(\d{1,10})\b", value)
        value = int(found.group(1)) if found else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        return None
    return int(value) if value == int(value) and 1 <= value < 2**32 else None


def _confidence(value: object) -> object:
    if isinstance(value, str):
        word = _LEVEL_OF.get(value.strip().lower())
        if word is not None:
            return _SHARES[word]
        found = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,10})?)\s*(%?)\s*", value)
        if found is None:
            return value
        value = float(found.group(1)) / (100 if found.group(2) else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        return value
    return _share(value / 100 if 1 < value <= 100 else float(value))


def _is_finite(value: float) -> bool:
    """Integers of JSON know no bounds; floating-point numbers do."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
