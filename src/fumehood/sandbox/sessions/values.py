"""What a session is, what runs in it, and how that stands. Plain values, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.sandbox.sessions.leases import Moment
from fumehood.sandbox.spec import WORKSPACE, Limits, Outcome
from fumehood.wire.sandbox import NetworkProfile


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Of a clock that nobody sets."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class SessionName:
    """Sessions are named within their owner: nobody else can even ask whether there is one."""

    owner: str
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionWish:
    """A session to make."""

    name: SessionName
    image: str
    lease_ms: int
    """From now."""
    network: NetworkProfile = NetworkProfile.DENY_ALL
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """Of every command in it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of its container."""
    once: bool = False
    """For one command, and not listed: it goes with it."""
    made_by: str = ""
    """Which command asked for it, and so knows, also when it is asked again, that it was made for it."""
    waiting: str | None = None
    """A program that may wait in its sandbox for the one command: see `SandboxSpec`."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session that is there."""

    name: SessionName
    sandbox_id: str
    image: str
    image_digest: str
    created_ms: int
    lease_expires_ms: int
    network: NetworkProfile
    runtime: str = ""
    running: int = 0
    """Commands."""
    made_by: str = ""
    """As it was wished."""
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """`admission`: why its image may run; `isolation`: what was observed on its sandbox."""


@dataclass(frozen=True, slots=True)
class ProcessWish:
    """A command to run in a session."""

    command_id: str
    """Chosen by whoever asks, one of its kind on this machine: the same again is the same command."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    timeout_ms: int = 0
    terminal: tuple[int, int] | None = None
    """Rows and columns."""
    stdin: bool = False
    """Open until `end_input`; else at its end from the beginning."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """How a command stands."""

    command_id: str
    name: SessionName
    argv: tuple[str, ...]
    terminal: bool
    started_ms: int
    stdin_bytes: int
    stdout_bytes: int
    stderr_bytes: int
    outcome: Outcome | None = None
    """None while it runs. Where its sandbox was lost, that is an outcome, too (`End.SANDBOX_LOST`)."""
    detail: str = ""
    receipt: str = ""
    """What was signed about its end; empty while it runs, and where nobody signs."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a stream, and where they begin in it."""

    stream: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Captured:
    """The first bytes of what a command wrote, and how much it was in all."""

    stdout: bytes
    stderr: bytes
    stdout_total: int
    stderr_total: int
    gone: bool = False
    """Some of these first bytes are not there any more: what is here must not be taken for what it wrote."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Bounds of the sessions on one machine, and its clock."""

    most_sessions: int = 64
    most_running: int = 24
    """Commands at once in one session. Its supervisor takes 32; the rest is left for files."""
    remembered: int = 256
    """Commands of one session that have ended; those not used for longest are forgotten first."""
    most_known: int = 8192
    """Commands of all sessions, running and ended."""
    output_limit: int = 1024 * 1024
    """The first bytes of each stream that are kept."""
    kept_output: int = 256 * 1024 * 1024
    """Bytes of output of all ended commands of one session; how a command ended stays known."""
    most_output: int = 8 * 1024 * 1024 * 1024
    """Bytes of output on disk: what ended commands left, and what the running ones may come to."""
    disk_reserve: int = 256 * 1024 * 1024
    """Bytes of the disk that are left free."""
    kept_seconds: float = 600.0
    """An ended command stays known so long after its last use: who asked for it may have lost its answer."""
    pressed_seconds: float = 60.0
    """The same, and its output, where there is too much of it all."""
    clock: Callable[[], int] = now_ms
    """Milliseconds of the wall clock: leases are told to others."""
    steady: Callable[[], int] = steady_ms
    """Milliseconds of a clock that nobody sets: leases are judged by it."""
    janitor_seconds: float = 1.0

    def now(self) -> Moment:
        return Moment(self.clock(), self.steady())
