"""What a runner needs to know of a piece of work, whichever door it came through."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fumehood.errors import FumehoodError, SandboxLostError
from fumehood.images.admission import AdmissionPolicy, AdmittedImage
from fumehood.sandbox.driver import Driver, Handle, Sink
from fumehood.sandbox.spec import Command, Outcome, SandboxSpec

LABEL_CAPABILITY = "fumehood.capability"
LABEL_TASK = "fumehood.task_id"
LABEL_JOB = "fumehood.job_id"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a piece of work ended: what is stored as its answer, and what is said about it in figures."""

    answer_json: str
    status: str
    started_at: dt.datetime
    ended_at: dt.datetime
    exit_code: int | None = None
    exit_reason: str | None = None
    gone_first: bool = False
    """Nobody is told before the sandbox is gone."""
    receipt_json: str | None = None
    """Where the answer itself has no place for it."""


class Output(Sink, Protocol):
    """Takes what a command prints, and keeps what is to be kept of it through the death of this process."""

    def close(self) -> None:
        """Let go of files; what was kept stays for the next life of the node."""
        ...

    def discard(self) -> None:
        """The answer is stored: what the answer does not need may go."""
        ...


class Work(Protocol):
    """One command in one sandbox: what to run, and what its end means to whoever asked."""

    @property
    def image(self) -> str: ...

    def permit(self, policy: AdmissionPolicy) -> None:
        """Raise `PolicyDeniedError` where the node's policy, the one that the image is admitted by, forbids what is
        asked for beside the image. Before `spec`."""
        ...

    def spec(self, sandbox_id: str, image: AdmittedImage) -> SandboxSpec: ...

    def output(self, sandbox_id: str) -> Output: ...

    async def command(self, driver: Driver, handle: Handle) -> Command: ...

    def began(self, handle: Handle) -> None:
        """Its command is about to be sent, or was sent by an earlier life of this node."""
        ...

    def finished(self, outcome: Outcome, output: Output, evidence: Mapping[str, Any]) -> Ended:
        """The supervisor has told how it ended."""
        ...

    def lost(self, error: SandboxLostError, output: Output, evidence: Mapping[str, Any]) -> Ended:
        """Nobody can know how it ended."""
        ...

    def not_started(self, error: FumehoodError, since: dt.datetime, evidence: Mapping[str, Any]) -> Ended:
        """There never was a sandbox for it."""
        ...
