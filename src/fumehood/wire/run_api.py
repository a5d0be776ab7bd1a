"""The server's own API: workflows are applied, runs of them started, seen and cancelled.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, UtcTime, WireModel

WORKFLOWS_PATH = "/v1/workflows"
WORKFLOW_PATH = "/v1/workflows/{name}"
START_PATH = "/v1/workflows/{name}/runs"
RUN_PATH = "/v1/runs/{run_id}"
HISTORY_PATH = "/v1/runs/{run_id}/history"
BLOB_PATH = "/v1/runs/{run_id}/blobs/{digest}"
CANCEL_PATH = "/v1/runs/{run_id}:cancel"

IDEMPOTENCY_HEADER = "Idempotency-Key"
LONGEST_KEY = 256
LONGEST_REASON = 1024


class RunPhase(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Accepted: it is safe with the broker, and nobody has looked at it yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Key = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY)]


class StartRunRequest(WireModel):
    """A run to start."""

    input: Annotated[
        Any,
        Field(description="What the workflow's expressions see as `input`: any JSON that fits its `input_schema`"),
    ] = None
    idempotency_key: Annotated[
        Key | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description="The same key and input again, within 7 days, is the same run. May also be given in the header "
            "`Idempotency-Key`"
        ),
    ] = None


class StartRunResponse(WireModel):
    """A run that will be run, whatever happens to whoever said so."""

    run_id: Annotated[str, Field(description="The run's name from now on")]


class CancelRunRequest(WireModel):
    """Why a run shall end."""

    reason: Annotated[
        str, Field(max_length=LONGEST_REASON, description="For people; it stands in the run's history")
    ] = ""


class Failure(WireModel):
    """Why something failed."""

    code: Annotated[str, Field(description="For programs: the worker's own, or one of the engine's")]
    message: Annotated[str, Field(description="For people")]


class MapItems(WireModel):
    """How far a map has come."""

    total: Annotated[int, Field(ge=0, description="Items of the list")]
    ended: Annotated[int, Field(ge=0, description="Items that are completed, failed or cancelled")]


class StepView(WireModel):
    """One step of a run."""

    status: Annotated[
        str,
        Field(
            description="`pending`, `queued`, `running`, `waiting` (for a retry), `paused`, `sleeping`, `mapping`, "
            "`completed`, `failed`, `skipped` or `cancelled`"
        ),
    ]
    attempt: Annotated[int, Field(ge=0, description="Which try this is, from 1; 0 before the first")]
    iteration: Annotated[int, Field(ge=0, description="Of an agent loop, from 0")]
    output: Annotated[
        Any,
        Field(
            description='What it gave; a large one that was left out is `{"$blob": …, "size": …}`, and can be read '
            "at `/v1/runs/{run_id}/blobs/{digest}`"
        ),
    ] = None
    error: Annotated[Failure | None, Field(description="Of its last attempt, where that failed")] = None
    worker_id: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Who said that it began")] = None
    wake_at: Annotated[
        UtcTime | None, ABSENT_NOT_NULL, Field(description="When a retry, a pause or a sleep is over")
    ] = None
    timeout_at: Annotated[
        UtcTime | None, ABSENT_NOT_NULL, Field(description="When the attempt under way has taken too long")
    ] = None
    items: Annotated[MapItems | None, ABSENT_NOT_NULL, Field(description="Of a map")] = None


class RunView(WireModel):
    """A run as its journal tells it now."""

    run_id: Annotated[str, Field(description="The run's name")]
    workflow: Annotated[str | None, Field(description="The workflow's name; null while that is not known yet")]
    definition: Annotated[Digest | None, Field(description="The definition that the run is pinned to")]
    status: Annotated[RunPhase, Field(strict=False, description="Where it stands; the last four are for ever")]
    steps: Annotated[dict[str, StepView], Field(description="By the step's id; items of maps on demand, as `id--0` …")]
    input: Annotated[Any, Field(description="What it was started with")] = None
    output: Annotated[Any, Field(description="What it gave, once it succeeded")] = None
    error: Annotated[Failure | None, Field(description="Why it failed")] = None
    started_at: Annotated[UtcTime | None, Field(description="When it was first looked at")] = None
    ended_at: Annotated[UtcTime | None, Field(description="When it ended")] = None
    deadline_at: Annotated[UtcTime | None, ABSENT_NOT_NULL, Field(description="When it will be timed out")] = None
    started_by: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Who asked for it")] = None


class HistoryRecord(WireModel):
    """One decision."""

    seq: Annotated[int, Field(ge=1, description="Grows, with gaps")]
    at: Annotated[UtcTime, Field(description="When it was decided")]
    events: Annotated[
        list[dict[str, Any]],
        Field(description="What was decided, each with its `type`; times in them are milliseconds since 1970"),
    ]
    consumed: Annotated[list[str], Field(description="The messages that had their effect with it")]


class HistoryPage(WireModel):
    """A part of a run's history, in order."""

    run_id: Annotated[str, Field(description="The run's name")]
    records: Annotated[list[HistoryRecord], Field(description="Oldest first")]
    next: Annotated[int | None, Field(description="`after` for the next page; null where this is the last")] = None


class WorkflowSummary(WireModel):
    """A workflow that can be run."""

    name: Annotated[str, Field(description="Its name")]
    digest: Annotated[Digest, Field(description="Of its current definition's canonical JSON")]
    version: Annotated[int, Field(ge=1, description="How many different definitions the name has had, one by one")]
    applied_at: Annotated[UtcTime, Field(description="When the current one was applied")]


class WorkflowList(WireModel):
    """Workflows by name."""

    workflows: Annotated[list[WorkflowSummary], Field(description="Sorted by name")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None


class WorkflowView(WireModel):
    """A workflow with a definition of its."""

    name: Annotated[str, Field(description="Its name")]
    digest: Annotated[Digest, Field(description="Of this definition's canonical JSON")]
    version: Annotated[int | None, ABSENT_NOT_NULL, Field(description="Absent for one that is not current")] = None
    applied_at: Annotated[UtcTime | None, ABSENT_NOT_NULL, Field(description="Absent for one that is not current")] = (
        None
    )
    definition: Annotated[dict[str, Any], Field(description="In its canonical form: durations are milliseconds")]
