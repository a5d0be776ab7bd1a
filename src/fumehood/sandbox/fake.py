"""The in-memory driver: the driver contract without an engine, for tests of everything above it.

It is held to the same conformance suite as the real drivers. The `FakeEngine` is the machine: it outlives a
`FakeDriver`, so that a test can throw the driver away, as a crash would, and attach with another one. Programs are
a few words of its own (`PROGRAMS`), not shell: what they do is what a suite needs to tell right from wrong.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import hashlib
import os
import signal as signals
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fumehood.errors import (
    CommandRefusedError,
    FileOperationError,
    SandboxLostError,
    SandboxNameTakenError,
    SandboxNotFoundError,
    WardenProtocolError,
)
from fumehood.sandbox.driver import (
    Capabilities,
    FileInfo,
    FileKind,
    Files,
    Handle,
    Inspection,
    Isolation,
    Phase,
    RuntimeReport,
    Sink,
    State,
)
from fumehood.sandbox.phases import Phases
from fumehood.sandbox.spec import (
    SANDBOX_USER,
    WARDEN_UID,
    Command,
    End,
    ImageCommand,
    Outcome,
    SandboxSpec,
    Stage,
    StreamEnd,
    Usage,
    User,
)

RUNTIME = "fake"
PIECE = 32 * 1024


@dataclass(slots=True)
class _Job:
    """A command inside a fake sandbox, with all it ever wrote."""

    command: Command
    output: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    news: asyncio.Event = field(default_factory=asyncio.Event)
    started: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    outcome: Outcome | None = None
    settled: bool = False
    task: asyncio.Task[None] | None = None
    traps: dict[int, int | None] = field(default_factory=dict)
    """What the program does about a signal: exit with this code, or with `None` nothing at all."""
    left: set[str] = field(default_factory=set)
    """What programs of the same sandbox left behind."""

    def signal(self, number: int) -> None:
        if self.task is None or self.outcome is not None:
            return
        if number == signals.SIGKILL or number not in self.traps:
            self.end(End.SIGNALED, signal=number, killed_by_owner=True)
        elif (code := self.traps[number]) is not None:
            self.end(End.EXITED, exit_code=code)
        else:
            return
        self.task.cancel()

    def write(self, stream: int, data: bytes) -> None:
        self.output[stream] += data
        self.news.set()

    def end(self, end: End, **facts: int | Stage | bool) -> None:
        if self.outcome is not None:
            return
        if self.command.sweep:
            self.left.clear()
        self.outcome = Outcome(
            end,
            started_at=self.started,
            ended_at=dt.datetime.now(dt.UTC),
            stdout=_stream_end(self.output[1]),
            stderr=_stream_end(self.output[2]),
            usage=Usage(0, 0, 0),
            **facts,  # type: ignore[arg-type]
        )
        self.news.set()


def _stream_end(data: bytearray) -> StreamEnd:
    return StreamEnd(len(data), hashlib.sha256(data).hexdigest())


@dataclass(slots=True)
class _Box:
    handle: Handle
    spec: SandboxSpec
    state: State = State.CREATED
    exit_code: int | None = None
    jobs: dict[int, _Job] = field(default_factory=dict)
    phases: Phases = field(default_factory=Phases)
    left: set[str] = field(default_factory=set)
    files: dict[tuple[str, ...], bytes | None] = field(default_factory=lambda: {(): None})
    modes: dict[tuple[str, ...], int] = field(default_factory=dict)


class FakeEngine:
    """A machine with sandboxes on it."""

    def __init__(self) -> None:
        self.boxes: dict[str, _Box] = {}
        self.image_commands: dict[str, ImageCommand] = {}
        """What images declare, by their pinned reference; those that are not here declare nothing."""
        self._count = 0

    def make(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Handle:
        if spec.name is not None and any(box.spec.name == spec.name for box in self.boxes.values()):
            raise SandboxNameTakenError(f"another sandbox is named {spec.name}")
        self._count += 1
        handle = Handle(spec.sandbox_id, f"fake-{self._count}", labels)
        self.boxes[handle.engine_id] = _Box(handle, spec)
        return handle

    def box(self, handle: Handle) -> _Box:
        box = self.boxes.get(handle.engine_id)
        if box is None:
            raise SandboxNotFoundError("the engine knows no such sandbox")
        return box

    def end(self, handle: Handle, exit_code: int = 137) -> None:
        """The sandbox ends without its supervisor's word, as when the machine kills it."""
        box = self.boxes.get(handle.engine_id)
        if box is None or box.state is not State.RUNNING:
            return
        box.state, box.exit_code = State.ENDED, exit_code
        for job in box.jobs.values():
            if job.task is not None:
                job.task.cancel()
            job.news.set()
        box.phases.end_all()


# --- programs ----------------------------------------------------------------------------------------------


async def _echo(job: _Job, *words: str) -> int:
    job.write(1, (" ".join(words) + "\n").encode())
    return 0


