"""The in-memory driver: the driver contract without an engine, for tests of everything above it.

It is held to the same conformance suite as the real drivers. The `FakeEngine` is the machine: it outlives a
`FakeDriver`, so that a test can throw the driver away, as a crash would, and attach with another one. Programs are
a few words of its own (`PROGRAMS`), not shell: what they do is what a suite needs to tell right from wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
from collections.abc import Collection, Mapping
from dataclasses import replace

from fumehood.errors import (
    CommandRefusedError,
    DeadlineExceededError,
    InvalidRequestError,
    SandboxLostError,
    WardenProtocolError,
)
from fumehood.sandbox.driver import (
    FEED_SECONDS,
    Capabilities,
    Files,
    Handle,
    Inspection,
    Isolation,
    PacedSink,
    Phase,
    RuntimeReport,
    Sink,
    State,
)
from fumehood.sandbox.fake_files import FakeFiles
from fumehood.sandbox.fake_machine import INPUT_WINDOW, PIECE, Box, FakeEngine, Job
from fumehood.sandbox.fake_programs import PROGRAMS, execute
from fumehood.sandbox.spec import Command, ImageCommand, Outcome, SandboxSpec, User
from fumehood.sandbox.warden import ids

__all__ = ["PROGRAMS", "FakeDriver", "FakeEngine"]

RUNTIME = "fake"
MAX_SIZE = 65_535
START_SECONDS = 10.0


class FakeDriver:
    """Implements `fumehood.sandbox.driver.Driver` over a `FakeEngine`."""

    def __init__(self, engine: FakeEngine, *, node_id: str = "fake-node") -> None:
        self._engine = engine
        self._node = {"fumehood.node": node_id}

    async def capabilities(self) -> Capabilities:
        return Capabilities("fake", "1", [RuntimeReport(RUNTIME, usable=True, root_allowed=True)])

    async def ping(self) -> None:
        """It answers always."""

    async def check(self) -> None:
        """It can always run something."""

    async def prepare(self, spec: SandboxSpec) -> Handle:
        return self._engine.make(spec, {**spec.labels, **self._node, "fumehood.sandbox": spec.sandbox_id})

    async def start(self, handle: Handle) -> None:
        self._engine.box(handle).state = State.RUNNING

    async def image_command(self, handle: Handle) -> ImageCommand:
        return self._engine.image_commands.get(self._engine.box(handle).spec.image.pinned, ImageCommand())

    async def rename(self, handle: Handle, name: str) -> None:
        self._engine.rename(handle, name)

    async def attach(self, handle: Handle) -> None:
        if self._engine.box(handle).state is not State.RUNNING:
            raise SandboxLostError()

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        box = self._engine.box(handle)
        job = box.jobs.get(command_id)
        if job is None:
            job = self._begin(box, command, command_id)
        elif job.settled:
            raise WardenProtocolError(f"the result of command {command_id} was taken before")
        elif job.waited_for:
            raise CommandRefusedError(f"command {command_id} is waited for already")
        job.waited_for = True
        try:
            await _take_output(box, job, sink)
        finally:
            job.waited_for = False
        if job.outcome is None:
            raise SandboxLostError(f"the sandbox ended with {box.exit_code}")
        box.phases.ended(command_id)
        return job.outcome

    def _begin(self, box: Box, command: Command, command_id: int) -> Job:
        if ids.is_ours(command_id):
            raise InvalidRequestError(f"{command_id} is not an id for a command: `next_id` gives one")
        if box.state is not State.RUNNING:
            raise SandboxLostError()
        if command_id <= box.highest:
            raise CommandRefusedError(f"command {command_id} is not above the highest one started")
        box.highest = command_id
        job = box.jobs[command_id] = Job(command, left=box.left)
        job.task = asyncio.create_task(execute(job))
        box.phases.sent(command_id)
        return job

    async def next_id(self, handle: Handle) -> int:
        box = self._engine.box(handle)
        box.given = ids.caller_id(max(box.highest, box.given))
        return box.given

    async def settle(self, handle: Handle, command_id: int) -> None:
        job = self._engine.box(handle).jobs.get(command_id)
        if job is not None:
            job.settled = True

    async def disown(self, handle: Handle, keep: Collection[int]) -> None:
        for number, job in self._engine.box(handle).jobs.items():
            if number not in keep and not job.waited_for:
                job.signal(signals.SIGKILL)
                job.settled = True

    # --- input ---------------------------------------------------------------------------------------------

    async def feed(
        self, handle: Handle, command_id: int, offset: int, data: bytes, *, seconds: float = FEED_SECONDS
    ) -> int:
        if offset < 0:
            raise InvalidRequestError("the offset of input is not below 0")
        job = await self._job(handle, command_id)
        if job is None:
            return 0
        if job.outcome is None and not job.command.stdin and not job.command.open_stdin:
            raise InvalidRequestError("this command takes no input, or no more of it")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _send_input(job, offset, data)
        return len(job.input)

    async def end_input(self, handle: Handle, command_id: int) -> None:
        job = await self._job(handle, command_id)
        if job is not None and job.outcome is None:
            if not job.command.stdin and not job.command.open_stdin:
                raise InvalidRequestError("this command takes no input, or no more of it")
            job.input_ended = True
            job.moved.set()

    async def stdin_received(self, handle: Handle, command_id: int) -> int:
        box = self._engine.box(handle)
        if box.state is not State.RUNNING:
            raise SandboxLostError()
        job = box.jobs.get(command_id)
        return 0 if job is None or job.settled else len(job.input)

    async def resize(self, handle: Handle, command_id: int, rows: int, columns: int) -> None:
        if not (0 < rows <= MAX_SIZE and 0 < columns <= MAX_SIZE):
            raise InvalidRequestError(f"a terminal has 1 to {MAX_SIZE} rows and columns")
        job = await self._job(handle, command_id)
        if job is not None and job.command.pty is not None:
            job.command = replace(job.command, pty=(rows, columns))
            job.moved.set()

    async def begin(self, handle: Handle, command_id: int, timeout_ms: int) -> None:
        job = await self._job(handle, command_id)
        if job is not None:
            job.begin(timeout_ms)

    async def _job(self, handle: Handle, command_id: int) -> Job | None:
        """A command, as soon as it was started; `None` when it has ended and is forgotten."""
        box = self._engine.box(handle)
        if command_id > box.highest:
            try:
                await asyncio.wait_for(box.phases.reached(command_id, Phase.SENT), START_SECONDS)
            except TimeoutError:
                raise DeadlineExceededError("the sandbox did not answer in time") from None
        if box.state is not State.RUNNING:
            raise SandboxLostError()
        job = box.jobs.get(command_id)
        return None if job is None or job.settled else job

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
        return FakeFiles(self._engine.box(handle), root)

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


async def _take_output(box: Box, job: Job, sink: Sink) -> None:
    """Until the command or its sandbox has ended."""
    sent = {1: 0, 2: 0}
    while True:
        job.news.clear()
        for stream, data in job.output.items():
            while len(data) > sent[stream]:
                if isinstance(sink, PacedSink):
                    await sink.room()
                piece = bytes(data[sent[stream] : sent[stream] + PIECE])
                sink.write(stream, sent[stream], piece)
                sent[stream] += len(piece)
                job.taken[stream] = max(job.taken[stream], sent[stream])
                job.moved.set()
        if job.news.is_set():
            continue
        if job.outcome is not None or box.state is not State.RUNNING:
            return
        await job.news.wait()


async def _send_input(job: Job, offset: int, data: bytes) -> None:
    end = offset + len(data)
    while len(job.input) < end and job.outcome is None:
        if offset > len(job.input):
            raise InvalidRequestError(f"the input goes on at byte {len(job.input)}, not at {offset}")
        if job.input_ended:
            raise InvalidRequestError("the input of this command has ended")
        await job.until(lambda: job.outcome is not None or len(job.input) - job.read < INPUT_WINDOW)
        room = INPUT_WINDOW - (len(job.input) - job.read)
        job.input += data[len(job.input) - offset :][:room]
        job.moved.set()


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
