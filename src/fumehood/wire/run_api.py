"""The server's own API: workflows are applied, runs of them started, seen and cancelled.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fumehood.errors import InvalidRequestError
from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, UtcTime, WireModel

WORKFLOWS_PATH = "/v1/workflows"
WORKFLOW_PATH = "/v1/workflows/{name}"
START_PATH = "/v1/workflows/{name}/runs"
RUN_PATH = "/v1/runs/{run_id}"
HISTORY_PATH = "/v1/runs/{run_id}/history"
BLOB_PATH = "/v1/runs/{run_id}/blobs/{digest}"
RECEIPT_PATH = "/v1/runs/{run_id}/steps/{step}/receipt"
LOGS_PATH = "/v1/runs/{run_id}/steps/{step}/logs"
LOG_STREAM_PATH = "/v1/runs/{run_id}/steps/{step}/logs/stream"
CANCEL_PATH = "/v1/runs/{run_id}:cancel"

IDEMPOTENCY_HEADER = "Idempotency-Key"
LONGEST_KEY = 256
LONGEST_REASON = 1024
MOST_LABELS = 16
LABEL_NAME_PATTERN = r"^[A-Za-z0-9_]([-.]?[A-Za-z0-9_])*$"
LONGEST_LABEL_NAME = 64
LONGEST_LABEL = 256
MOST_LABEL_BYTES = 4096
"""Of all names and values together. Labels stand in the run's summary, which every server's index holds."""


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
LabelName = Annotated[str, Field(pattern=LABEL_NAME_PATTERN, max_length=LONGEST_LABEL_NAME)]


def _within_bytes(labels: dict[str, str]) -> dict[str, str]:
    if _size(labels) > MOST_LABEL_BYTES:
        raise ValueError(f"must have at most {MOST_LABEL_BYTES} bytes of UTF-8, names and values together")
    return labels


def _size(labels: Mapping[str, str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for label in labels.items() for text in label)


Labels = Annotated[
    dict[LabelName, Annotated[str, Field(max_length=LONGEST_LABEL)]],
    AfterValidator(_within_bytes),
    Field(
        max_length=MOST_LABELS,
        description="What runs can be found by: names and values of the caller's own, "
        f"{MOST_LABEL_BYTES} bytes of UTF-8 together",
        json_schema_extra={"additionalProperties": False, "propertyNames": {"maxLength": LONGEST_LABEL_NAME}},
    ),
]


def check_labels(labels: Mapping[str, str]) -> None:
    """The same bounds, for labels that did not come in a request."""
    if len(labels) > MOST_LABELS:
        raise InvalidRequestError(f"labels: must have at most {MOST_LABELS} entries")
    for name, value in labels.items():
        if len(name) > LONGEST_LABEL_NAME or re.fullmatch(LABEL_NAME_PATTERN, name) is None:
            raise InvalidRequestError(
                f"labels: a name must be 1 to {LONGEST_LABEL_NAME} letters, digits, underscores, and single dashes and "
                "dots between them"
            )
        if len(value) > LONGEST_LABEL:
            raise InvalidRequestError(f"labels: a value must have at most {LONGEST_LABEL} characters")
    if _size(labels) > MOST_LABEL_BYTES:
        raise InvalidRequestError(f"labels: must have at most {MOST_LABEL_BYTES} bytes of UTF-8 together")


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
    labels: Labels = Field(default_factory=dict)


class StartRunResponse(WireModel):
    """A run that will be run, whatever happens to whoever said so."""

    run_id: Annotated[str, Field(description="The run's name from now on")]


class CancelRunRequest(WireModel):
    """Why a run shall end."""

    reason: Annotated[
        str, Field(max_length=LONGEST_REASON, description="For people; it stands in the run's history")
    ] = ""
    force: Annotated[
        bool, Field(description="End a run at once that is undoing what it did, and leave the rest as it is")
    ] = False


class Failure(WireModel):
    """Why something failed."""

    code: Annotated[str, Field(description="For programs: the worker's own, or one of the engine's")]
    message: Annotated[str, Field(description="For people")]
    details: Annotated[
        dict[str, Any] | None, Field(description="What else is known: the report of a sandbox that failed a step")
    ] = None


class MapItems(WireModel):
    """How far a map has come."""

    total: Annotated[int, Field(ge=0, description="Items of the list")]
    ended: Annotated[int, Field(ge=0, description="Items that are completed, failed or cancelled")]


class ApprovalView(WireModel):
    """What somebody is asked."""

    message: Annotated[str, Field(description="The definition's")]
    approvers: Annotated[list[str], Field(description="Who may decide; empty: whoever may approve at all")]
    input: Annotated[Any, Field(description="What the step's `with` shows them")] = None


class OverrideView(WireModel):
    """What somebody decided about a step by hand."""

    action: Annotated[str, Field(description="`skip` or `complete`")]
    by: Annotated[str, Field(description="Who")]
    reason: Annotated[str, Field(description="Why")]


class EndingView(WireModel):
    """How a run will have ended, once what it did is undone."""

    status: Annotated[RunPhase, Field(strict=False, description="`failed`, `timed_out` or `cancelled`")]
    error: Annotated[Failure | None, Field(description="Why")] = None


class ParentView(WireModel):
    """The step of another run that a run does the work of."""

    run_id: Annotated[str, Field(description="That run")]
    step: Annotated[str, Field(description="Its step")]


class StepView(WireModel):
    """One step of a run."""

    status: Annotated[
        str,
        Field(
            description="`pending`, `blocked` (for a concurrency key), `queued`, `running`, `waiting` (for a retry), "
            "`paused`, `sleeping`, `mapping`, `listening` (for a signal), `awaiting_approval`, `calling` (another "
            "run), `completed`, `failed`, `skipped` or `cancelled`"
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
    signal: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The name of the signal that it waits for")] = None
    approval: Annotated[
        ApprovalView | None, ABSENT_NOT_NULL, Field(description="What somebody is asked to approve")
    ] = None
    child: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The run that does, or did, its work")] = None
    blocked_on: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The concurrency key that it waits for")] = (
        None
    )
    override: Annotated[
        OverrideView | None, ABSENT_NOT_NULL, Field(description="Where somebody decided about it by hand")
    ] = None


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
    tenant: Annotated[str | None, ABSENT_NOT_NULL, Field(description="Whose it is")] = None
    labels: Annotated[dict[str, str] | None, ABSENT_NOT_NULL, Field(description="What it was given to be found by")] = (
        None
    )
    tries: Annotated[int | None, ABSENT_NOT_NULL, Field(description="How often it was taken up again")] = None
    failed_step: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The step that it failed over")] = None
    ending: Annotated[
        EndingView | None, ABSENT_NOT_NULL, Field(description="While what it did is undone: how it will have ended")
    ] = None
    blocked_on: Annotated[
        str | None, ABSENT_NOT_NULL, Field(description="The concurrency key that the whole run waits for")
    ] = None
    parent: Annotated[ParentView | None, ABSENT_NOT_NULL, Field(description="Of a run that another one called")] = None
    continued_from: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The run that it goes on after")] = None
    continued_as: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The run that goes on after it")] = None


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
