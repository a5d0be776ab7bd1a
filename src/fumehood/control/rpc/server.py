"""Where workers dial in: one method, one stream for each worker, over TLS or on this machine alone.

Whoever is not known yet may hold little, and not for long: a stranger that says nothing is hung up on after ten
seconds, and sooner when others wait. What follows a hello is the console's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
import structlog

from fumehood.control.console.ports import Held, Welcomer
from fumehood.control.rpc.hangup import hang_up
from fumehood.control.rpc.stream import Context, End, Stream, refusal
from fumehood.control.rpc.tls import DoorTls
from fumehood.errors import ConfigurationError, FumehoodError, InvalidRequestError
from fumehood.settings import is_loopback
from fumehood.wire.console.codes import CONNECT_METHOD, MAX_FRAME_BYTES
from fumehood.wire.console.console_pb2 import Hello

T = TypeVar("T")

HELLO_SECONDS: Final = 10.0
LAST_WORD_SECONDS: Final = 2.0
"""For a worker to be told why its stream ends; then its connection is closed."""
MOST_STRANGERS: Final = 32
"""Streams that have said nothing yet. Each may make us hold one frame."""
SILENT_SECONDS: Final = 1.0
MOST_AT_ONCE: Final = 512
"""The same, of those who have only just come."""
MOST_HELLO_BYTES: Final = 64 * 1024 * 1024
"""Of all hellos that are being looked at."""
WELCOME_SECONDS: Final = 10.0
"""For the console to take a stream: some questions to the broker."""
MOST_STREAMS: Final = 1024
_SERVICE, _METHOD = CONNECT_METHOD.lstrip("/").split("/")
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_concurrent_streams", 8),  # of one connection, which has one worker
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share in it
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished is noticed
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # without this one, the one above was not kept to
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),  # a worker pings every five seconds
    ("grpc.http2.max_ping_strikes", 5),
)


@dataclass(frozen=True, slots=True)
class DoorOptions:
    host: str = "127.0.0.1"
    port: int = 0
    tls: DoorTls | None = None
    max_streams: int = MOST_STREAMS
    hello_seconds: float = HELLO_SECONDS


class ConsoleDoor:
    """Made by `opened`."""

    def __init__(self, welcomer: Welcomer, options: DoorOptions) -> None:
        self._welcomer = welcomer
        self._options = options
        self._strangers: dict[Stream, float] = {}
        """Since when; oldest first."""
        self._greeting: dict[Stream, int] = {}
        """Streams whose hello is being looked at, and how large that is."""
        self._streams: set[Stream] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._draining = False
        self._server = grpc.aio.server(options=_OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        self.port = _bound(self._server, options)

    def __len__(self) -> int:
        """Workers that are connected."""
        return len(self._streams)

    async def start(self) -> None:
        await self._server.start()

    async def drain(self, seconds: float) -> None:
        """Tell all workers to go elsewhere, and wait until they have been told."""
        self._draining = True
        for stream in (*self._streams, *self._greeting, *self._strangers):
            stream.close("draining", "this server is shutting down")
        await self._server.stop(seconds)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=seconds)

    # --- one stream ----------------------------------------------------------------------------------------

    async def _connect(self, _frames: object, context: Context) -> None:
        try:
            end = await self._served(Stream(context), context)
        except Exception:  # a stranger must not be shown what went wrong in here, as gRPC would
            log = structlog.get_logger()
            log.exception("worker.stream_failed")
            end = End(grpc.StatusCode.INTERNAL, "this server could not go on with the stream")
        if end.code is not grpc.StatusCode.OK:
            hanging = asyncio.get_running_loop().call_later(LAST_WORD_SECONDS, hang_up, context.peer(), self.port)
            try:
                await context.abort(end.code, end.detail)
            finally:
                hanging.cancel()

    async def _served(self, stream: Stream, context: Context) -> End:
        held = await self._let_in(stream, context)
        if isinstance(held, End):
            return held
        self._streams.add(stream)
        try:
            return await stream.serve(held)
        finally:
            self._streams.discard(stream)
            await self._finish(held.gone())

    async def _let_in(self, stream: Stream, context: Context) -> Held | End:
        if self._draining:
            return End(grpc.StatusCode.UNAVAILABLE, "this server is shutting down")
        try:
            hello = await self._hello(stream)
            return hello if isinstance(hello, End) else await self._welcomed(stream, hello)
        except FumehoodError as error:
            end = refusal(error)
            structlog.get_logger().info("worker.refused", code=end.code.name, peer=context.peer(), detail=end.detail)
            return end

    async def _hello(self, stream: Stream) -> Hello | End:
        self._make_room()
        self._strangers[stream] = time.monotonic()
        try:
            first = asyncio.ensure_future(stream.first())
            frame = await _unless_ended(stream, first, self._options.hello_seconds, "no hello in time")
        finally:
            del self._strangers[stream]
        if isinstance(frame, End):
            return frame
        if frame.WhichOneof("frame") != "hello":
            raise InvalidRequestError("the first frame must be a hello")
        return frame.hello

    def _make_room(self) -> None:
        """A worker says its hello at once. So those who have been silent for longest are the first to go; but not in
        the first moment, in which all workers of a server that died may come."""
        many, now = len(self._strangers) >= MOST_AT_ONCE, time.monotonic()
        for oldest, since in list(self._strangers.items())[: len(self._strangers) - MOST_STRANGERS + 1]:
            if many or now - since >= SILENT_SECONDS:
                oldest.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wait to be let in")

    async def _welcomed(self, stream: Stream, hello: Hello) -> Held | End:
        """However it ends, the console is told of the end of every stream that it took."""
        size = hello.ByteSize()
        if len(self._streams) + len(self._greeting) >= self._options.max_streams:
            return End(grpc.StatusCode.RESOURCE_EXHAUSTED, "this server has as many workers as it takes")
        if size + sum(self._greeting.values()) > MOST_HELLO_BYTES:
            return End(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much waits to be let in")
        self._greeting[stream] = size
        welcoming = asyncio.ensure_future(self._welcomer.welcome(hello, stream))
        try:
            return await _unless_ended(stream, welcoming, WELCOME_SECONDS, "the worker could not be let in in time")
        except asyncio.CancelledError:
            if welcoming.done() and not welcoming.cancelled() and welcoming.exception() is None:
                await self._finish(welcoming.result().gone())
            raise
        finally:
            del self._greeting[stream]

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """To its end, also where this stream's task is cancelled meanwhile."""
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        await asyncio.shield(task)


