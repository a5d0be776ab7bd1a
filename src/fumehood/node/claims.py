"""What a node claims of each end: the subjects and the predicate of its receipt. Pure.

Subjects are `stdout` and `stderr`, the whole of each stream whatever was kept of it, where that is known; and
`stdout.returned` and `stderr.returned`, the text of each in the answer, as UTF-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from fumehood.node.receipts import Said, plain
from fumehood.node.result import Result
from fumehood.sandbox.spec import Outcome as Ended
from fumehood.sandbox.spec import StreamEnd
from fumehood.verify.receipt import Asked, Image, Kind, Outcome
from fumehood.wire.base import WireModel
from fumehood.wire.canonical import json_sha256
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import POLICY_DENIED, SANDBOX_TASK, SandboxReport, SandboxTask
from fumehood.wire.worker_api import RUN_JOB_PATH, RunJobRequest

STDOUT: Final = "stdout"
STDERR: Final = "stderr"
RETURNED: Final = ".returned"
_LIMITS: Final = ("memory_bytes", "swap_bytes", "cpu_millis", "pids")


def of_task(
    report: SandboxReport, payload: TaskPayload, *, stdin: bytes, timeout_ms: int, lease_id: str | None
) -> Said:
    """The request is the `SandboxTask`; what its program read is hashed with it, where there was anything."""
    request = SandboxTask.model_validate(payload.sandbox)
    more = {"stdin_sha256": sha256(stdin)} if stdin else {}
    streams = {name: one.sha256 for name, one in report.streams.items()}
    sizes = {name: {"total_bytes": one.total_bytes} for name, one in report.streams.items() if one.sha256 is not None}
    assert report.finished_at is not None, "every end has its time"
    return Said(
        kind=Kind.SANDBOX_RUN,
        task={
            "run_id": payload.run_id,
            "step_id": payload.step_id,
            "attempt": payload.attempt,
            "iteration": payload.iteration,
            "resumption": payload.resumption or 0,
            "lease_id": lease_id,
        },
        request=asked(request, SANDBOX_TASK, **more).model_copy(
            update={"tenant": payload.tenant, "by": payload.asked_by}
        ),
        outcome=Outcome(
            status=report.status,
            reason=POLICY_DENIED if report.denied is not None else report.reason,
            exit_code=report.exit_code,
            signal=report.signal,
        ),
        subjects={
            STDOUT: streams.get(STDOUT),
            STDERR: streams.get(STDERR),
            STDOUT + RETURNED: sha256(report.stdout.encode()),
            STDERR + RETURNED: sha256(report.stderr.encode()),
        },
        image=image_of(report.evidence),
        observed={
            **observed_of(report.evidence, timeout_ms=timeout_ms),
            **({"streams": sizes} if sizes else {}),
            **({"never_ran": True} if report.never_ran else {}),
            **({"denied": report.denied} if report.denied is not None else {}),
        },
        started_at=report.started_at,
        finished_at=report.finished_at,
    )


def of_job(
    request: RunJobRequest,
    result: Result,
    evidence: Mapping[str, Any],
    outcome: Ended | None = None,
    *,
    timeout_ms: int,
) -> Said:
    """The request is the body of `POST /v1/worker/jobs:run`. Without an `outcome`, nobody knows of a beginning, nor of
    its streams."""
    response = result.response
    ends = {STDOUT: outcome.stdout, STDERR: outcome.stderr} if outcome is not None else {}
    return Said(
        kind=Kind.SANDBOX_RUN,
        task={"job_id": str(request.job_id), "task_id": str(request.task_id)},
        request=asked(request, RUN_JOB_PATH),
        outcome=Outcome(
            status=response.status,
            reason=result.exit_reason,
            exit_code=response.exit_code,
            signal=outcome.signal if outcome is not None else None,
        ),
        subjects={
            **stream_subjects(ends),
            STDOUT + RETURNED: sha256(response.stdout.encode()),
            STDERR + RETURNED: sha256(response.stderr.encode()),
        },
        image=image_of(evidence),
        observed={**observed_of(evidence, timeout_ms=timeout_ms), **stream_sizes(ends)},
        started_at=response.started_at if outcome is not None else None,
        finished_at=response.ended_at,
    )


# --- parts of all of them ----------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def asked(request: WireModel, kind: str, **more: str) -> Asked:
    """A request by the hash of its canonical JSON, with what is as by default left out; `more` is hashed with it."""
    said = request.model_dump(mode="json", exclude_defaults=True)
    return Asked(sha256=json_sha256({**said, **more}), type=kind)


def stream_subjects(ends: Mapping[str, StreamEnd | None]) -> dict[str, str]:
    """Of the streams that the supervisor has hashed from end to end."""
    return {name: end.sha256 for name, end in ends.items() if end is not None and end.sha256}


def stream_sizes(ends: Mapping[str, StreamEnd | None]) -> dict[str, Any]:
    sizes = {name: {"total_bytes": end.total_bytes} for name, end in ends.items() if end is not None and end.sha256}
    return {"streams": sizes} if sizes else {}


def image_of(evidence: Mapping[str, Any]) -> Image | None:
    """The image that was run, and why it might be; None for one that was not admitted."""
    admission = evidence.get("admission") or {}
    digest = admission.get("resolved_digest")
    if not digest or admission.get("denial_reason") is not None:
        return None
    return Image(digest=digest, reference=admission.get("image"), evidence=plain(admission))


def observed_of(evidence: Mapping[str, Any], *, timeout_ms: int | None = None) -> dict[str, Any]:
    """What was in force on the sandbox, and what it did on its network; of an image that was denied, the decision."""
    isolation = dict(evidence.get("isolation") or {})
    limits = {name: isolation.pop(name) for name in _LIMITS if name in isolation}
    if timeout_ms is not None:
        limits["timeout_ms"] = timeout_ms
    denied = evidence.get("admission") if image_of(evidence) is None else None
    parts = {"isolation": isolation, "network": evidence.get("network"), "limits": limits, "admission": denied}
    return plain({name: part for name, part in parts.items() if part})
