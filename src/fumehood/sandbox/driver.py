"""The driver contract: the few things that a container engine must do for us.

`fake.py` (in memory), `docker/` and later `kubernetes/` implement it, and one conformance suite
(`tests/conformance/`) holds all of them to the same behaviour. A driver never decides policy: it receives an
`AdmittedImage`, which only `fumehood.images` can make, and a spec, and reports what it *observed*.

Rules for every implementation:

- Every operation has a deadline of its own and raises `DeadlineExceededError` or `EngineUnavailableError`, never
  hangs. Cancelling a call leaves nothing that `list` and `destroy` cannot find and remove.
- Handles are recoverable: `list(labels)` after a restart returns equal handles, and `attach` goes on with a
  sandbox whose earlier owner died.
- `destroy`, `kill` and `stop` are idempotent: a sandbox that is gone already is success.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from fumehood.sandbox.spec import Command, ImageCommand, Outcome, SandboxSpec, User

FEED_SECONDS = 10.0
"""How long a piece of input waits for a program that does not read."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One sandbox of one driver: enough to find it again from another process."""

    sandbox_id: str
    engine_id: str
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)


class State(StrEnum):
    """What the engine says about a sandbox."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"


class Phase(StrEnum):
    """How far a command has come, as far as this process knows."""

    SENT = "sent"
    """From now on a signal reaches it."""
    ENDED = "ended"
    """Its outcome is known, or its sandbox is gone."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What was observed on a sandbox after it was made, as opposed to what was asked."""

    runtime: str
    engine_image_id: str
    """What the engine calls the image; the digest that was admitted is in the admission's evidence."""
    network: str
    memory_bytes: int
    swap_bytes: int
    cpu_millis: int
    pids: int
    read_only_root: bool
    capabilities: tuple[str, ...]
    no_new_privileges: bool
    seccomp: str
    """`fumehood` for our own profile, else what the engine reports."""
    network_name: str = ""
    """The engine's name of it; empty without a network."""
    network_address: str = ""
    """The sandbox's address in it."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The engine's view of a sandbox at one moment."""

    state: State
    exit_code: int | None = None
    oom_killed: bool = False
    isolation: Isolation | None = None


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """One runtime of an engine, and which doors of its sandboxes were proven shut by trying them."""

    name: str
    usable: bool
    root_allowed: bool
    """A root program inside could not reach the warden: only then may root run at all."""
    detail: str = ""
    failed: bool = False
    """It could not even be tried: that says nothing about its doors."""
    probe: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, object] = field(default_factory=dict)
    """What the kernel, not the engine's configuration, says is in force on a sandbox of this runtime."""
    networks: Mapping[str, str] = field(default_factory=dict)
    """For each network that can be asked for: why it cannot be had, or nothing when it can."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this driver can do here and now."""

    engine: str
    engine_version: str
    runtimes: Sequence[RuntimeReport] = ()
    warnings: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    """More about the engine, for people: storage, cgroups, architecture."""


class FileKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry as the sandbox's kernel reports it; links are never followed."""

    name: str
    kind: FileKind
    mode: int
    uid: int
    gid: int
    size: int
    modified_ms: int


class Sink(Protocol):
    """Takes output as it appears. When `write` has returned, the bytes count as safe and are acknowledged.

    After a restart pieces may come again: `offset` (in the whole stream) tells what is new.
    """

    def write(self, stream: int, offset: int, data: bytes) -> None: ...


@runtime_checkable
class PacedSink(Sink, Protocol):
    """A sink that says when it can take more.

    `room` is awaited before each piece. Until it returns nothing more of that command is taken, so that its program
    in the end blocks in `write`; other commands of the sandbox go on.
    """

    async def room(self) -> None: ...