async def _both(job: _Job, out: str, err: str) -> int:
    job.write(1, out.encode())
    job.write(2, err.encode())
    return 0


async def _exit(job: _Job, code: str) -> int:
    return int(code)


async def _sleep(job: _Job, seconds: str) -> int:
    job.write(1, b"begun\n")
    await asyncio.sleep(float(seconds))
    return 0


async def _flood(job: _Job, size: str) -> int:
    left = int(size)
    while left > 0:
        job.write(1, b"x" * min(PIECE, left))
        left -= PIECE
        await asyncio.sleep(0)
    return 0


async def _ticks(job: _Job, count: str, seconds: str) -> int:
    for number in range(int(count)):
        job.write(1, f"tick {number}\n".encode())
        await asyncio.sleep(float(seconds))
    return 0


async def _cat(job: _Job) -> int:
    job.write(1, job.command.stdin)
    return 0


async def _env(job: _Job) -> int:
    job.write(1, "".join(f"{name}={value}\n" for name, value in job.command.env.items()).encode())
    return 0


async def _whoami(job: _Job) -> int:
    user = job.command.user or SANDBOX_USER
    job.write(1, f"{user.uid}:{user.gid}\n".encode())
    return 0


async def _raise(job: _Job, number: str) -> int:
    return -int(number)


async def _hog(job: _Job) -> int:
    job.end(End.OOM, exit_code=137)
    return 0


async def _obeys(job: _Job, code: str) -> int:
    job.traps[signals.SIGTERM] = int(code)
    return await _sleep(job, "60")


async def _ignores(job: _Job) -> int:
    job.traps[signals.SIGTERM] = None
    return await _sleep(job, "60")


async def _leaves(job: _Job, mark: str) -> int:
    job.left.add(mark)
    return await _sleep(job, "60")


async def _left(job: _Job, mark: str) -> int:
    job.write(1, b"alive\n" if mark in job.left else b"gone\n")
    return 0


PROGRAMS: Mapping[str, Callable[..., Awaitable[int]]] = {
    "echo": _echo,
    "both": _both,
    "exit": _exit,
    "sleep": _sleep,
    "flood": _flood,
    "ticks": _ticks,
    "cat": _cat,
    "env": _env,
    "whoami": _whoami,
    "raise": _raise,
    "hog": _hog,
    "obeys": _obeys,
    "ignores": _ignores,
    "leaves": _leaves,
    "left": _left,
}


async def _execute(job: _Job) -> None:
    name, *words = job.command.argv
    program = PROGRAMS.get(name)
    if job.command.user is not None and WARDEN_UID in (job.command.user.uid, job.command.user.gid):
        job.end(End.NOT_STARTED, errno=errno.EPERM, stage=Stage.USER)
        return
    if program is None:
        job.end(End.NOT_STARTED, errno=errno.ENOENT, stage=Stage.EXEC)
        return
    seconds = job.command.timeout_ms / 1000 or None
    try:
        async with asyncio.timeout(seconds):
            code = await program(job, *words)
    except TimeoutError:
        job.end(End.TIMED_OUT)
    else:
        job.end(End.EXITED, exit_code=code) if code >= 0 else job.end(End.SIGNALED, signal=-code)


# --- the driver --------------------------------------------------------------------------------------------


