"""Contract 3, the wire protocol: what travels between the engine and its workers, over NATS and over HTTP.

Workers are outsiders, written in any language: what they send is read leniently where the contract is silent (unknown
fields are ignored) and strictly where a wrong reading could change a run.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fumehood.wire.base import NEVER_NULL

Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""What may become a part of a subject: run and step ids."""

LONGEST_REMARK = 128


def _remark(form: str) -> BeforeValidator:
    """For what is only told along: it ends up in journals and headers, so what does not have this form is left out. The
    event itself still counts."""
    known = re.compile(form)
    return BeforeValidator(lambda said: said if isinstance(said, str) and known.fullmatch(said) else None)


Name = Annotated[str | None, _remark(rf"[A-Za-z0-9._:@-]{{1,{LONGEST_REMARK}}}")]
"""Who says something, in a worker's own words."""
Remark = Annotated[str | None, _remark(rf"[\x21-\x7e]{{1,{LONGEST_REMARK}}}")]

Count = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]


LONGEST_PAUSE_MS = 3_600_000
"""The contract's hour."""


class ProtocolModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class TaskPayload(ProtocolModel):
    """One step handed out, as the contract spells it. Further fields are ours, and left out where they say nothing."""

    task_id: str
    run_id: Token
    step_id: Token
    iteration: Count = 0
    attempt: Count = 1
    input: Any = None
    lease_id: Annotated[str | None, NEVER_NULL] = None
    resumption: Annotated[Count | None, NEVER_NULL] = None
    """How often this attempt has been taken up again after a pause."""
    timeout_ms: Annotated[Annotated[int, Field(gt=0)] | None, NEVER_NULL] = None
    """How long the attempt may take: the time of a lease."""
    checkpoint: Any = None
    sandbox: Annotated[dict[str, Any] | None, NEVER_NULL] = None
    distinct: Annotated[Token | None, NEVER_NULL] = None
    """Of the tasks of this run with the same word here, no worker may have two."""
    tenant: Annotated[str | None, NEVER_NULL] = None
    asked_by: Annotated[str | None, NEVER_NULL] = None
    """For nodes: for whom it is, and by whose key. Their receipts say so."""
    proof: Annotated[str | None, NEVER_NULL, Field(max_length=LONGEST_REMARK, repr=False)] = None
    """For nodes: what shows that they were handed this. It goes back with all that they say about it."""
    traceparent: Annotated[str | None, NEVER_NULL] = None

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class EventType(StrEnum):
    """All that a worker may say. The contract's three; that it began, pauses or signals is ours."""

    STARTED = "step.started"
    COMPLETED = "step.completed"
    FAILED = "step.failed"
    CONTINUE = "step.continue"
    PAUSED = "step.paused"
    SIGNAL = "step.signal"


class StepEvent(ProtocolModel):
    """What a worker says about a task. `attempt` and `iteration` may be missing: then it speaks of the current ones."""

    type: EventType
    run_id: Token
    step_id: Token
    attempt: Count | None = None
    iteration: Count | None = None
    timestamp: Remark = None
    payload: Any = None
    worker_id: Name = None
    lease_id: Remark = None
    fenced: bool | None = None
    """False: whoever answered named no lease, and what it said was taken for the current one."""
    checkpointed: bool | None = None
    """A checkpoint of this task exists, and may go when the step has ended. Bare workers tidy up after themselves."""
    resumption: Count | None = None
    proof: Annotated[Remark, Field(repr=False)] = None
    """Of nodes: the task's own. Nothing that is said about a sandbox counts without it."""
    traceparent: Remark = None

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    @property
    def event_id(self) -> str:
        """The contract's id for the first attempt; what tells it from a later one is added beyond."""
        plain = f"{self.run_id}.{self.step_id}.{self.type}"
        attempt = f".a{self.attempt}" if (self.attempt or 1) > 1 else ""
        iteration = f".i{self.iteration}" if self.iteration else ""
        return plain + attempt + iteration + (f".r{self.resumption}" if self.resumption else "")


class WorkerRegistration(ProtocolModel):
    """A worker's entry in the directory."""

    worker_id: Token
    task_types: list[str]
    language: str = ""
    transport: str = ""
    max_tasks: Annotated[int, Field(ge=1, le=10_000)] = 1
    metadata: dict[str, str] = Field(default_factory=dict)
