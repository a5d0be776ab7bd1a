"""A state as bytes, and back: so that a long journal need not be read from its beginning.

A snapshot is a convenience. Whatever cannot be read, or was written by another version, is no snapshot, and the journal
is folded from the start.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fumehood.engine.fold import pinned
from fumehood.engine.state import (
    Ending,
    Failure,
    Gate,
    Override,
    RunState,
    RunStatus,
    Signal,
    StepState,
    StepStatus,
)

FORMAT = 2
_STEP_FIELDS = tuple((item.name, item.default) for item in dataclasses.fields(StepState))


def encode(state: RunState) -> bytes:
    definition = json.loads(state.definition.canonical())
    document = {
        "v": FORMAT,
        "run_id": state.run_id,
        "definition": definition,
        "digest": state.digest,
        "meta": dict(state.meta),
        "input": state.input,
        "started_at": state.started_at,
        "deadline_at": state.deadline_at,
        "status": state.status.value,
        "output": state.output,
        "failure": _failure(state.failure),
        "ended_at": state.ended_at,
        "consumed": sorted(state.consumed),
        "signals": [
            [signal.name, signal.data, signal.at, signal.taken_by, signal.of_worker] for signal in state.signals
        ],
        "pins": dict(state.pins),
        "refused": state.refused,
        "tries": state.tries,
        "failed_step": state.failed_step,
        "ending": _ending(state.ending),
        "gates": {name: [gate.key, gate.limit, gate.queue, gate.held] for name, gate in state.gates.items()},
        "completed": state.completed,
        "continued_as": state.continued_as,
        "continued_input": state.continued_input,
        "events": state.events,
        "updated_at": state.updated_at,
        "steps": {name: _step(step) for name, step in state.steps.items()},
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode(data: bytes) -> RunState | None:
    """`None` for what is no snapshot of this version."""
    try:
        document = json.loads(data)
        if document["v"] != FORMAT:
            return None
        return RunState(
            run_id=document["run_id"],
            definition=pinned(document["digest"], document["definition"]),
            input=document["input"],
            started_at=document["started_at"],
            deadline_at=document["deadline_at"],
            digest=document["digest"],
            meta=document["meta"],
            status=RunStatus(document["status"]),
            steps={name: _read_step(step) for name, step in document["steps"].items()},
            output=document["output"],
            failure=_read_failure(document["failure"]),
            ended_at=document["ended_at"],
            consumed=set(document["consumed"]),
            signals=tuple(Signal(*signal) for signal in document["signals"]),
            pins=document["pins"],
            refused=document["refused"],
            tries=document["tries"],
            failed_step=document["failed_step"],
            ending=_read_ending(document["ending"]),
            gates={name: Gate(*gate) for name, gate in document["gates"].items()},
            completed=document["completed"],
            continued_as=document["continued_as"],
            continued_input=document["continued_input"],
            events=document["events"],
            updated_at=document["updated_at"],
        )
    except (ValueError, KeyError, TypeError):
        return None


def _step(step: StepState) -> dict[str, Any]:
    fields = {name: getattr(step, name) for name, default in _STEP_FIELDS if getattr(step, name) is not default}
    if "failure" in fields:
        fields["failure"] = _failure(step.failure)
    if step.override is not None:
        fields["override"] = [step.override.action, step.override.by, step.override.reason]
    return fields


def _read_step(document: dict[str, Any]) -> StepState:
    fields = dict(document)
    if "status" in fields:
        fields["status"] = StepStatus(fields["status"])
    if "failure" in fields:
        fields["failure"] = _read_failure(fields["failure"])
    if "override" in fields:
        fields["override"] = Override(*fields["override"])
    if "former" in fields:
        fields["former"] = tuple(fields["former"])
    return StepState(**fields)


def _ending(ending: Ending | None) -> dict[str, Any] | None:
    if ending is None:
        return None
    return {
        "status": ending.status.value,
        "failure": _failure(ending.failure),
        "step": ending.step,
        "reason": ending.reason,
        "by": ending.by,
    }


def _read_ending(document: dict[str, Any] | None) -> Ending | None:
    if document is None:
        return None
    fields = {**document, "status": RunStatus(document["status"]), "failure": _read_failure(document["failure"])}
    return Ending(**fields)


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else failure.plain()


def _read_failure(document: dict[str, Any] | None) -> Failure | None:
    return None if document is None else Failure(**document)
