"""A sandbox as a task: what a node is handed, and what it answers. Both ends are ours; people see parts of both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from fumehood.wire.base import ENV_NAME, NO_NUL, UtcTime, WireModel

SANDBOX_TASK = "fumehood.sandbox"
"""The task type that nodes take."""

POLICY = "policy"
"""What a node says of itself in the directory of workers: the name of the policy that it decides by."""
POLICY_SHA256 = "policy_sha256"
"""And the hash of its file; without one it is the development policy."""

RECEIPT_KEY = "receipt_key"
"""And the public half of the key that its receipts are signed with, in hex: for people who keep the list of keys."""
RECEIPT_KEY_LABEL = "fumehood.receipt_key"
"""The same, as a label of a worker that dials in."""

RUN_WORKFLOW = "fumehood-run"
"""The name under which single runs of the Runner API are kept; nobody may give it to a workflow."""
RUN_STEP = "run"
"""The only step of such a run."""

POLICY_DENIED = "policy_denied"
"""The code of a step that a node's policy forbids, whatever its image."""


class NetworkProfile(StrEnum):
    """Which network a sandbox sees."""

    DENY_ALL = "deny-all"
    """No interface but its own loopback."""
    DNS_ONLY = "dns-only"
    """Port 53 of the node's resolver, and nothing else."""
    LOCALHOST = "localhost"
    """Its own loopback, as with `deny-all`; the name by which job types ask for it."""
    RESTRICTED = "restricted"
    """The names that the operator allowed, through the node's proxy."""
    FULL = "full"
    """Every public address; only where the policy allows it."""


class RunReason(StrEnum):
    """Why a run in a sandbox ended as it did."""

    EXIT = "exit"
    OOM = "oom"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    IMAGE_ERROR = "image_error"
    """There was no image to run: denied, absent, or one that cannot be started."""
    NODE_LOST = "node_lost"
    """Whoever ran it went away; nothing is known of how it ended."""
    INTERNAL = "internal"


class RunEnd(StrEnum):
    """How a run in a sandbox ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"


Argument = Annotated[str, Field(pattern=NO_NUL, max_length=131_071)]
Arguments = Annotated[tuple[Argument, ...], Field(max_length=4096)]
"""As many as the kernel bears is decided by it; this keeps a request within what anybody means."""
EnvName = Annotated[str, Field(pattern=ENV_NAME, max_length=4096)]
Env = Annotated[dict[EnvName, Argument], Field(max_length=1024)]


class SandboxTask(WireModel):
    """What a node is to run. What is left out is the node's own default."""

    model_config = ConfigDict(extra="forbid", strict=False)

    image: Annotated[str, Field(min_length=1, max_length=4096)]
    command: Arguments | None = None
    """Replaces the image's entrypoint, and its command too."""
    args: Arguments | None = None
    """Replaces the image's command."""
    env: Env = Field(default_factory=dict)
    timeout_ms: Annotated[int, Field(ge=1, le=86_400_000)] | None = None
    cpu_millis: Annotated[int, Field(ge=10, le=1_024_000)] | None = None
    memory_mib: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    network: NetworkProfile = NetworkProfile.DENY_ALL
    must_succeed: bool = False
    """Any end but exit 0 fails the step; without it every end that is known completes it, and the report tells how."""


class Cut(WireModel):
    """Whether anything of a stream was left out."""

    stdout: bool = False
    stderr: bool = False


class StreamReport(WireModel):
    """The whole of one stream, whatever was kept of it. Without a number nobody could count it."""

    total_bytes: int | None = None
    sha256: str | None = None


class SandboxReport(WireModel):
    """How it ended, as the node that ran it knows. Left out is what it does not know."""

    model_config = ConfigDict(extra="ignore", strict=False)

    status: RunEnd
    reason: RunReason
    detail: str = ""
    """For people."""
    exit_code: int | None = None
    signal: int | None = None
    started_at: UtcTime | None = None
    """When its command was sent."""
    never_ran: bool = False
    denied: str | None = None
    """Why the node's policy does not let it run like this, whatever its image: `network_not_allowed` and the like."""
    may_be_tried_again: bool = False
    """What stood in its way may pass: a registry that is away, a node that fell silent."""
    finished_at: UtcTime | None = None
    node: str = ""
    container: str = ""
    stdout: str = ""
    stderr: str = ""
    """The first 64 KiB of each stream, for expressions; all that was kept is behind `logs`."""
    stderr_tail: str | None = None
    """The last lines of stderr, at most 4 KiB, if the command did not succeed. The failure of a step has these instead
    of `stdout` and `stderr`."""
    truncated: Cut = Field(default_factory=Cut)
    """Of what is behind `logs`."""
    streams: dict[str, StreamReport] = Field(default_factory=dict)
    logs: str | None = None
    """The hash of a blob that holds head and tail of each stream (`sandbox/kept_logs.py`)."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    """`admission`, `isolation` (as observed) and `network`."""
    receipt: dict[str, Any] | None = None
    """The node's signed claim of all this: a DSSE envelope."""

    @classmethod
    def read(cls, said: Any) -> SandboxReport | None:
        """What a step said, if it is a report: somebody who completed it by hand may have said anything."""
        if not isinstance(said, Mapping):
            return None
        try:
            return cls.model_validate(dict(said))
        except ValidationError:
            return None
