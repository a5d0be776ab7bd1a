"""One worker's stream: what is to be told waits in a bounded queue, and whoever does not read is cut off.

Nothing waits for a worker: the console puts frames into the queue and goes on. The worker's own frames are taken one
after the other, so that a worker that says too much waits for the console, in its own memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from fumehood.control.console.ports import Held, OutletClosedError
from fumehood.errors import (
    BrokerError,
    DrainingError,
    FumehoodError,
    InvalidRequestError,
    OverloadedError,
    UnauthenticatedError,
)
from fumehood.wire.console.codes import MAX_FRAME_BYTES, Reason
from fumehood.wire.console.console_pb2 import ConsoleFrame, Drain, HelloAck, WorkerFrame

MOST_FRAMES: Final = 2048
"""That wait to be read: more than a worker can have under way."""
MOST_BYTES: Final = 2 * MAX_FRAME_BYTES
"""Of these frames: some hundred pieces of files."""
WRITE_SECONDS: Final = 20.0
"""For one frame, after which a worker is taken for one that does not read."""
FLUSH_SECONDS: Final = 2.0
"""For what waits, when a stream is ended in good order."""
MISSED_BEATS: Final = 4
HEARTBEAT_SECONDS: Final = 15.0
"""The least that a worker may be silent for."""

_UNREAD: Final = "the worker does not read what it is told"
_BROKEN: Final = "the connection broke"

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ends, as the worker is told."""

    code: grpc.StatusCode
    detail: str


_CODES: Final = {
    Reason.WORKER_REPLACED.value: grpc.StatusCode.ABORTED,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "draining": grpc.StatusCode.UNAVAILABLE,
}


def refusal(error: FumehoodError) -> End:
    """What is wrong with a worker, or with us."""
    match error:
        case UnauthenticatedError():
            return End(grpc.StatusCode.UNAUTHENTICATED, error.detail)
        case InvalidRequestError():
            return End(grpc.StatusCode.INVALID_ARGUMENT, error.detail)
        case DrainingError() | BrokerError():
            return End(grpc.StatusCode.UNAVAILABLE, error.detail)
        case OverloadedError():
            return End(grpc.StatusCode.RESOURCE_EXHAUSTED, error.detail)
        case _:
            return End(grpc.StatusCode.INTERNAL, "this server could not go on with the stream")


class Stream:
    """Implements `Outlet`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._flushes = False
        self._patience = HEARTBEAT_SECONDS

    # --- what the console does with it ---------------------------------------------------------------------

    def send(self, frame: ConsoleFrame) -> None:
        if self.ended.done():
            raise OutletClosedError
        data = frame.SerializeToString()
        if len(data) > MAX_FRAME_BYTES:
            self.end(grpc.StatusCode.INTERNAL, "the worker was to be told more than fits into a frame")
            raise OutletClosedError
        if len(self._queue) >= MOST_FRAMES or self._bytes + len(data) > MOST_BYTES:
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, _UNREAD)
            raise OutletClosedError
        self._push(data)

    def _push(self, data: bytes) -> None:
        self._queue.append(data)
        self._bytes += len(data)
        self._more.set()

    def close(self, code: str, detail: str) -> None:
        """One that leaves says so; what waited for the worker is said before."""
        if code == "draining" and not self.ended.done():
            self._flushes = True
            self._push(ConsoleFrame(drain=Drain(leave=False)).SerializeToString())
        said = str(code) if code == Reason.WORKER_REPLACED else detail
        self.end(_CODES.get(code, grpc.StatusCode.INTERNAL), said)

    def end(self, code: grpc.StatusCode, detail: str) -> None:
        """The first reason counts."""
        if not self.ended.done():
            self.ended.set_result(End(code, detail))
            self._more.set()

    # --- its life ------------------------------------------------------------------------------------------

    async def first(self) -> WorkerFrame:
        """What the worker says before anything else. Raises `InvalidRequestError`."""
        try:
            data = await self._context.read()
        except grpc.aio.BaseError:
            raise InvalidRequestError(_BROKEN) from None
        if _is_end(data):
            raise InvalidRequestError("the stream ended before a hello")
        return _frame(data)

    async def serve(self, held: Held) -> End:
        """Until one side ends it; how, and what the worker is to be told about that."""
        self._acknowledge(held.ack)
        reading, writing = asyncio.ensure_future(self._read(held)), asyncio.ensure_future(self._write())
        try:
            works: set[asyncio.Future[Any]] = {reading, writing, self.ended}
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            if self._flushes:
                await asyncio.wait({writing}, timeout=FLUSH_SECONDS)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
        for task in (reading, writing):
            if not task.cancelled():
                task.result()  # an error of ours
        return self.ended.result()

    def _acknowledge(self, ack: HelloAck) -> None:
        """First, although others may have been quick to send something."""
        data = ConsoleFrame(hello_ack=ack).SerializeToString()
        self._queue.appendleft(data)
        self._bytes += len(data)
        self._more.set()
        self._patience = max(HEARTBEAT_SECONDS, MISSED_BEATS * ack.heartbeat_interval_ms / 1000)

    async def _read(self, held: Held) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    data = await self._context.read()
            except TimeoutError:
                return self.end(grpc.StatusCode.UNAVAILABLE, f"no heartbeat for {self._patience:.0f} seconds")
            except grpc.aio.BaseError:
                return self.end(grpc.StatusCode.UNAVAILABLE, _BROKEN)
            if _is_end(data):
                return self.end(grpc.StatusCode.OK, "")
            try:
                await held.take(_frame(data))
            except FumehoodError as error:
                end = refusal(error)
                return self.end(end.code, end.detail)

    async def _write(self) -> None:
        """Until the stream has ended and nothing waits."""
        while self._queue or not self.ended.done():
            if not self._queue:
                self._more.clear()
                await self._more.wait()
                continue
            data = self._queue.popleft()
            self._bytes -= len(data)
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._context.write(data)
            except TimeoutError:
                self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, _UNREAD)
                return
            except grpc.aio.BaseError:
                self.end(grpc.StatusCode.UNAVAILABLE, _BROKEN)
                return


def _is_end(data: object) -> bool:
    return data is grpc.aio.EOF


def _frame(data: bytes) -> WorkerFrame:
    try:
        return WorkerFrame.FromString(data)
    except DecodeError:
        raise InvalidRequestError("what was sent is not a fumehood.console.v1.WorkerFrame") from None