class FakeDriver:
    """Implements `fumehood.sandbox.driver.Driver` over a `FakeEngine`."""

    def __init__(self, engine: FakeEngine, *, node_id: str = "fake-node") -> None:
        self._engine = engine
        self._node = {"fumehood.node": node_id}

    async def capabilities(self) -> Capabilities:
        return Capabilities("fake", "1", [RuntimeReport(RUNTIME, usable=True, root_allowed=True)])

    async def prepare(self, spec: SandboxSpec) -> Handle:
        return self._engine.make(spec, {**spec.labels, **self._node, "fumehood.sandbox": spec.sandbox_id})

    async def start(self, handle: Handle) -> None:
        self._engine.box(handle).state = State.RUNNING

    async def image_command(self, handle: Handle) -> ImageCommand:
        return self._engine.image_commands.get(self._engine.box(handle).spec.image.pinned, ImageCommand())

    async def attach(self, handle: Handle) -> None:
        if self._engine.box(handle).state is not State.RUNNING:
            raise SandboxLostError("the sandbox does not run")

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        box = self._engine.box(handle)
        job = box.jobs.get(command_id)
        if job is None:
            job = self._begin(box, command, command_id)
        elif job.settled:
            raise WardenProtocolError(f"the result of command {command_id} was taken before")
        sent = {1: 0, 2: 0}
        while True:
            job.news.clear()
            for stream, data in job.output.items():
                if len(data) > sent[stream]:
                    sink.write(stream, sent[stream], bytes(data[sent[stream] :]))
                    sent[stream] = len(data)
            if job.outcome is not None:
                box.phases.ended(command_id)
                return job.outcome
            if box.state is not State.RUNNING:
                raise SandboxLostError(f"the sandbox ended with {box.exit_code}")
            await job.news.wait()

    def _begin(self, box: _Box, command: Command, command_id: int) -> _Job:
        if box.state is not State.RUNNING:
            raise SandboxLostError("the sandbox does not run")
        if box.jobs and command_id <= max(box.jobs):
            raise CommandRefusedError(f"command {command_id} is not above the highest one started")
        job = box.jobs[command_id] = _Job(command, left=box.left)
        job.task = asyncio.create_task(_execute(job))
        box.phases.sent(command_id)
        return job

    async def settle(self, handle: Handle, command_id: int) -> None:
        self._engine.box(handle).jobs[command_id].settled = True

    async def signal(self, handle: Handle, command_id: int, signal: int, *, everything: bool = False) -> None:
        box = self._engine.box(handle)
        if everything and signal == signals.SIGKILL:
            box.left.clear()
        for number, job in box.jobs.items():
            if everything or number == command_id:
                job.signal(signal)

    async def reached(self, handle: Handle, command_id: int, phase: Phase) -> None:
        await self._engine.box(handle).phases.reached(command_id, phase)

    def traffic(self, handle: Handle) -> Mapping[str, object] | None:
        return None  # there is no network in here

    async def inspect(self, handle: Handle) -> Inspection:
        box = self._engine.boxes.get(handle.engine_id)
        if box is None:
            return Inspection(State.GONE)
        return Inspection(box.state, box.exit_code, isolation=_isolation(box.spec))

    def files(self, handle: Handle, *, root: str, user: User | None = None) -> Files:
        return _FakeFiles(self._engine.box(handle))

    async def kill(self, handle: Handle) -> None:
        self._engine.end(handle)

    async def destroy(self, handle: Handle) -> None:
        self._engine.end(handle)
        self._engine.boxes.pop(handle.engine_id, None)

    async def list(self, labels: Mapping[str, str]) -> list[Handle]:
        wanted = {**labels, **self._node}.items()
        return [box.handle for box in self._engine.boxes.values() if wanted <= box.handle.labels.items()]

    async def close(self) -> None:
        """Nothing to let go of: the machine keeps the sandboxes."""


def _isolation(spec: SandboxSpec) -> Isolation:
    return Isolation(
        runtime=RUNTIME,
        engine_image_id=spec.image.digest,
        network=spec.network.value,
        memory_bytes=spec.limits.memory_bytes,
        swap_bytes=0,
        cpu_millis=spec.limits.cpu_millis,
        pids=spec.limits.pids,
        read_only_root=spec.read_only_root,
        capabilities=(),
        no_new_privileges=True,
        seccomp=RUNTIME,
    )


class _FakeFiles:
    """A tree of names beneath one root; `None` is a folder."""

    def __init__(self, box: _Box) -> None:
        self._box = box
        self._tree = box.files

    async def read(self, path: str, *, limit: int) -> bytes:
        data = self._tree.get(self._existing(path))
        if data is None:
            raise _error(errno.EISDIR)
        if len(data) > limit:
            raise _error(errno.EFBIG)
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, parents: bool = False) -> None:
        key = _key(path)
        self._parent(key, parents)
        self._tree[key] = data
        self._box.modes[key] = mode

    async def list(self, path: str) -> list[FileInfo]:
        key = self._existing(path)
        if self._tree[key] is not None:
            raise _error(errno.ENOTDIR)
        return [self._info(child) for child in self._tree if child and child[:-1] == key]

    async def stat(self, path: str) -> FileInfo:
        return self._info(self._existing(path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        key = self._existing(path)
        beneath = [other for other in self._tree if other[: len(key)] == key]
        if len(beneath) > 1 and not recursive:
            raise _error(errno.ENOTEMPTY)
        for other in beneath:
            del self._tree[other]

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        key = _key(path)
        if key in self._tree and not parents:
            raise _error(errno.EEXIST)
        self._parent(key, parents)
        self._tree[key] = None
        self._box.modes[key] = mode

    def _existing(self, path: str) -> tuple[str, ...]:
        key = _key(path)
        if key not in self._tree:
            raise _error(errno.ENOENT)
        return key

    def _parent(self, key: tuple[str, ...], make: bool) -> None:
        for depth in range(1, len(key)):
            if key[:depth] not in self._tree:
                if not make:
                    raise _error(errno.ENOENT)
                self._tree[key[:depth]] = None

    def _info(self, key: tuple[str, ...]) -> FileInfo:
        data = self._tree[key]
        kind = FileKind.FOLDER if data is None else FileKind.FILE
        mode = self._box.modes.get(key, 0o755)
        name = key[-1] if key else "."
        return FileInfo(name, kind, mode, SANDBOX_USER.uid, SANDBOX_USER.gid, len(data or b""), 0)


def _key(path: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise _error(errno.EINVAL)
    return tuple(parts)


def _error(number: int) -> FileOperationError:
    return FileOperationError(os.strerror(number), errno=number)
