"""What a sandbox is asked to be, what is run in it, and how that ended. Plain values, no I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fumehood.images.admission import AdmittedImage

KIB = 1024
MIB = 1024 * KIB

WARDEN_UID = 65511
"""Reserved for the warden inside every sandbox; no command ever runs under it."""

WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class User:
    """Under whom a command runs inside the sandbox."""

    uid: int
    gid: int

    @property
    def is_root(self) -> bool:
        return self.uid == 0


SANDBOX_USER = User(65532, 65532)
"""The default: a user that owns nothing but the workspace, known as `nonroot` in distroless images."""

ROOT = User(0, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one sandbox. Swap is always off; tmpfs counts as memory."""

    memory_bytes: int = 512 * MIB
    cpu_millis: int = 1000
    pids: int = 256
    open_files: int = 1024
    file_bytes: int = 256 * MIB
    """The largest single file that a program may write (`RLIMIT_FSIZE`)."""
    workspace_bytes: int = 256 * MIB
    workspace_inodes: int = 65_536
    tmp_bytes: int = 64 * MIB
    shm_bytes: int = 16 * MIB


class Network(StrEnum):
    """Which network a sandbox sees."""

    NONE = "none"
    """No interface but loopback."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything a driver needs to make one sandbox."""

    sandbox_id: str
    image: AdmittedImage
    limits: Limits = field(default_factory=Limits)
    user: User | None = SANDBOX_USER
    """Owner of the workspace, and the user of commands that name none. `None`: whom the image names, root included."""
    network: Network = Network.NONE
    runtime: str | None = None
    """An engine runtime by name; `None` lets the driver choose the strongest one that it proved."""
    read_only_root: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run. The environment is complete: nothing is added to it but what the image declares."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    user: User | None = None
    timeout_ms: int = 0
    """0: no deadline."""
    stdin: bytes = b""
    sweep: bool = True
    """Kill whatever the program left behind when it ends, and everything on a timeout."""
    pty: tuple[int, int] | None = None
    """Rows and columns of a terminal; `None`: pipes."""


class End(StrEnum):
    """How a command ended. There is no state for "unknown": that is `SANDBOX_LOST`, and says so."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OOM = "oom"
    NOT_STARTED = "not_started"
    SANDBOX_LOST = "sandbox_lost"


class Stage(StrEnum):
    """Where a command that never started failed."""

    FORK = "fork"
    USER = "user"
    DIRECTORY = "directory"
    EXEC = "exec"
    PTY = "pty"


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The whole of one output stream, whatever part of it was kept."""

    total_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the leader and the children it waited for used."""

    user_us: int
    system_us: int
    max_rss_kib: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The supervisor's word on how a command ended."""

    end: End
    started_at: dt.datetime
    ended_at: dt.datetime
    exit_code: int | None = None
    signal: int | None = None
    errno: int | None = None
    stage: Stage | None = None
    killed_by_owner: bool = False
    duration_us: int = 0
    stdout: StreamEnd | None = None
    stderr: StreamEnd | None = None
    usage: Usage | None = None
