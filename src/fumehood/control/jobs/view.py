"""A job for people: from the state of its run to what `/v1/jobs` shows. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from fumehood.control.jobs.definition import JUDGE, VERDICT, execution
from fumehood.engine.state import RunState, RunStatus, StepStatus
from fumehood.wire.job_api import CandidateView, JobError, JobStatus, JobView, JudgeView, VerdictOutcome, VerdictView
from fumehood.wire.jobs import Verification

META = "job"
_ERRORS = {
    "too_few_workers": "fewer distinct providers began it in time than the job wants; the others decided nothing",
    "too_few_answers": "too few answers count to decide by: the others failed, or were rejected",
    "no_valid_answer": "no answer had a receipt that holds",
    "judge_failed": "the judge gave no answer that holds",
    "merge_failed": "the answers could not be merged by the rule of their type",
}
_DECIDED = (VerdictOutcome.SINGLE, VerdictOutcome.MAJORITY, VerdictOutcome.JUDGED, VerdictOutcome.MERGED)
_ENDS = {
    RunStatus.FAILED: JobStatus.FAILED,
    RunStatus.TIMED_OUT: JobStatus.TIMED_OUT,
    RunStatus.CANCELLED: JobStatus.CANCELLED,
}


def waiting(job_id: str, meta: Mapping[str, Any]) -> JobView:
    """Before a decider has looked at it."""
    return JobView(**_head(job_id, meta), status=JobStatus.QUEUED)


def of(state: RunState, outputs: Mapping[str, Any]) -> JobView:
    """`outputs`: what its steps gave, with what stood behind references."""
    head = _head(state.run_id, state.meta) | {"started_at": _time(state.started_at), "ended_at": _time(state.ended_at)}
    said = outputs.get(VERDICT)
    if not state.status.ended:
        begun = any(step.status not in (StepStatus.PENDING, StepStatus.QUEUED) for step in state.steps.values())
        return JobView(**head, status=JobStatus.RUNNING if begun else JobStatus.QUEUED)
    if state.status is not RunStatus.SUCCEEDED or not isinstance(said, Mapping):
        return JobView(**head, status=_ENDS.get(state.status, JobStatus.FAILED), error=_why(state))
    return _decided(head, said, outputs)


def _decided(head: dict[str, Any], said: Mapping[str, Any], outputs: Mapping[str, Any]) -> JobView:
    verification = Verification.model_validate(head["verification"])
    verdict = _verdict(verification, said, outputs)
    receipts = [one.receipt for one in verdict.candidates if one.receipt is not None]
    receipts += [verdict.judge.receipt] if verdict.judge is not None else []
    return JobView(
        **head,
        status=_status(verdict.outcome),
        result=_result(verdict, said),
        error=_error(said),
        verdict=verdict,
        receipts=tuple(receipts),
    )


def _status(outcome: VerdictOutcome) -> JobStatus:
    if outcome is VerdictOutcome.NO_MAJORITY:
        return JobStatus.DISPUTED
    return JobStatus.SUCCEEDED if outcome in _DECIDED else JobStatus.FAILED


def _result(verdict: VerdictView, said: Mapping[str, Any]) -> dict[str, Any] | None:
    if verdict.outcome is VerdictOutcome.MERGED:
        merged: dict[str, Any] = said["merged"]
        return merged
    return verdict.candidates[verdict.chosen].response if verdict.chosen is not None else None


def _error(said: Mapping[str, Any]) -> JobError | None:
    reason = said.get("reason")
    if reason is None:
        return None
    trouble = (said.get("judge") or {}).get("message") or _missing(said)
    return JobError(code=reason, message=_ERRORS.get(reason, reason) + (f": {trouble}" if trouble else ""))


def _missing(said: Mapping[str, Any]) -> str:
    """How many of how many, where some are missing."""
    candidates = said["candidates"]
    idle = sum(1 for one in candidates if one.get("failed") == "not_started")
    return f"{len(candidates) - idle} of {len(candidates)} executions were begun" if idle else ""


def _why(state: RunState) -> JobError:
    failure = state.failure
    if failure is None:
        return JobError(code=state.status.value, message=f"the job ended as {state.status.value}")
    return JobError(code=failure.code, message=failure.message)


def _verdict(verification: Verification, said: Mapping[str, Any], outputs: Mapping[str, Any]) -> VerdictView:
    return VerdictView(
        outcome=VerdictOutcome(said["outcome"]),
        mode=verification.mode,
        redundancy=verification.redundancy,
        adjudication=verification.adjudication,
        agreed=said["agreed"],
        chosen=said["chosen"],
        candidates=tuple(_candidate(one, outputs) for one in said["candidates"]),
        judge=_judge(said.get("judge"), outputs.get(JUDGE)),
    )


def _candidate(said: Mapping[str, Any], outputs: Mapping[str, Any]) -> CandidateView:
    answer = outputs.get(execution(said["execution"]))
    known = answer if isinstance(answer, Mapping) else {}
    rejected, failed = said.get("rejected"), said.get("failed")
    why = rejected or failed
    return CandidateView(
        execution=said["execution"],
        worker=said.get("worker"),
        key_id=said.get("key_id"),
        accepted=why is None,
        rejected=rejected,
        declared_sha256=said.get("declared"),
        response=_object(known.get("response")),
        receipt=_object(known.get("receipt")),
        error=None if why is None else JobError(code=why, message=said.get("message") or why),
    )


def _judge(said: Mapping[str, Any] | None, answer: Any) -> JudgeView | None:
    if said is None or "index" not in said or not isinstance(answer, Mapping):
        return None
    response, receipt = answer["response"], answer["receipt"]
    return JudgeView(
        index=said["index"],
        order=tuple(said["order"]),
        reason=response["reason"],
        worker=said["worker"],
        key_id=said["key_id"],
        request_sha256=said["request_sha256"],
        response=response,
        receipt=receipt,
    )


def _object(value: Any) -> dict[str, Any] | None:
    return dict(value) if isinstance(value, Mapping) else None


def _head(job_id: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    known = meta[META]
    return {
        "job_id": job_id,
        "job_type": known["job_type"],
        "schema_version": known["schema_version"],
        "request_sha256": known["request_sha256"],
        "verification": known["verification"],
        "submitted_by": meta.get("by"),
    }


def _time(at: int | None) -> dt.datetime | None:
    return None if at is None else dt.datetime.fromtimestamp(at / 1000, dt.UTC)
