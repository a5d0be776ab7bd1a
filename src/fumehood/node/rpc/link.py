"""The worker's way to the console: one stream after the other, never two at once, for as long as the worker lives.

Several consoles may be named: they are replicas of one, tried in turn, so that another one takes over where one dies.
What is held (`Duties`) outlives every stream; a stream is only how it gets here, and how it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
import structlog

from fumehood.errors import ConfigurationError, FumehoodError, InvalidRequestError
from fumehood.node.console.duties import Duties
from fumehood.node.rpc.channels import Route, Target, Tls, route
from fumehood.node.rpc.pauses import Ending, Pauses
from fumehood.node.rpc.stream import About, Call, Identity, Keeper, Parts, ProtocolError, Stream
from fumehood.wire.console.codes import CONNECT_METHOD, Reason
from fumehood.wire.console.console_pb2 import ConsoleFrame, WorkerFrame
from fumehood.wire.console.hello import derive_key

__all__ = ["About", "Identity", "Keeper", "Link", "Route", "Tls", "route"]

LONGEST_DETAIL: Final = 300
LEAVE_SECONDS: Final = 600.0
"""For commands to end by themselves, and for their results to be heard, once the console wants this worker to leave.
Then it leaves; whoever stops this process ends what still runs."""
REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Saying the same again would not help."""
TELL_SECONDS = 2.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class End:
    """Of a stream, or of the attempt to have one."""

    ending: Ending
    detail: str
    lived: float = 0.0


class Link:
    """Belongs to one event loop. `serve` runs until `stop`, or until the console said that this worker shall leave."""

    def __init__(
        self, where: Route, about: About, duties: Duties, keeper: Keeper, *, chance: random.Random | None = None
    ) -> None:
        _check(about.identity)
        self._route = where
        self._duties = duties
        self._chance = chance or random.Random()
        self._parts = Parts(about, duties, keeper, self._drained, self._chance)
        self._stopping = asyncio.Event()
        self._leaving: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self.last_work: Callable[[], Awaitable[None]] | None = None
        """What a worker that was told to leave still does, before its stream ends."""
        self.connected = asyncio.Event()
        """Set while a console has taken our stream."""
        self.told_to_leave = False

    def stop(self) -> None:
        """End the stream; commands go on, and their results wait for the next one."""
        self._stopping.set()

    async def serve(self) -> None:
        serving = asyncio.create_task(self._forever())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [task for task in (serving, stopping, self._leaving) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not serving.cancelled():
            serving.result()

    async def _forever(self) -> None:
        pauses = Pauses(len(self._route.targets), self._chance)
        while True:
            for target in self._route.targets:
                end = await self._once(target)
                seconds = pauses.after(end.ending, end.lived)
                self._say(target, end, seconds)
                await asyncio.sleep(seconds)

    def _say(self, target: Target, end: End, seconds: float) -> None:
        log = _log.info if end.lived and end.ending is Ending.LOST else _log.warning
        log(f"console.{end.ending}", target=str(target), detail=end.detail, again_in_seconds=round(seconds, 1))

    # --- one stream ----------------------------------------------------------------------------------------

    async def _once(self, target: Target) -> End:
        loop = asyncio.get_running_loop()
        try:
            async with self._dialled(target) as stream:
                try:
                    end = await self._run(stream, target)
                finally:
                    self.connected.clear()
        except ConfigurationError as error:  # a file of the operator's that is not what it was when we began
            return End(Ending.REFUSED, error.detail)
        lived = 0.0 if stream.welcomed is None else loop.time() - stream.welcomed
        return End(end.ending, end.detail, lived)

    @contextlib.asynccontextmanager
    async def _dialled(self, target: Target) -> AsyncIterator[Stream]:
        channel = self._route.channel(target)
        try:
            connect = channel.stream_stream(
                CONNECT_METHOD,
                request_serializer=_bytes,
                response_deserializer=ConsoleFrame.FromString,
            )
            call: Call = connect()
            try:
                yield Stream(call, self._parts)
            finally:
                call.cancel()
        finally:
            await channel.close()

    async def _run(self, stream: Stream, target: Target) -> End:
        def welcomed() -> None:
            self._stream = stream
            self.connected.set()
            _log.info("console.connected", target=str(target), holding=len(self._duties.holding()))

        try:
            await stream.run(welcomed)
        except grpc.aio.AioRpcError as error:
            return _end_of(error)
        except TimeoutError:
            return End(Ending.LOST, "the console did not answer in time")
        except ProtocolError as error:
            return End(Ending.REFUSED, error.detail)
        except FumehoodError as error:
            return End(Ending.LOST, error.detail)
        return End(Ending.LOST, "the console ended the stream")

    # --- leaving -------------------------------------------------------------------------------------------

    def _drained(self, leave: bool) -> None:
        _log.info("console.drain", leave=leave)
        if leave and self._leaving is None:
            self.told_to_leave = True
            self._duties.drain()
            self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._duties.idle()
                await self._duties.told()
        except TimeoutError:
            _log.warning("console.leaving_took_long", seconds=LEAVE_SECONDS, holding=len(self._duties.holding()))
        try:
            if self.last_work is not None:
                await self.last_work()
            await self.tell_sessions()
        finally:
            self.stop()

    async def tell_sessions(self) -> None:
        """Have the console know which sessions are left, if it listens; else it finds out by and by."""
        if self._stream is None or not self.connected.is_set():
            return
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(TELL_SECONDS):
                await self._stream.tell_sessions()


def _bytes(frame: WorkerFrame) -> bytes:
    return frame.SerializeToString()


def _check(identity: Identity) -> None:
    try:
        derive_key(identity.worker_id, identity.secret)
    except InvalidRequestError as error:
        raise ConfigurationError(error.detail) from None


def _end_of(error: grpc.aio.AioRpcError) -> End:
    detail = f"{error.code().name}: {error.details() or ''}"[:LONGEST_DETAIL]
    if error.code() is grpc.StatusCode.ABORTED or Reason.WORKER_REPLACED in detail:
        return End(Ending.REPLACED, detail)
    return End(Ending.REFUSED if error.code() in REFUSALS else Ending.LOST, detail)
