"""The bare gRPC round trip: the console's own frames over streams that workers opened, with nothing behind them.

Asked from where the callers of the real thing ask. The workers' ends live in the same processes as the real workers,
and as many of them: whatever else these processes do costs both sides alike. A unary call, which opens a stream of its
own for each question, is measured beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from bench.world import BenchError
from fumehood.wire.console.codes import Capability
from fumehood.wire.console.console_pb2 import ConsoleFrame, Dispatch, Hello, Result, WorkerFrame

SERVICE = "fumehood.bench.BareService"
CONNECT, ASK = "Connect", "Ask"
CONNECT_SECONDS = 60.0
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it, channels of one process to one address share a connection."""

Context = grpc.aio.ServicerContext[WorkerFrame, ConsoleFrame]


def dispatch(number: int, payload: bytes) -> ConsoleFrame:
    """As large as a real one."""
    return ConsoleFrame(
        dispatch=Dispatch(
            command_id=f"{number:032d}",
            capability=Capability.ECHO,
            payload_json=payload,
            timeout_ms=30_000,
            owner="default",
        )
    )


def echoed(frame: ConsoleFrame) -> WorkerFrame:
    asked = frame.dispatch
    return WorkerFrame(result=Result(command_id=asked.command_id, payload_json=asked.payload_json))


# --- a worker's end ----------------------------------------------------------------------------------------


async def answer_stream(target: str) -> None:
    """Dial in and echo until the other end is done."""
    async with grpc.aio.insecure_channel(target, options=OWN_CONNECTION) as channel:
        stream = channel.stream_stream(
            f"/{SERVICE}/{CONNECT}",
            request_serializer=WorkerFrame.SerializeToString,
            response_deserializer=ConsoleFrame.FromString,
        )()
        await stream.write(WorkerFrame(hello=Hello(worker_id="bare")))
        while isinstance(frame := await stream.read(), ConsoleFrame):
            await stream.write(echoed(frame))


async def answer_calls() -> tuple[grpc.aio.Server, int]:
    """A server that echoes in single calls, and its port."""

    async def ask(frame: ConsoleFrame, _: object) -> WorkerFrame:
        return echoed(frame)

    handler = grpc.unary_unary_rpc_method_handler(ask, ConsoleFrame.FromString, WorkerFrame.SerializeToString)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {ASK: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


# --- the asking end ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class BareConsole:
    """Streams that workers opened; each carries one question at a time."""

    target: str
    _free: asyncio.Queue[Context]
    _done: asyncio.Event
    _number: int = 0

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[BareConsole]:
        free: asyncio.Queue[Context] = asyncio.Queue()
        done = asyncio.Event()

        async def connect(_: object, context: Context) -> None:
            await context.read()
            free.put_nowait(context)
            await done.wait()

        handler = grpc.stream_stream_rpc_method_handler(connect, WorkerFrame.FromString, ConsoleFrame.SerializeToString)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {CONNECT: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield cls(f"127.0.0.1:{port}", free, done)
        finally:
            done.set()
            await server.stop(grace=5)

    async def connected(self, count: int) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while self._free.qsize() < count:  # noqa: ASYNC110 - a queue has no event for its size
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise BenchError(f"{self._free.qsize()} of {count} bare streams came") from None

    def forget(self) -> None:
        """All of them have left."""
        while not self._free.empty():
            self._free.get_nowait()

    async def echo(self, payload: bytes) -> float:
        """Seconds of one round trip."""
        self._number += 1
        stream = await self._free.get()
        began = time.perf_counter()
        await stream.write(dispatch(self._number, payload))
        frame = await stream.read()
        seconds = time.perf_counter() - began
        self._free.put_nowait(stream)
        _check(frame, payload)
        return seconds


class BareCalls:
    """Single calls over channels that are kept; use with `async with`."""

    def __init__(self, ports: list[int]) -> None:
        self._channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION) for port in ports]
        self._calls = [
            channel.unary_unary(
                f"/{SERVICE}/{ASK}",
                request_serializer=ConsoleFrame.SerializeToString,
                response_deserializer=WorkerFrame.FromString,
            )
            for channel in self._channels
        ]
        self._number = 0

    async def __aenter__(self) -> BareCalls:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def echo(self, payload: bytes) -> float:
        self._number += 1
        call = self._calls[self._number % len(self._calls)]
        began = time.perf_counter()
        frame = await call(dispatch(self._number, payload))
        seconds = time.perf_counter() - began
        _check(frame, payload)
        return seconds


def _check(frame: object, payload: bytes) -> None:
    if not isinstance(frame, WorkerFrame) or frame.result.payload_json != payload:
        raise BenchError(f"a wrong bare answer: {frame!r}")
