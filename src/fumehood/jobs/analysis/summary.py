"""A chunk in a few sentences. Everything in them was found in the code or stands in the request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fumehood.jobs.analysis.catalogue import MEANINGS
from fumehood.jobs.analysis.languages import LANGUAGES, Language
from fumehood.jobs.analysis.process import Found, FoundFault
from fumehood.jobs.analysis.relevance import Wanted
from fumehood.jobs.types.code_chunk_analysis import CodeChunk

SHOWN = 8
PLURAL = {"class": "classes", "property": "properties"}
_TYPES = ("module", "class", "struct", "trait", "interface", "enum", "type")
ORDER = (*_TYPES, "function", "method", "constant", "macro", "property", "variable")


def unknown(chunk: CodeChunk) -> str:
    titles = ", ".join(sorted({one.title for one in LANGUAGES}))
    said = f"language {chunk.language!r}" if chunk.language is not None else "language"
    return f"{_place(chunk)}. Its {said} is not known here, so it was not analysed; known are {titles}."


def written(chunk: CodeChunk, language: Language, found: Found, faults: Sequence[FoundFault], wanted: Wanted) -> str:
    parts = [f"{language.title}, {_place(chunk)}.", _lead(found.lead), _defines(found), _imports(found)]
    parts += [_faults(chunk, faults, wanted), _looked(found)]
    return " ".join(part for part in parts if part)


def _place(chunk: CodeChunk) -> str:
    return f"lines {chunk.start_line} to {chunk.end_line} of {chunk.path}"


def _lead(text: str | None) -> str:
    if not text:
        return ""
    return f"It says of itself: {text}" if text.endswith((".", "!", "?")) else f"It says of itself: {text}."


def _defines(found: Found) -> str:
    kinds: dict[str, list[str]] = {}
    for one in found.symbols:
        kinds.setdefault(one.kind, []).append(one.name)
    if not kinds:
        return "It defines nothing by name."
    known = sorted(kinds, key=lambda kind: (ORDER.index(kind) if kind in ORDER else len(ORDER), kind))
    return "It defines " + "; ".join(_named(kind, kinds[kind]) for kind in known) + "."


def _named(kind: str, names: Sequence[str]) -> str:
    plural = kind if len(names) == 1 else PLURAL.get(kind, f"{kind}s")
    return f"{len(names)} {plural} ({_some(names)})"


def _some(names: Iterable[str]) -> str:
    each = list(dict.fromkeys(names))
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return ", ".join(each[:SHOWN]) + more


def _imports(found: Found) -> str:
    names = [" ".join(one.what.strip("\"'<>`").split())[:60] for one in found.imports]
    return f"It uses {_some(names)}." if names else ""


def _faults(chunk: CodeChunk, faults: Sequence[FoundFault], wanted: Wanted) -> str:
    asked = f"The task asks for {' and '.join(wanted.topics)}: " if wanted.topics else ""
    if not faults:
        return f"{asked}no fault is suspected." if asked else "No fault is suspected."
    near = [one for one in faults if wanted.fits(one.meaning, one.description)]
    count = _counted(faults)
    if asked:
        count += f", {len(near) if len(near) < len(faults) else 'all'} of them about that"
    first = (near or list(faults))[:3]
    places = "; ".join(f"{_titled(one)} in line {chunk.start_line + one.line - 1}" for one in first)
    return f"{asked}{count}. First: {places}."


def _titled(fault: FoundFault) -> str:
    known = MEANINGS.get(fault.meaning)
    return known.title if known else f"{fault.source} {fault.meaning}"


def _counted(faults: Sequence[FoundFault]) -> str:
    levels = [f"{number} {level}" for level in ("high", "medium", "low") if (number := _number(faults, level))]
    return f"{len(faults)} suspected fault{'s' if len(faults) > 1 else ''} ({', '.join(levels)})"


def _number(faults: Sequence[FoundFault], level: str) -> int:
    return sum(one.severity == level for one in faults)


def _looked(found: Found) -> str:
    """With what, and how much of it could not be read."""
    if found.tool is None:
        by = "Looked at with rules of our own; there is no other analyser for this language."
    elif found.tool_read:
        by = f"Looked at with {found.tool} and rules of our own."
    else:
        by = f"Looked at with rules of our own; {found.tool} could not read the chunk as a program."
    share = round(100 * found.error_share)
    return f"{by} {share} % of it could not be parsed." if share else by
