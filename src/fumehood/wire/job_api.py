"""Jobs over HTTP: contract 4 from the caller's side."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from fumehood.wire.base import ABSENT_NOT_NULL, Sha256, UtcTime, WireModel
from fumehood.wire.jobs import MAX_REDUNDANCY, Adjudication, JobTypeName, Mode, Verification

JOBS_PATH = "/v1/jobs"
JOB_PATH = "/v1/jobs/{job_id}"
CANCEL_JOB_PATH = "/v1/jobs/{job_id}:cancel"
JOB_TYPES_PATH = "/v1/job-types"
JOB_TYPE_PATH = "/v1/job-types/{name}"
PROVIDERS_PATH = "/v1/providers"
SET_ASIDE_PATH = "/v1/providers/{worker_id}:set-aside"
RESTORE_PATH = "/v1/providers/{worker_id}:restore"
JOB_WORKFLOW = "fumehood-job"
"""The name under which jobs are kept as runs; nobody may give it to a workflow."""


class SubmitJobRequest(WireModel):
    job_type: JobTypeName
    payload: dict[str, Any]
    """The request, as its type says; what it leaves out has the type's default."""


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """There is a result that was decided on as the request wanted. What the job itself found may well be a failure."""
    DISPUTED = "disputed"
    """Its providers disagree; all that they said is in the verdict."""
    FAILED = "failed"
    """Nothing could be decided on, and `error` says why."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class JobError(WireModel):
    code: str
    message: str


class VerdictOutcome(StrEnum):
    SINGLE = "single"
    MAJORITY = "majority"
    JUDGED = "judged"
    MERGED = "merged"
    NO_MAJORITY = "no_majority"
    ERROR = "error"


class CandidateView(WireModel):
    """One execution: who did it, what it gave, and whether that counts."""

    model_config = ConfigDict(extra="forbid", strict=False)

    execution: Annotated[int, Field(ge=0, lt=MAX_REDUNDANCY)]
    worker: Annotated[str | None, ABSENT_NOT_NULL] = None
    key_id: Annotated[str | None, ABSENT_NOT_NULL] = None
    accepted: bool
    rejected: Annotated[str | None, ABSENT_NOT_NULL] = None
    """Why its answer does not count: `unknown_key`, `revoked_key`, `task_mismatch`, `output_mismatch` and the like."""
    declared_sha256: Annotated[Sha256 | None, ABSENT_NOT_NULL] = None
    response: Annotated[dict[str, Any] | None, ABSENT_NOT_NULL] = None
    receipt: Annotated[dict[str, Any] | None, ABSENT_NOT_NULL] = None
    error: Annotated[JobError | None, ABSENT_NOT_NULL] = None


class JudgeView(WireModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    index: Annotated[int, Field(ge=0, lt=MAX_REDUNDANCY)]
    """In the order that it saw."""
    order: tuple[int, ...]
    """Which executions it saw, in that order."""
    reason: str
    worker: str
    key_id: str
    request_sha256: Sha256
    response: dict[str, Any]
    receipt: dict[str, Any]


class VerdictView(WireModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    outcome: VerdictOutcome
    mode: Mode
    redundancy: int
    adjudication: Adjudication
    agreed: int
    """How many executions said what the chosen one says."""
    chosen: Annotated[int | None, ABSENT_NOT_NULL] = None
    candidates: tuple[CandidateView, ...] = ()
    judge: Annotated[JudgeView | None, ABSENT_NOT_NULL] = None


class JobView(WireModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    job_id: str
    job_type: str
    schema_version: str
    status: JobStatus
    request_sha256: Sha256
    verification: Verification
    result: Annotated[dict[str, Any] | None, ABSENT_NOT_NULL] = None
    """The response that was decided on."""
    error: Annotated[JobError | None, ABSENT_NOT_NULL] = None
    verdict: Annotated[VerdictView | None, ABSENT_NOT_NULL] = None
    ignored: Annotated[tuple[str, ...] | None, ABSENT_NOT_NULL] = None
    """In the answer to a submission: what the payload says that the type has no field for."""
    receipts: tuple[dict[str, Any], ...] = ()
    """Of all executions that gave one, in their order, and of the judge."""
    submitted_by: Annotated[str | None, ABSENT_NOT_NULL] = None
    started_at: Annotated[UtcTime | None, ABSENT_NOT_NULL] = None
    ended_at: Annotated[UtcTime | None, ABSENT_NOT_NULL] = None


class JobTypeView(WireModel):
    model_config = ConfigDict(extra="allow", strict=False)

    name: str
    version: str
    about: str


class JobTypesView(WireModel):
    job_types: tuple[JobTypeView, ...]


# --- providers -----------------------------------------------------------------------------------------------


class SetAsideRequest(WireModel):
    reason: Annotated[str, Field(min_length=1, max_length=500)]


class SetAside(WireModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    reason: str
    by: str
    at: UtcTime


class Verdict(WireModel):
    """One of the last jobs of a provider."""

    model_config = ConfigDict(extra="forbid", strict=False)

    job_id: str
    said: str
    at: UtcTime


class ProviderView(WireModel):
    """How a provider stands: `disagreed` counts answers that were outvoted, `rejected` those that it signed and that
    did not count, `failed` those in its name without its signature, whoever gave them."""

    model_config = ConfigDict(extra="forbid", strict=False)

    worker: str
    present: bool
    job_types: tuple[str, ...] = ()
    receipt_key: Annotated[str | None, ABSENT_NOT_NULL] = None
    counts: dict[str, int] = Field(default_factory=dict)
    """`agreed`, `disagreed`, `disputed`, `rejected`, `failed`, `answered`."""
    recent: tuple[Verdict, ...] = ()
    set_aside: Annotated[SetAside | None, ABSENT_NOT_NULL] = None


class ProvidersView(WireModel):
    providers: tuple[ProviderView, ...]
