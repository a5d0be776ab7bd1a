"""Contract 3 over HTTP: what a worker sends to the bridge, and what comes back.

Workers are written in any language, and many of those languages write out all fields of a structure, the empty ones
too: an answer of one kind may carry the fields of every other. So each action is a model of its own, strict about what
it uses and blind to the rest. What may become part of a subject is checked here, before it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from fumehood.errors import InvalidRequestError
from fumehood.wire import blobref, strict_json
from fumehood.wire.base import ABSENT_NOT_NULL, TASK_TYPE_FORM, WHOLE, WireModel, validate
from fumehood.wire.protocol import LONGEST_PAUSE_MS, TaskPayload, Token

LONGEST_POLL_MS = 60_000
MOST_TASKS = 256
MOST_TYPES = 128
"""Task types that one worker may name: each is a question to the broker of its own."""
LONGEST_ERROR = 4096
"""Characters of an error's text that are kept, here and in the run. A stack trace is cut rather than refused: the
failure is what counts."""

TaskType = Annotated[str, Field(pattern=TASK_TYPE_FORM, max_length=128)]
TaskTypes = Annotated[list[TaskType], Field(min_length=1, max_length=MOST_TYPES)]
RESERVED = "connect"
"""No worker's id: at its path is the endpoint where workers register."""


def _refuse_reserved(worker_id: str) -> str:
    if worker_id == RESERVED:
        raise ValueError(f"must not be `{RESERVED}`")
    return worker_id


WorkerId = Annotated[Token, AfterValidator(_refuse_reserved), Field(json_schema_extra={"not": {"const": RESERVED}})]
LeaseId = Annotated[str, Field(min_length=1, max_length=128)]


class BridgeModel(WireModel):
    """Strict about the fields that it knows; others are ignored, since newer workers may meet older bridges."""

    model_config = ConfigDict(extra="ignore")


# --- connect -----------------------------------------------------------------------------------------------


class ConnectRequest(BridgeModel):
    """`POST /v1/workers/connect`: here I am."""

    worker_id: WorkerId
    task_types: TaskTypes
    max_tasks: Annotated[int, Field(ge=1, le=10_000), WHOLE]
    language: Annotated[str, Field(max_length=64)] | None = None
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=128)], Annotated[str, Field(max_length=512)]], Field(max_length=32)
    ] = Field(default_factory=dict)


class StreamEvent(BridgeModel):
    """One event of the stream that `connect` answers with. `replaced` and `drain` are the last of theirs."""

    event: Literal["heartbeat", "replaced", "drain"]
    worker_id: Token
    timestamp: str

    def encode(self) -> bytes:
        """As Server-Sent Events have it: the event's name, and everything else as one line of data."""
        data = self.model_dump_json(exclude={"event"})
        return f"event: {self.event}\ndata: {data}\n\n".encode()


# --- poll --------------------------------------------------------------------------------------------------


class PollRequest(BridgeModel):
    """`POST /v1/tasks/poll`: what is there for me? `worker_id` and `run_id` are ours."""

    task_types: TaskTypes
    max_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS), WHOLE]
    timeout_ms: Annotated[int, Field(ge=0, le=LONGEST_POLL_MS), WHOLE]
    worker_id: Token | None = None
    """Recorded with the lease; a worker that is being drained gets nothing."""
    run_id: Token | None = None
    """Only tasks of this run. Costly where the queue is full of others."""


PollResponse = TypeAdapter(list[TaskPayload])


# --- resolve -----------------------------------------------------------------------------------------------


class Resolution(BridgeModel):
    """What all answers have in common. Without `lease_id` an answer is taken for the task's current lease."""

    lease_id: LeaseId | None = None


class ResolveComplete(Resolution):
    action: Literal["complete"]
    output: Any = None


class TaskError(BridgeModel):
    """An error that says more than a text. `retryable: false` ends the step whatever its retry policy."""

    code: Annotated[str, Field(max_length=128)] = "failed"
    message: str = ""
    retryable: bool | None = None

    def stored(self) -> dict[str, Any]:
        said = {"code": self.code or "failed", "message": self.message[:LONGEST_ERROR], "retryable": self.retryable}
        return {name: value for name, value in said.items() if value is not None}


class ResolveFail(Resolution):
    action: Literal["fail"]
    error: str | TaskError | None = None

    def stored(self) -> str | dict[str, Any]:
        """As it goes on the run's history."""
        return self.error.stored() if isinstance(self.error, TaskError) else (self.error or "")[:LONGEST_ERROR]


class ResolvePause(Resolution):
    action: Literal["pause"]
    duration_ms: Annotated[int, Field(ge=1, le=LONGEST_PAUSE_MS), WHOLE]
    checkpoint: Any = None


class ResolveCheckpoint(Resolution):
    action: Literal["checkpoint"]
    data: Annotated[Any, Field(json_schema_extra={"not": {"type": "null"}})]


class ResolveContinue(Resolution):
    action: Literal["continue"]
    output: Any = None


class ResolveHeartbeat(Resolution):
    action: Literal["heartbeat"]


class ResolveSignal(Resolution):
    action: Literal["signal"]
    name: Token
    data: Any = None


Resolve = (
    ResolveComplete
    | ResolveFail
    | ResolvePause
    | ResolveCheckpoint
    | ResolveContinue
    | ResolveHeartbeat
    | ResolveSignal
)
ResolveRequest: TypeAdapter[Resolve] = TypeAdapter(Annotated[Resolve, Field(discriminator="action")])
ACTIONS: Mapping[str, type[Resolve]] = {
    "complete": ResolveComplete,
    "fail": ResolveFail,
    "pause": ResolvePause,
    "checkpoint": ResolveCheckpoint,
    "continue": ResolveContinue,
    "heartbeat": ResolveHeartbeat,
    "signal": ResolveSignal,
}


class ResolveResponse(BridgeModel):
    status: Literal["ok"] = "ok"
    expires_in_ms: Annotated[
        int | None,
        ABSENT_NOT_NULL,
        Field(
            description="After `heartbeat` and `checkpoint`: how long the task is the worker's if it says no more. The "
            "attempt's own time is not extended by it: where the task has a `timeout_ms`, that ends it all the same"
        ),
    ] = None


class CheckpointResponse(BridgeModel):
    checkpoint: Any


class DrainResponse(BridgeModel):
    status: Literal["draining"] = "draining"


# --- reading ---------------------------------------------------------------------------------------------------


def parse_connect(body: bytes) -> ConnectRequest:
    return validate(ConnectRequest, strict_json.loads(body), versioned=False)


def parse_poll(body: bytes) -> PollRequest:
    return validate(PollRequest, strict_json.loads(body), versioned=False)


def parse_resolve(body: bytes) -> Resolve:
    """`InvalidRequestError` for what is no answer. References to blobs are not a worker's to write: with one, it would
    have content read back that it only knows the hash of."""
    data = strict_json.loads(body, deepest=strict_json.DEEPEST)
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    action = data.get("action")
    kind = ACTIONS.get(action) if isinstance(action, str) else None
    if kind is None:
        raise InvalidRequestError(f"action: must be one of {', '.join(ACTIONS)}")
    answer: Resolve = validate(kind, data, versioned=False)
    if isinstance(answer, ResolveCheckpoint) and answer.data is None:
        raise InvalidRequestError("data: must not be null")
    if any(blobref.mentions_blob(getattr(answer, name, None)) for name in ("output", "checkpoint", "data")):
        raise InvalidRequestError(f"body: the key {blobref.KEY} is reserved")
    return answer
