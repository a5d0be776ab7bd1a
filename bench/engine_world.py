"""What a measurement of the engine stands on: servers of its own, and each part in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from bench.child import Child
from bench.engine_wire import Login, Wire
from bench.engine_work import CHAIN, INPUT, TASK_TYPE, run_name, start_body
from bench.world import BenchError
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.topology import GIB, Shape
from fumehood.engine.events import Record
from fumehood.errors import BrokerError
from tests.conformance.broker_bench import WORKER, NatsCluster, NatsServer

ROUND_SECONDS = 120.0
FOLDER = "/var/tmp"
"""On a real disk: flushing to memory would cost nothing."""


def login(options: ConnectionOptions) -> dict[str, Any]:
    return {
        "servers": list(options.servers),
        "user": options.user,
        "password": options.password,
        "inbox_prefix": options.inbox_prefix,
    }


def document(options: ConnectionOptions, shape: Shape, profile: str | None = None) -> dict[str, Any]:
    return {**login(options), "shape": dataclasses.asdict(shape), "profile": profile}


async def open_broker(options: ConnectionOptions, shape: Shape, seconds: float = 90.0) -> NatsBroker:
    """A cluster that has just started has no leader yet."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await NatsBroker.open(options, shape)
        except BrokerError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


async def start_run(wire: Wire, partition: int, run_id: str, body: bytes) -> None:
    """Into the run's inbox, as a server does it; repeated until it is known to be stored, under one id."""
    message_id = f"{run_id}.start"
    headers = {"Fumehood-Id": message_id, "Nats-Msg-Id": f"{run_id}/{message_id}"}
    await wire.persist(f"inbox.{partition}.{run_id}", body, headers)


async def read_journals(
    broker: NatsBroker, runs: Iterable[str], look: Callable[[str, list[Record]], None], at_once: int = 64
) -> None:
    """Every record of every run, from the broker."""
    left = iter(tuple(runs))

    async def one_by_one() -> None:
        for run_id in left:
            entries = await broker.journal.read(run_id)
            look(run_id, [Record.decode(entry.data) for entry in entries])

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_by_one())


class Driver:
    """Starts runs, and sees them end: it listens to what is appended, which costs both sides the same."""

    def __init__(self, wire: Wire, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._number = 0
        self._body = start_body(CHAIN, INPUT)
        self._ends: dict[str, asyncio.Future[None]] = {}

    async def listen(self) -> None:
        await self._wire.subscribe("journal.*.*", self._appended)

    async def _appended(self, message: Msg) -> None:
        if b'"run.succeeded"' in message.data:
            ended = self._ends.pop(message.subject.rpartition(".")[2], None)
            if ended is not None and not ended.done():
                ended.set_result(None)

    async def run(self) -> None:
        """One run, from its start to its end."""
        self._number += 1
        run_id = run_name(self._prefix, self._number)
        ended = self._ends[run_id] = asyncio.get_running_loop().create_future()
        await start_run(self._wire, 0, run_id, self._body)
        await ended

    async def many(self, runs: int, at_once: int) -> float:
        """Seconds for so many of them."""
        left = iter(range(runs))

        async def one_by_one() -> None:
            for _ in left:
                await self.run()

        began = time.perf_counter()
        try:
            async with asyncio.timeout(ROUND_SECONDS), asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(one_by_one())
        except TimeoutError:
            raise BenchError(f"{len(self._ends)} runs did not end within {ROUND_SECONDS:g} s") from None
        return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Side:
    """Ours or bare: servers, the process in the middle, a worker, and who drives them."""

    name: str
    middle: Child
    worker: Child
    driver: Driver


@contextlib.asynccontextmanager
async def folder() -> AsyncIterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fumehood-bench-", dir=FOLDER))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def servers(path: Path, replicas: int) -> NatsServer | NatsCluster:
    return NatsServer(path / "nats", 1) if replicas == 1 else NatsCluster(path, 1)


@contextlib.asynccontextmanager
async def side(role: str, replicas: int, *, profile: str | None = None) -> AsyncIterator[Side]:
    """`role`: `decider` is ours, `bare` is the bare loop."""
    shape = Shape(1, replicas=replicas, storage=4 * GIB)
    async with contextlib.AsyncExitStack() as stack:
        path = await stack.enter_async_context(folder())
        nats = servers(path, replicas)
        stack.callback(nats.kill)
        await asyncio.to_thread(nats.start)
        broker = await open_broker(nats.options(), shape)
        await broker.tasks.consumer(TASK_TYPE)
        await broker.close()
        wire = await Wire.open(Login.read(login(nats.options())))
        stack.push_async_callback(wire.close)
        children = {}
        for name, options in ((role, nats.options()), ("worker", nats.options(WORKER))):
            given = document(options, shape, profile if name == role else None)
            children[name] = await Child.start(name, given)
            stack.push_async_callback(children[name].stop)
        driver = Driver(wire, role)
        await driver.listen()
        yield Side(role, children[role], children["worker"], driver)
