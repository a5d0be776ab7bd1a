"""Servers and workers of the console on one broker in memory, with frames passed by hand instead of over a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.control.callers import ADMIN, Caller, Scope
from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.ports import Held, OutletClosedError
from fumehood.control.console.ports_http import CommandWish
from fumehood.wire.console.codes import Capability
from fumehood.wire.console.console_pb2 import (
    Capability as Declared,
)
from fumehood.wire.console.console_pb2 import (
    ConsoleFrame,
    Declaration,
    Dispatch,
    Error,
    HeldSession,
    Hello,
    Result,
    WorkerFrame,
)
from fumehood.wire.console.hello import sign_hello
from tests.waiting import until

OTHER = Caller("other", "key/other", frozenset({Scope.ALL}))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class FakeWorker:
    """A worker that keeps what it is given until the test answers for it. Implements `Outlet`."""

    worker_id: str
    secret: str
    capabilities: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Capability, 4))
    dispatched: list[Dispatch] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    closed: str | None = None
    held: Held | None = None
    answers: Callable[[Dispatch], Result | None] | None = None
    """What it says at once; None: nothing yet."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def hello(self, *, holding: Sequence[str] = (), sessions: Sequence[HeldSession] = ()) -> Hello:
        declared = Declaration(
            capabilities=[Declared(name=name, max_inflight=most) for name, most in self.capabilities.items()],
            max_session_calls=16,
            holding=holding,
            sessions=sessions,
        )
        return sign_hello(self.worker_id, self.secret, declared.SerializeToString(), now_ms(), os.urandom(16))

    async def connect(
        self, desk: ConsoleDesk, *, holding: Sequence[str] = (), sessions: Sequence[HeldSession] = ()
    ) -> Held:
        self.closed = None
        self.held = await desk.console.welcome(self.hello(holding=holding, sessions=sessions), self)
        return self.held

    def send(self, frame: ConsoleFrame) -> None:
        if self.closed is not None:
            raise OutletClosedError
        match frame.WhichOneof("frame"):
            case "dispatch":
                self.dispatched.append(frame.dispatch)
                result = self.answers(frame.dispatch) if self.answers is not None else None
                if result is not None:
                    self._spawn(self.say(result))
            case "cancel":
                self.cancelled.append(frame.cancel.command_id)
            case "result_ack":
                self.acknowledged.append(frame.result_ack.command_id)
        self.news.set()

    def close(self, code: str, detail: str) -> None:
        self.closed = code
        self.news.set()

    async def say(self, result: Result) -> None:
        assert self.held is not None
        await self.held.take(WorkerFrame(result=result))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.news.wait()


def echo(dispatch: Dispatch) -> Result:
    return Result(command_id=dispatch.command_id, payload_json=dispatch.payload_json)


def failing(code: str) -> Callable[[Dispatch], Result]:
    return lambda dispatch: Result(command_id=dispatch.command_id, error=Error(code=code, message="as the test says"))


def wish(payload: object = "hello", capability: str = "echo", **more: object) -> CommandWish:
    given = {"timeout_ms": 60_000, "wait_ms": 5_000} | more
    return CommandWish(capability, json.dumps(payload).encode(), **given)  # type: ignore[arg-type]


@dataclass
class World:
    server: MemoryServer
    desks: list[ConsoleDesk]

    async def worker(self, name: str = "w1", **more: object) -> FakeWorker:
        _, secret = await self.desks[0].credentials.create(name, {}, ADMIN)
        return FakeWorker(name, secret, **more)  # type: ignore[arg-type]


async def connected(there: World, at: int = 0, name: str = "w1", **more: object) -> FakeWorker:
    """A worker at one of the servers, that all of them know of."""
    worker = await there.worker(name, **more)
    await worker.connect(there.desks[at])
    await until(lambda: all(desk.presence.of(name) for desk in there.desks))
    return worker


@contextlib.asynccontextmanager
async def world(
    servers: int = 2, *, broker: Callable[[MemoryServer], MemoryBroker] = MemoryBroker
) -> AsyncIterator[World]:
    server = MemoryServer()
    async with contextlib.AsyncExitStack() as stack:
        desks = []
        for _ in range(servers):
            desk = ConsoleDesk(broker(server), now_ms=now_ms)
            await stack.enter_async_context(desk.working())
            desks.append(desk)
        await until(lambda: all(desk.presence.whole for desk in desks))
        yield World(server, desks)
