"""What a sandbox is asked to be, what is run in it, and how that ended. Plain values, no I/O."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fumehood.errors import InvalidRequestError, NoCommandError
from fumehood.images.admission import AdmittedImage
from fumehood.wire.sandbox import NetworkProfile

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
    DNS_ONLY = "dns-only"
    """Names can be looked up at the node's resolver; nothing can be reached."""
    RESTRICTED = "restricted"
    """The names that the operator allows, through the node's proxy."""
    FULL = "full"
    """Every public address, and no other."""


def network_of(profile: NetworkProfile) -> Network:
    """What a profile asks of a driver. Loopback is there in any case, so two of them come to the same."""
    if profile in (NetworkProfile.DENY_ALL, NetworkProfile.LOCALHOST):
        return Network.NONE
    return Network(profile.value)


_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}")
"""The rule of Docker Engine, with a bound."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything a driver needs to make one sandbox."""

    sandbox_id: str
    image: AdmittedImage
    name: str | None = None
    """What people see at the engine, one of its kind there. `None`: made from the sandbox's id."""
    limits: Limits = field(default_factory=Limits)
    user: User | None = SANDBOX_USER
    """Owner of the workspace, and the user of commands that name none. `None`: whom the image names, root included."""
    network: Network = Network.NONE
    runtime: str | None = None
    """An engine runtime by name; `None` lets the driver choose the strongest one that it proved."""
    read_only_root: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    waiting: str | None = None
    """A program that may wait in it, started before it is asked for, where a pool has one so: see `pool.waiting`."""

    def __post_init__(self) -> None:
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidRequestError(
                f"{self.name[:128]!r} cannot name a sandbox: 2 to 128 of A-Z, a-z, 0-9, '_', '.' and '-', "
                "the first a letter or digit"
            )


@dataclass(frozen=True, slots=True)
class ImageCommand:
    """What an image declares to be run."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


def argv_of(
    image: ImageCommand, command: tuple[str, ...] | None = None, args: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """The program to run, by the rule of Kubernetes.

    `command` replaces the entrypoint, and the image's own arguments with it; `args` replaces the image's arguments
    alone. An empty list is none, there as here.
    """
    argv = (command + (args or ())) if command else (image.entrypoint + (args or image.cmd))
    if not argv:
        raise NoCommandError("there is no program to run: the image names none, so the request must (`command`)")
    return argv


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
    open_stdin: bool = False
    """Its input goes on behind `stdin`, see `Driver.feed`, and is at its end only when `Driver.end_input` says so."""
    sweep: bool = True
    """Kill whatever the program left behind when it ends, and everything on a timeout."""
    pty: tuple[int, int] | None = None
    """Rows and columns of a terminal; `None`: pipes."""
    waits: bool = False
    """It is started as any other, but its time counts only from `Driver.begin` on, and until then it has no deadline,
    whatever `timeout_ms` says."""


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
