"""What came of some Python that a worker ran: plain values, the same for both flavours of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fumehood.errors import CommandFailedError
from fumehood.sdk import problems
from fumehood.sdk.run_values import Failure
from fumehood.wire.console.codes import Reason

ENDED = frozenset({"succeeded", "failed", "timed_out", "cancelled"})
IMAGE = (
    "it runs in the worker's own image, python:slim unless WORKER_PYTHON_EXEC_DOCKER_IMAGE is set where the worker is "
    "started: where that cannot be had, set another one there, or choose one here with Sandbox.create(IMAGE)"
)

_OF_ITS_IMAGE = (Reason.IMAGE_UNAVAILABLE, Reason.POLICY_DENIED, Reason.EXECUTION_FAILED)


@dataclass(frozen=True, slots=True)
class PythonEnd:
    """How it ended, and what it printed. `PythonResult` has its receipt, too."""

    command_id: str
    status: str
    """`succeeded` (it ran, whatever its exit code), `failed`, `timed_out` or `cancelled`."""
    stdout: str
    stderr: str
    exit_code: int | None
    error: Failure | None
    """Why there is no exit code."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    said: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """All that the server says of it."""

    @property
    def ok(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.status == "succeeded" and self.exit_code == 0

    def check(self) -> Self:
        """Itself if it is `ok`; else `CommandFailedError`, which says how it ended."""
        if self.ok:
            return self
        if self.error is not None:
            raise CommandFailedError(self.error.code, problems.plain(self.error.message), result=self).advise(
                IMAGE if self.error.code in _OF_ITS_IMAGE else None
            )
        last = (self.stderr.strip().splitlines() or [""])[-1]
        raise CommandFailedError(
            "exited", f"it exited with {self.exit_code}: {problems.plain(last)}", result=self
        ).advise("what it printed says why: `result.stderr`")


def parts_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `PythonEnd`, of a command as a server says it."""
    result = said.get("result") or {}
    return {
        "command_id": str(said["command_id"]),
        "status": str(said["status"]),
        "stdout": str(result.get("output", "")),
        "stderr": str(result.get("stderr", "")),
        "exit_code": result.get("exit_code"),
        "error": Failure.of(said.get("error")),
        "stdout_truncated": bool(result.get("output_truncated", False)),
        "stderr_truncated": bool(result.get("stderr_truncated", False)),
        "said": said,
    }
