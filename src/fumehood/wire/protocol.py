"""Contract 3, the wire protocol: what travels between the engine and its workers, over NATS and over HTTP.

Workers are outsiders, written in any language: what they send is read leniently where the contract is silent (unknown
fields are ignored) and strictly where a wrong reading could change a run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""What may become a part of a subject: run and step ids."""

Count = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]


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
    lease_id: str | None = None
    checkpoint: Any = None
    sandbox: dict[str, Any] | None = None
    traceparent: str | None = None

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class EventType(StrEnum):
    """All that a worker may say."""

    STARTED = "step.started"
    COMPLETED = "step.completed"
    FAILED = "step.failed"
    CONTINUE = "step.continue"


class StepEvent(ProtocolModel):
    """What a worker says about a task. `attempt` and `iteration` may be missing: then it speaks of the current ones."""

    type: EventType
    run_id: Token
    step_id: Token
    attempt: Count | None = None
    iteration: Count | None = None
    timestamp: str | None = None
    payload: Any = None
    worker_id: str | None = None
    lease_id: str | None = None
    traceparent: str | None = None

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    @property
    def event_id(self) -> str:
        """The contract's id for the first attempt; attempt and iteration are added beyond."""
        plain = f"{self.run_id}.{self.step_id}.{self.type}"
        attempt = f".a{self.attempt}" if (self.attempt or 1) > 1 else ""
        return plain + attempt + (f".i{self.iteration}" if self.iteration else "")


class WorkerRegistration(ProtocolModel):
    """A worker's entry in the directory."""

    worker_id: Token
    task_types: list[str]
    language: str = ""
    transport: str = ""
    max_tasks: Annotated[int, Field(ge=1, le=10_000)] = 1
    metadata: dict[str, str] = Field(default_factory=dict)
