"""Workers that wander between servers, as the real ones would: one stream at a time, what they hold goes with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.ports import OutletClosedError
from fumehood.errors import FumehoodError
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import (
    ConsoleFrame,
    Dispatch,
    Error,
    HeldSession,
    Hello,
    Result,
    WorkerFrame,
)
from tests.unit.console_world import FakeWorker, World
from tests.waiting import past

LEASE = 2**45


@dataclass
class Journal:
    """What all workers did."""

    ran: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    """By command: who ran it, and the number in its payload."""
    sessions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By name: who made one."""
    faults: list[BaseException] = field(default_factory=list)
    """Of a server, or of the test."""

    def times(self, number: int) -> int:
        return sum(1 for runs in self.ran.values() for _, what in runs if what == number)


@dataclass(eq=False)
class Line:
    """One stream, seen from both ends. Implements `Outlet`; and plays the door."""

    owner: Roaming
    closed: bool = False
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    frames: asyncio.Queue[WorkerFrame | None] = field(default_factory=asyncio.Queue)

    def send(self, frame: ConsoleFrame) -> None:
        """What is sent to a worker that has left is not heard by anybody."""
        if self.closed:
            raise OutletClosedError
        if self.owner.line is self:
            self.owner.hear(frame)

    def close(self, code: str, detail: str) -> None:
        self.closed = True
        self.frames.put_nowait(None)
        self.owner.news.set()

    async def serve(self, desk: ConsoleDesk, hello: Hello) -> None:
        """As the door does: frames in their order, until one side ends it; the server notices that some time later."""
        chance = self.owner.chance
        try:
            held = await desk.console.welcome(hello, self)
        except FumehoodError:
            self.close("unavailable", "")
            return
        self.welcomed.set()
        self.owner.news.set()
        try:
            while (frame := await self.frames.get()) is not None:
                await past(chance.random() * 0.01)
                await held.take(frame)
        except FumehoodError:
            pass
        finally:
            await past(chance.choice([0.0, 0.0, 0.05, 0.2]))
            self.close("broken", "")
            await held.gone()


@dataclass(eq=False)
class Roaming:
    """Does each command once, keeps its result until that is acknowledged, and remembers that it was."""

    there: World
    chance: random.Random
    worker: FakeWorker
    journal: Journal
    line: Line | None = None
    held: dict[str, Result | None] = field(default_factory=dict)
    """None: it runs."""
    running: dict[str, tuple[str, asyncio.Event]] = field(default_factory=dict)
    """Its capability, and what ends it."""
    acknowledged: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    settled: bool = False
    """It stays where it is."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # --- what it is told -----------------------------------------------------------------------------------

    def hear(self, frame: ConsoleFrame) -> None:
        match frame.WhichOneof("frame"):
            case "dispatch":
                self.take(frame.dispatch)
            case "cancel" if frame.cancel.command_id in self.running:
                self.running[frame.cancel.command_id][1].set()
            case "result_ack" if self.held.get(frame.result_ack.command_id) is not None:
                del self.held[frame.result_ack.command_id]
                self.acknowledged.add(frame.result_ack.command_id)
                self.news.set()

    def take(self, dispatch: Dispatch) -> None:
        command_id, capability = dispatch.command_id, dispatch.capability
        if command_id in self.held:
            self.tell(self.held[command_id])
        elif command_id in self.acknowledged:
            self.tell(_failed(command_id, Reason.EXECUTION_FAILED, "asked again"))
        elif any(one == capability for one, _ in self.running.values()):
            self.tell(_failed(command_id, Reason.NO_CAPACITY, "full"))
        else:
            said = json.loads(dispatch.payload_json)
            self.journal.ran[command_id].append((self.worker.worker_id, said["number"]))
            self.held[command_id], ending = None, asyncio.Event()
            self.running[command_id] = capability, ending
            self._spawn(self._run(dispatch, said, ending))

    async def _run(self, dispatch: Dispatch, said: dict[str, object], ending: asyncio.Event) -> None:
        result = self._done(dispatch, said)
        try:
            async with asyncio.timeout(self.chance.choice([0.0, 0.02, 0.05, 0.3]) * self.chance.random()):
                await ending.wait()
                result = _failed(dispatch.command_id, Reason.DEADLINE_EXCEEDED, "cancelled")
        except TimeoutError:
            pass
        del self.running[dispatch.command_id]
        self.held[dispatch.command_id] = result
        self.tell(result)

    def _done(self, dispatch: Dispatch, said: dict[str, object]) -> Result:
        answer: dict[str, object] = {"worker": self.worker.worker_id, "number": said["number"]}
        name = said.get("session_id")
        if isinstance(name, str):
            answer |= {"session_id": name, "created": name not in self.sessions, "lease_expires_unix_ms": LEASE}
            self.sessions.add(name)
            self.journal.sessions[name].add(self.worker.worker_id)
        return Result(command_id=dispatch.command_id, payload_json=json.dumps(answer).encode())

    def tell(self, result: Result | None) -> None:
        if self.line is not None and result is not None:
            self.line.frames.put_nowait(WorkerFrame(result=result))

    # --- where it is ---------------------------------------------------------------------------------------

    async def live(self) -> None:
        while True:
            await self._connect()
            stay = self.chance.random() * 0.4
            await self._until(lambda: self.line is None or self.line.closed, None if self.settled else stay)
            self._leave()

    async def _connect(self) -> None:
        """It does not wait for ever: then it goes elsewhere, and the server hears of that later."""
        await past(0.002)  # its clock counts milliseconds
        line = self.line = Line(self)
        kept = [HeldSession(owner="default", session_id=one, lease_expires_unix_ms=LEASE) for one in self.sessions]
        hello = self.worker.hello(holding=list(self.held), sessions=kept)
        self._spawn(line.serve(self.chance.choice(self.there.desks), hello))
        await self._until(lambda: line.welcomed.is_set() or line.closed, self.chance.choice([0.02, 0.2, 2.0]))
        if not line.welcomed.is_set():
            self._leave()
            return
        for result in self.held.values():
            self.tell(result)

    def _leave(self) -> None:
        if self.line is not None:
            self.line.frames.put_nowait(None)
            self.line = None

    async def _until(self, holds: Callable[[], bool], seconds: float | None) -> None:
        """Or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    self.news.clear()
                    await self.news.wait()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.journal.faults.append(error)

    async def end(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed(command_id: str, code: str, message: str) -> Result:
    return Result(command_id=command_id, error=Error(code=code, message=message))
