"""The machine of the in-memory driver: sandboxes, and the commands in them."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import signal as signals
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fumehood.errors import SandboxNameTakenError, SandboxNotFoundError
from fumehood.sandbox.driver import Handle, State
from fumehood.sandbox.phases import Phases
from fumehood.sandbox.spec import Command, End, ImageCommand, Outcome, SandboxSpec, Stage, StreamEnd, Usage

PIECE = 32 * 1024
WINDOW = 512 * 1024
"""Output that nobody took yet: beyond it a program that floods waits."""
INPUT_WINDOW = 256 * 1024


@dataclass(slots=True)
class Job:
    """A command inside a fake sandbox, with all it ever wrote."""

    command: Command
    output: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    news: asyncio.Event = field(default_factory=asyncio.Event)
    started: dt.datetime = field(init=False)
    began: float = field(init=False)
    """The same moment by the clock that only goes forward."""
    deadline: float | None = None
    """By the loop's clock."""
    waits: bool = False
    watch: asyncio.Timeout | None = None
    """Over the program, while it runs."""
    outcome: Outcome | None = None
    settled: bool = False
    task: asyncio.Task[None] | None = None
    traps: dict[int, int | None] = field(default_factory=dict)
    """What the program does about a signal: exit with this code, or with `None` nothing at all."""
    left: set[str] = field(default_factory=set)
    """What programs of the same sandbox left behind."""
    taken: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Output was taken, input was given or read, the terminal has another size, or it is over."""
    input: bytearray = field(default_factory=bytearray)
    read: int = 0
    input_ended: bool = False
    waited_for: bool = False

    def __post_init__(self) -> None:
        self.input += self.command.stdin
        self.input_ended = not self.command.open_stdin
        self.waits = self.command.waits
        self._start_clock(0 if self.waits else self.command.timeout_ms)

    def begin(self, timeout_ms: int) -> None:
        if not self.waits or self.outcome is not None:
            return
        self.waits = False
        self._start_clock(timeout_ms)
        if self.watch is not None:
            self.watch.reschedule(self.deadline)

    def _start_clock(self, timeout_ms: int) -> None:
        self.started, self.began = dt.datetime.now(dt.UTC), time.monotonic()
        self.deadline = asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms else None

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.moved.clear()
            await self.moved.wait()

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
            duration_us=int((time.monotonic() - self.began) * 1_000_000),
            stdout=_stream_end(self.output[1]),
            stderr=_stream_end(self.output[2]),
            usage=Usage(0, 0, 0),
            **facts,  # type: ignore[arg-type]
        )
        self.news.set()
        self.moved.set()


def _stream_end(data: bytearray) -> StreamEnd:
    return StreamEnd(len(data), hashlib.sha256(data).hexdigest())


@dataclass(slots=True)
class Box:
    handle: Handle
    spec: SandboxSpec
    state: State = State.CREATED
    exit_code: int | None = None
    jobs: dict[int, Job] = field(default_factory=dict)
    highest: int = 0
    given: int = 0
    phases: Phases = field(default_factory=Phases)
    left: set[str] = field(default_factory=set)
    files: dict[tuple[str, ...], bytes | None] = field(
        default_factory=lambda: {(): None, ("workspace",): None, ("tmp",): None}
    )
    modes: dict[tuple[str, ...], int] = field(default_factory=dict)


class FakeEngine:
    """A machine with sandboxes on it."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.image_commands: dict[str, ImageCommand] = {}
        """What images declare, by their pinned reference; those that are not here declare nothing."""
        self._count = 0

    def make(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Handle:
        self._refuse_taken(spec.name)
        self._count += 1
        handle = Handle(spec.sandbox_id, f"fake-{self._count}", labels)
        self.boxes[handle.engine_id] = Box(handle, spec)
        return handle

    def rename(self, handle: Handle, name: str) -> None:
        box = self.box(handle)
        self._refuse_taken(name)
        box.spec = replace(box.spec, name=name)

    def _refuse_taken(self, name: str | None) -> None:
        if name is not None and any(box.spec.name == name for box in self.boxes.values()):
            raise SandboxNameTakenError(f"another sandbox is named {name}")

    def box(self, handle: Handle) -> Box:
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
            job.moved.set()
        box.phases.end_all()
