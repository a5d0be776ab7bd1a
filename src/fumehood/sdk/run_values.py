"""What runs are to a caller: plain values, the same for both flavours of the SDK. Nothing here asks anybody.

Words that a later server may have are kept as they are: whoever compares a status with those known here is told
nothing wrong, and nothing breaks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

from fumehood.sdk.values import moment

Word = TypeVar("Word", bound=StrEnum)


class RunStatus(StrEnum):
    """Where a run stands. `CANCELLED` is of workflows, `STARTING` and `STOPPED` are of single images.

    from fumehood import RunStatus

    assert RunStatus.SUCCEEDED == "succeeded"
    """

    QUEUED = "queued"
    """Accepted, and safe: it will be run whatever happens."""
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


ENDED: frozenset[str] = frozenset(RunStatus) - {RunStatus.QUEUED, RunStatus.STARTING, RunStatus.RUNNING}


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    BLOCKED = "blocked"
    """For a concurrency key."""
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """For a retry."""
    PAUSED = "paused"
    SLEEPING = "sleeping"
    MAPPING = "mapping"
    LISTENING = "listening"
    """For a signal."""
    AWAITING_APPROVAL = "awaiting_approval"
    CALLING = "calling"
    """Another run."""
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


def word(kind: type[Word], text: object) -> Word | str:
    """A word of the API; one that is not known here stays as it is."""
    try:
        return kind(str(text))
    except ValueError:
        return str(text)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed."""

    code: str
    """For programs: the worker's own, or one of the engine's."""
    message: str
    details: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, said: object) -> Self | None:
        """As a server says it."""
        if not isinstance(said, Mapping):
            return None
        return cls(str(said.get("code", "")), str(said.get("message", "")), said.get("details"))

    @property
    def stderr_tail(self) -> str | None:
        """The last lines that a sandbox step wrote to stderr; `run.logs(step)` has all that was kept."""
        details = self.details if isinstance(self.details, Mapping) and "streams" in self.details else {}
        tail = details.get("stderr_tail")
        return tail if isinstance(tail, str) else None


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run, as it was when it was asked about."""

    id: str
    status: StepStatus | str
    attempt: int
    """Which try this is, from 1; 0 before the first."""
    output: Any = field(repr=False)
    """What it gave; a large one may be a reference, which `run.step_output(id)` follows."""
    error: Failure | None
    """Of its last attempt, where that failed."""
    worker_id: str | None
    child: str | None
    """The run that does its work."""
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it."""

    @classmethod
    def of(cls, step_id: str, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(
            id=step_id,
            status=word(StepStatus, said.get("status", "")),
            attempt=int(said.get("attempt", 0)),
            output=said.get("output"),
            error=Failure.of(said.get("error")),
            worker_id=said.get("worker_id"),
            child=said.get("child"),
            said=said,
        )


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run."""

    id: str
    """Its place: `run.events(after=…)` goes on behind it."""
    type: str
    """`run.started`, `step.completed` and so on; a later server may have more."""
    at: dt.datetime | None
    step: str | None
    """Which step it is about, where it is about one."""
    data: Mapping[str, Any] = field(repr=False)
    """All of it."""

    @classmethod
    def of(cls, event_id: str, kind: str, data: Mapping[str, Any]) -> Self:
        """As a server says it."""
        step = data.get("step")
        return cls(event_id, kind, moment(data.get("at")), step if isinstance(step, str) else None, data)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list; `client.runs.get(id)` shows all of it."""

    id: str
    workflow: str
    status: RunStatus | str
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    labels: Mapping[str, str]
    error: Failure | None
    failed_step: str | None
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(
            id=str(said["run_id"]),
            workflow=str(said.get("workflow") or ""),
            status=word(RunStatus, said.get("status", "")),
            started_at=moment(said.get("started_at")),
            ended_at=moment(said.get("ended_at")),
            labels=dict(said.get("labels") or {}),
            error=Failure.of(said.get("error")),
            failed_step=said.get("failed_step"),
            said=said,
        )


@dataclass(frozen=True, slots=True)
class ImageRunSummary:
    """A run of a single image in a list; `client.runs.get_image(id)` shows all of it."""

    id: str
    image: str
    status: RunStatus | str
    exit_code: int | None
    reason: str | None
    created_at: dt.datetime | None
    finished_at: dt.datetime | None
    said: Mapping[str, Any] = field(repr=False)
    """All that the server says of it."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(
            id=str(said["run_id"]),
            image=str(said.get("image_ref") or ""),
            status=word(RunStatus, said.get("status", "")),
            exit_code=said.get("exit_code"),
            reason=said.get("reason"),
            created_at=moment(said.get("created_at")),
            finished_at=moment(said.get("finished_at")),
            said=said,
        )


@dataclass(frozen=True, slots=True)
class RunLogs:
    """What a sandbox of a run printed, or the last lines of it."""

    stdout: str
    stderr: str
    truncated: bool
    """Whether anything of either stream is missing here."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some of what a sandbox of a run prints, as it appears."""

    stream: str
    """`stdout` or `stderr`."""
    text: str
    attempt: int
    """Which attempt prints it: another one begins from the start."""
    cut: bool = False
    """Something of the stream is missing here, and there is no text in its place."""


@dataclass(frozen=True, slots=True)
class WorkflowVersion:
    """A definition that a workflow has or had."""

    name: str
    digest: str
    """Of its canonical form: runs are pinned to it."""
    version: int | None
    """None for one that is not the current one."""
    applied_at: dt.datetime | None
    definition: Mapping[str, Any] | None = field(default=None, repr=False)
    """In its canonical form, where it was asked for."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        return cls(
            str(said["name"]),
            str(said["digest"]),
            said.get("version"),
            moment(said.get("applied_at")),
            said.get("definition"),
        )
