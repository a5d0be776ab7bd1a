"""Runs of the Runner API: from what the engine knows of a run to what its callers are told. Pure.

The engine's word is final: how a run ended stands in its journal. What happens before that is seen by what its node
leaves behind, a lease and the first record of its output.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine.state import Failure, RunState, RunStatus, StepState
from fumehood.wire.runner_api import GetRunResponse, RunnerStatus, evidence_of, pod_name
from fumehood.wire.sandbox import POLICY_DENIED, RUN_STEP, RUN_WORKFLOW, RunReason, SandboxReport
from fumehood.wire.times import moment

META = "runner"
"""Where in a run's `meta` stands what only this API knows of it."""
ACTIVE = "active"
"""In lists: it has not ended. How far it has come is not written down anywhere."""
LONGEST_IMAGE = 1024
"""Characters of an image's name in a list: no reference that was admitted is longer."""

_NODE_LOST = frozenset({"lease_expired"})
"""What the engine calls it where nobody was left to answer."""
_STATUSES = {RunReason.TIMEOUT: RunnerStatus.TIMED_OUT, RunReason.STOPPED: RunnerStatus.STOPPED}


LONGEST_STOP_MS = 120_000
"""After a stop: more than a command has to obey, and than a sandbox lives whose node died just then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was created with, beyond what its definition says."""

    image_ref: str
    evidence: Mapping[str, Any]
    context: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        said = {"image_ref": self.image_ref, "policy_evidence": dict(self.evidence)}
        return said | ({"workflow_context": dict(self.context)} if self.context else {})

    @classmethod
    def of(cls, workflow: object, meta: Mapping[str, Any]) -> Asked | None:
        """None for a run that was not created by this API."""
        known = meta.get(META)
        if workflow != RUN_WORKFLOW or not isinstance(known, dict):
            return None
        return cls(known["image_ref"], known["policy_evidence"], known.get("workflow_context") or {})


@dataclass(frozen=True, slots=True)
class Traces:
    """What a node left behind of an attempt."""

    attempt: int = 0
    """Which one; 0: nobody has had it."""
    begun: bool = False
    """Its command was sent."""
    started_at: dt.datetime | None = None
    """When, where that can still be read."""
    over: bool = False
    """Its node has seen it end."""
    ended_at: dt.datetime | None = None

    @property
    def status(self) -> RunnerStatus:
        if not self.attempt:
            return RunnerStatus.QUEUED
        return RunnerStatus.RUNNING if self.begun else RunnerStatus.STARTING


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended."""

    status: RunnerStatus
    reason: RunReason | None
    report: SandboxReport | None = None
    detail: str = ""

    @property
    def exit_code(self) -> int | None:
        return self.report.exit_code if self.report is not None else None


def end_of(state: RunState, output: Any) -> End:
    """For a run that has ended. `output` is its step's, with what it has by reference."""
    step = state.steps.get(RUN_STEP, StepState())
    if state.status is RunStatus.CANCELLED:
        return End(RunnerStatus.STOPPED, RunReason.STOPPED)
    if state.status is RunStatus.SUCCEEDED:
        report = SandboxReport.read(output)
        return End(RunnerStatus.SUCCEEDED, report.reason if report is not None else None, report)
    failure = step.failure or state.failure or Failure("internal")
    reason, report = _reason(state.status, failure.code), SandboxReport.read(failure.details)
    return End(_STATUSES.get(reason, RunnerStatus.FAILED), reason, report, failure.message)


def _reason(status: RunStatus, code: str) -> RunReason:
    if status is RunStatus.TIMED_OUT:
        return RunReason.TIMEOUT
    if code in _NODE_LOST:
        return RunReason.NODE_LOST
    if code == POLICY_DENIED:
        return RunReason.IMAGE_ERROR  # nothing ran, and the same will not run there another time
    return RunReason(code) if code in set(RunReason) else RunReason.INTERNAL


def waiting(run_id: str, asked: Asked) -> GetRunResponse:
    """A run that no decider has looked at."""
    return _view(run_id, asked, status=RunnerStatus.QUEUED, started_at=None)


def under_way(state: RunState, asked: Asked, traces: Traces) -> GetRunResponse:
    """A run that has not ended; of what its node left behind, only what belongs to this attempt counts."""
    step = state.steps.get(RUN_STEP, StepState())
    mine = traces if step.status.handed_out and traces.attempt == step.attempt else Traces()
    return _view(state.run_id, asked, status=mine.status, started_at=mine.started_at, **_of_engine(state, step))


def is_stopping(stopped_at: int | None, traces: Traces, now_ms: int) -> bool:
    """Whether the command of a run that was stopped may still run: it has a while to obey, and only its node can say
    that it has ended. Past the longest that anything of it could run, nobody need say so."""
    return stopped_at is not None and traces.begun and not traces.over and now_ms - stopped_at < LONGEST_STOP_MS


def stopping(state: RunState, asked: Asked, traces: Traces) -> GetRunResponse:
    """A run that was stopped, and is not."""
    step = state.steps.get(RUN_STEP, StepState())
    return _view(
        state.run_id,
        asked,
        status=RunnerStatus.RUNNING,
        started_at=traces.started_at,
        detail="it was stopped, and has not ended yet",
        **_of_engine(state, step),
    )


def ended(state: RunState, asked: Asked, end: End, traces: Traces) -> GetRunResponse:
    """Without a report of its node, it is known from what that left behind whether it began, and when it ended."""
    step, report = state.steps.get(RUN_STEP, StepState()), end.report
    started_at = report.started_at if report is not None else None
    finished_at = report.finished_at if report is not None else traces.ended_at
    return _view(
        state.run_id,
        asked,
        status=end.status,
        started_at=started_at or traces.started_at,
        finished_at=finished_at or (moment(state.ended_at) if state.ended_at is not None else None),
        exit_code=end.exit_code,
        reason=end.reason,
        detail=end.detail or None,
        **_of_engine(state, step),
    )


def _of_engine(state: RunState, step: StepState) -> dict[str, Any]:
    return {"attempt": step.attempt, "created_at": moment(state.started_at)}


def _view(run_id: str, asked: Asked, **known: Any) -> GetRunResponse:
    evidence = evidence_of(asked.evidence)
    return GetRunResponse(
        run_id=run_id,
        pod_name=pod_name(run_id),
        policy_evidence=evidence,
        image_ref=asked.image_ref,
        image_digest=evidence.resolved_digest,
        workflow_context=dict(asked.context) or None,
        **known,
    )


def summary(state: RunState) -> dict[str, Any] | None:
    """What a list shows of a run beyond what it shows of all; None for a run of another kind."""
    asked = Asked.of(state.definition.name, state.meta)
    if asked is None:
        return None
    known: dict[str, Any] = {
        "outcome": ACTIVE,
        "image_ref": asked.image_ref[:LONGEST_IMAGE],
        "image_digest": asked.evidence.get("resolved_digest"),
    }
    if not state.status.ended:
        return known
    step = state.steps.get(RUN_STEP, StepState())
    end = end_of(state, step.output)
    reason = end.reason.value if end.reason is not None else None
    return known | {"outcome": end.status.value, "reason": reason, "exit_code": _exit_code(state, end)}


def _exit_code(state: RunState, end: End) -> int | None:
    """A report that is kept by reference cannot be looked into here, and says what it must say of a run that succeeded:
    anything but exit code 0 fails one."""
    if end.report is None and state.status is RunStatus.SUCCEEDED and state.steps[RUN_STEP].override is None:
        return 0
    return end.exit_code
