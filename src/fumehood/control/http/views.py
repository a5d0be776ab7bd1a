"""Runs and workflows as the API shows them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.runs import Queued
from fumehood.control.workflows import Pointer, Stored
from fumehood.engine.definition import Step
from fumehood.engine.events import Record
from fumehood.engine.state import Ending, Failure, RunState, StepState, StepStatus, index_of, item_id, step_of
from fumehood.wire import run_api
from fumehood.wire.times import moment


def _moment(at_ms: int | None) -> dt.datetime | None:
    return None if at_ms is None else moment(at_ms)


def queued(run: Queued) -> run_api.RunView:
    return run_api.RunView(
        run_id=run.run_id, workflow=run.workflow, definition=run.digest, status=run_api.RunPhase.QUEUED, steps={}
    )


def run(state: RunState, *, items: bool) -> run_api.RunView:
    steps = {name: _step(state, name, step) for name, step in state.steps.items() if items or index_of(name) is None}
    by = state.meta.get("by")
    gate = state.gates.get("")
    return run_api.RunView(
        run_id=state.run_id,
        workflow=state.definition.name,
        definition=state.digest or None,
        status=run_api.RunPhase(state.status.value),
        steps=steps,
        input=state.input,
        output=state.output,
        error=_failure(state.failure),
        started_at=moment(state.started_at),
        ended_at=_moment(state.ended_at),
        deadline_at=_moment(state.deadline_at),
        started_by=str(by) if by else None,
        tenant=str(state.meta.get("tenant") or DEFAULT_TENANT),
        labels=state.meta.get("labels") or None,
        tries=state.tries or None,
        failed_step=state.failed_step,
        ending=_ending(state.ending) if state.ending is not None and not state.status.ended else None,
        blocked_on=gate.key if gate is not None and not gate.held and not state.status.ended else None,
        parent=_parent(state.meta.get("parent")),
        continued_from=state.meta.get("continued_from"),
        continued_as=state.continued_as,
    )


def _ending(ending: Ending) -> run_api.EndingView:
    return run_api.EndingView(status=run_api.RunPhase(ending.status.value), error=_failure(ending.failure))


def _parent(said: Any) -> run_api.ParentView | None:
    return run_api.ParentView(run_id=said["run_id"], step=said["step"]) if isinstance(said, dict) else None


def _step(state: RunState, name: str, step: StepState) -> run_api.StepView:
    defined = step_of(state, name)
    listens = defined.wait_signal if step.status is StepStatus.LISTENING else None
    gate = state.gates.get(name) if step.status is StepStatus.BLOCKED else None
    override = step.override
    return run_api.StepView(
        status=step.status.value,
        attempt=step.attempt,
        iteration=step.iteration,
        output=step.output,
        error=_failure(step.failure),
        worker_id=step.worker_id,
        wake_at=_moment(step.wake_at),
        timeout_at=_moment(step.timeout_at),
        items=_items(state.steps, name, step.items) if step.items is not None else None,
        signal=listens.name if listens is not None else None,
        approval=_approval(defined, step) if step.status is StepStatus.AWAITING_APPROVAL else None,
        child=step.child,
        blocked_on=gate.key if gate is not None else None,
        override=run_api.OverrideView(action=override.action, by=override.by, reason=override.reason)
        if override is not None
        else None,
    )


def _approval(defined: Step, step: StepState) -> run_api.ApprovalView | None:
    asked = defined.approval
    if asked is None:
        return None
    return run_api.ApprovalView(message=asked.message, approvers=list(asked.approvers), input=step.input)


def _items(steps: Mapping[str, StepState], name: str, total: int) -> run_api.MapItems:
    ended = sum(steps[item_id(name, index)].status.ended for index in range(total) if item_id(name, index) in steps)
    return run_api.MapItems(total=total, ended=ended)


def _failure(failure: Failure | None) -> run_api.Failure | None:
    if failure is None:
        return None
    details = dict(failure.details) if failure.details is not None else None
    return run_api.Failure(code=failure.code, message=failure.message, details=details)


def record(seq: int, decided: Record) -> run_api.HistoryRecord:
    """The events as the journal holds them."""
    events: list[dict[str, Any]] = json.loads(decided.encode())["events"]
    return run_api.HistoryRecord(seq=seq, at=moment(decided.at), events=events, consumed=list(decided.consumed))


def summary(pointer: Pointer) -> run_api.WorkflowSummary:
    return run_api.WorkflowSummary(
        name=pointer.name,
        digest=pointer.digest,
        version=pointer.version,
        applied_at=moment(pointer.applied_at),
    )


def workflow(stored: Stored, pointer: Pointer) -> run_api.WorkflowView:
    current = stored.digest == pointer.digest
    return run_api.WorkflowView(
        name=pointer.name,
        digest=stored.digest,
        version=pointer.version if current else None,
        applied_at=moment(pointer.applied_at) if current else None,
        definition=stored.document,
    )