class Files(Protocol):
    """Files beneath a root inside a sandbox, as a user of that sandbox. No link is followed, nothing escapes."""

    async def read(self, path: str, *, limit: int) -> bytes: ...

    async def read_piece(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        """At most `length` bytes from `offset` on, and how large the file is. Behind its end there is nothing."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None: ...

    async def write_stream(
        self, path: str, pieces: AsyncIterator[bytes], *, mode: int = 0o644, parents: bool = False
    ) -> None:
        """A file of any size, piece by piece. It takes its name at the end: what `pieces` raises leaves none."""
        ...

    async def list(self, path: str) -> list[FileInfo]: ...

    async def stat(self, path: str) -> FileInfo: ...

    async def remove(self, path: str, *, recursive: bool = False) -> None: ...

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None: ...


class Driver(Protocol):
    """See the module's docstring for the rules that the signatures cannot say."""

    async def capabilities(self) -> Capabilities:
        """Look, and try: which runtimes work, and which doors are shut."""
        ...

    async def prepare(self, spec: SandboxSpec) -> Handle:
        """Make a sandbox (fetching its image if need be) without running anything in it."""
        ...

    async def start(self, handle: Handle) -> None:
        """Start a prepared sandbox and become its warden's owner."""
        ...

    async def image_command(self, handle: Handle) -> ImageCommand:
        """What the image declares that this very sandbox was made from; see `spec.argv_of`."""
        ...

    async def attach(self, handle: Handle) -> None:
        """Become the owner of a running sandbox that another process, or an earlier life of this one, started."""
        ...

    async def rename(self, handle: Handle, name: str) -> None:
        """What people see at the engine from now on. A name that is taken is refused as `prepare` does."""
        ...

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        """Run a command to its end. With an id that this sandbox already knows: join it instead, run nothing twice.

        Ids come from `next_id`; a sandbox with one command may just as well call it 1. While nobody runs a command that
        was begun, what it says waits, and in the end the program with it.
        Raises `SandboxLostError` when the sandbox ended without the warden's word and no cause is known.
        """
        ...

    async def next_id(self, handle: Handle) -> int:
        """An id for a command that is about to be run, above all that this sandbox has seen and that were given out.

        Ids only ever grow: a command is refused (`CommandRefusedError`, and nothing ran) when another one with a higher
        id was started first. File operations have ids of their own, which do not get in the way.
        """
        ...

    async def settle(self, handle: Handle, command_id: int) -> None:
        """The outcome of this command is stored durably: the warden may forget it."""
        ...

    async def disown(self, handle: Handle, keep: Collection[int]) -> None:
        """Kill and forget all commands but these: nobody will ever join them, and what they say would wait for ever.

        For an owner that comes back; commands whose `run` is under way are kept in any case.
        """
        ...

    async def feed(
        self, handle: Handle, command_id: int, offset: int, data: bytes, *, seconds: float = FEED_SECONDS
    ) -> int:
        """Give a command with `open_stdin` more input; returns how much of it the sandbox has received in all.

        `offset` counts from the beginning of its input, `Command.stdin` included. What was received before is skipped,
        so that repeating is harmless; a gap, or input behind the end, is an `InvalidRequestError`. While the program
        does not read, waits at most `seconds`, and the answer then tells how far it came. For a command that has ended,
        the answer is what it had (0, once it was settled). A command that is about to be run is waited for.
        """
        ...

    async def end_input(self, handle: Handle, command_id: int) -> None:
        """That was all: the program reads an end of file (on a terminal: `^D`). May be repeated."""
        ...

    async def stdin_received(self, handle: Handle, command_id: int) -> int:
        """How much input of this command the sandbox has: the next `feed` goes on from there. 0 before its start."""
        ...

    async def resize(self, handle: Handle, command_id: int, rows: int, columns: int) -> None:
        """The terminal of a command has another size now. Nothing to do where it has none, or has ended."""
        ...

    async def begin(self, handle: Handle, command_id: int, timeout_ms: int) -> None:
        """The clock of a command that was started to wait starts now: its time, and its deadline.

        0: no deadline. Only the first one counts; for a command that has ended, or that was not started to wait,
        nothing happens. So whoever does not know whether it arrived says the same again, and a new owner does, too.
        A command that is about to be run is waited for.
        """
        ...

    async def signal(self, handle: Handle, command_id: int, signal: int, *, everything: bool = False) -> None:
        """Send a signal to a command's process group, or to everything in the sandbox but the warden."""
        ...

    async def reached(self, handle: Handle, command_id: int, phase: Phase) -> None:
        """Return when a command that this process runs, or is about to run, has come this far; at once if it has.

        The one wait without a deadline. A command whose `run` was given up has not ended: it may well go on in there.
        """
        ...

    async def inspect(self, handle: Handle) -> Inspection: ...

    def traffic(self, handle: Handle) -> Mapping[str, object] | None:
        """What the sandbox did on its network so far, as seen from outside: counts, and the last denials.

        `None` where it has no network, or is gone.
        """
        ...

    def files(self, handle: Handle, *, root: str, user: User | None = None) -> Files: ...

    async def kill(self, handle: Handle) -> None:
        """End everything in the sandbox at once; its container may remain until `destroy`."""
        ...

    async def destroy(self, handle: Handle) -> None:
        """Nothing of the sandbox is left when this returns."""
        ...

    async def list(self, labels: Mapping[str, str]) -> list[Handle]:
        """All sandboxes of this driver that bear these labels, in whatever state."""
        ...

    async def close(self) -> None:
        """Let go of all connections. Sandboxes stay as they are."""
        ...