@contextlib.asynccontextmanager
async def opened(welcomer: Welcomer, options: DoorOptions, *, drain_seconds: float = 5.0) -> AsyncIterator[ConsoleDoor]:
    """A door that is open while the block lasts. Whoever wants it closed in good order calls `drain` before."""
    door = ConsoleDoor(welcomer, options)
    await door.start()
    try:
        yield door
    finally:
        await door.drain(drain_seconds)


async def _unless_ended(stream: Stream, work: asyncio.Future[T], seconds: float, late: str) -> T | End:
    """What comes of it; or how the stream ended before anything did."""
    try:
        either: set[asyncio.Future[Any]] = {work, stream.ended}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        work.cancel()
        await asyncio.wait({work})
    if not work.cancelled():
        return work.result()
    stream.end(grpc.StatusCode.DEADLINE_EXCEEDED, late)
    return stream.ended.result()


def _bound(server: grpc.aio.Server, options: DoorOptions) -> int:
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{host}:{options.port}"
    if options.tls is None and not is_loopback(options.host):
        raise ConfigurationError(
            f"workers would be spoken to in plain text on {address}: give the console a certificate "
            "(grpc_tls_cert_file, grpc_tls_key_file), or let it listen on loopback"
        )
    try:
        if options.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, options.tls.credentials())
    except RuntimeError:
        raise ConfigurationError(f"the console cannot listen on {address}: is the port taken?") from None
