"""Recorded journals, and a state written down so that it can be compared for ever.

A recording knows the fields that states had when it was made, and is compared by these alone: a field that is added
later changes nothing about it; one that goes away, or comes to mean something else, does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fumehood.engine.definition import Definition
from fumehood.engine.desired import Child, Claim, desired
from fumehood.engine.events import Record
from fumehood.engine.fold import fold
from fumehood.engine.state import Ending, Failure, Gate, Override, RunState, Signal, StepState

HISTORIES = Path(__file__).parent / "histories"
JOURNAL, STATES = ".journal.jsonl", ".states.jsonl"


def journals() -> list[Path]:
    """Every recorded journal: `histories/{release}/{case}.journal.jsonl`, one record a line, byte for byte."""
    return sorted(HISTORIES.glob(f"*/*{JOURNAL}"))


def states_of(journal: Path) -> Path:
    """The fields that were known, and what each of its records must lead to, one state a line."""
    return journal.with_name(journal.name.removesuffix(JOURNAL) + STATES)


def run_id_of(journal: Path) -> str:
    return f"golden-{journal.name.removesuffix(JOURNAL)}"


def states(run_id: str, lines: list[bytes]) -> Iterator[RunState]:
    """The state behind each record."""
    state: RunState | None = None
    for line in lines:
        state = fold(run_id, [Record.decode(line)], state)
        assert state is not None
        yield state


Fields = Mapping[str, Sequence[str]]
"""The names of each class's fields."""


def fields_now() -> Fields:
    return {
        kind.__name__: [item.name for item in dataclasses.fields(kind)]
        for kind in (RunState, StepState, Failure, Signal, Gate, Ending, Override, Child, Claim)
    }


def written(state: RunState, known: Fields) -> str:
    """A state, and what should be out for it: an upgrade must neither forget a timer nor call a task otherwise, and
    the same goes for runs that were called and keys that were asked for, where a recording knows of these."""
    picture = desired(state)
    document = {
        "state": plain(state, known),
        "tasks": sorted([task.key, task.type] for task in picture.tasks),
        "timers": sorted([timer.id, timer.at, dict(timer.body)] for timer in picture.timers),
    }
    if "Child" in known:
        document["children"] = sorted((plain(child, known) for child in picture.children), key=str)
    if "Claim" in known:
        document["claims"] = sorted((plain(claim, known) for claim in picture.claims), key=str)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(value: Any, known: Fields) -> Any:
    """As JSON. What is not there is left out, so that a person can read it."""
    if isinstance(value, Definition):
        return json.loads(value.canonical())
    if type(value).__name__ in known:
        fields = {name: plain(getattr(value, name), known) for name in known[type(value).__name__]}
        return {name: field for name, field in fields.items() if field is not None}
    if isinstance(value, Mapping):
        return {str(name): plain(item, known) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return [plain(item, known) for item in value] if isinstance(value, list | tuple) else value
