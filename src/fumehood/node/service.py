"""What a door needs from a node, and nothing more: the doors and the node meet here.

The HTTP door is tested against a scripted double of this protocol, the node without any door.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fumehood.wire.worker_api import RunJobRequest, RunJobResponse


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """A job's end, with what the door tells in headers."""

    response: RunJobResponse
    effective_timeout_seconds: int
    """After the node's default and maximum were applied."""
    exit_reason: str | None = None
    """`oom`, `node_lost` …; None where status and exit code say it all."""
    replayed: bool = False
    """This call ran nothing: it joined a running job or found the stored result."""
    receipt_key: str | None = None
    """The id of the key that the receipt is signed with; None: it has none."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a container can really be run here, now."""

    ready: bool
    reason: str = ""
    """Why not, or what to look at all the same; shown to anybody who asks, so no secret and no path of the host."""


class JobService(Protocol):
    """A node, seen from its doors."""

    async def run_job(self, request: RunJobRequest, body_sha256: str) -> JobAnswer:
        """Run a job to its end, join it, or replay its result.

        Cancelling the call never cancels the job: its result is kept for whoever asks again. Raises
        `ConflictError` (same id, other body), `OverloadedError` and `DrainingError` (nothing was run).
        """
        ...

    async def receipt(self, job_id: str) -> bytes:
        """The signed claim of how a job ended, as JSON. `NotFoundError` where there is none, or none yet."""
        ...

    def readiness(self) -> Readiness:
        """The last thing known, without waiting."""
        ...
