"""What somebody reads who follows what a command prints: from where he stands, piece by piece, until it has ended.

Output is pulled: the next piece is asked for when the one before was taken. So a slow reader holds one piece, and what
waits for him waits where it is printed.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from fumehood.errors import CommandFailedError, DrainingError, FumehoodError, OverloadedError
from fumehood.wire.command_api import OutputPosition, OutputStream
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.sessions import LONGEST_WAIT_MS, CommandView, Output
from fumehood.wire.event_api import Message

STREAM_PIECE_BYTES = 128 * 1024
"""Asked for at once. A thousand readers that stopped reading hold no more than so much each, a few times over."""
TENANTS_PART = 4
"""A tenant may have one in so many of a server's streams."""
RETRY_SECONDS = 5
PAUSE_SECONDS = 0.1
"""After an empty answer that came too early."""

IsStillAllowed = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Tests change them; a server does not."""

    heartbeat_seconds: float = 15.0
    """Between two signs of life, below what common proxies wait."""
    look_seconds: float = 1.0
    """Between two looks whether the caller's key still counts, and whether this server goes on."""
    most_streams: int = 1024
    stream_seconds: float = 6 * 3600.0
    """After which a stream ends by itself: whoever still reads comes back, to whichever server has room."""


class Source(Protocol):
    """Where output comes from, and how a command ended."""

    async def output(self, position: OutputPosition, wait_ms: int) -> tuple[Output, bytes]: ...

    async def end(self, ended: CommandView | None) -> bytes | None:
        """The ended command, in one line of JSON; None while it has not. `ended` is what came with the last output."""
        ...


# --- what is told ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """A piece of a stream that was not told before."""

    stream: OutputStream
    offset: int
    data: bytes

    def encode(self) -> bytes:
        data = base64.b64encode(self.data).decode()
        return f'{{"stream":"{self.stream.value}","offset":{self.offset},"data":"{data}"}}'.encode()


def unseen(position: OutputPosition, output: Output, data: bytes) -> Iterator[tuple[Told, OutputPosition]]:
    """What an answer has beyond a position, each with the position behind it."""
    if sum(piece.length for piece in output.pieces) != len(data):
        raise CommandFailedError(Reason.EXECUTION_FAILED, "the worker's output is not as long as it says")
    at = 0
    for piece in output.pieces:
        content, at = data[at : at + piece.length], at + piece.length
        stream = OutputStream.STDOUT if piece.stream == 1 else OutputStream.STDERR
        seen = position.stdout if stream is OutputStream.STDOUT else position.stderr
        content = content[max(0, seen - piece.offset) :]
        if not content:
            continue
        offset = max(seen, piece.offset)
        position = position.moved(stream, offset + len(content))
        yield Told(stream, offset, content), position


# --- telling it --------------------------------------------------------------------------------------------


class OutputStreams:
    """The streams of one server, counted."""

    def __init__(self, is_draining: Callable[[], bool], options: OutputOptions | None = None) -> None:
        self.is_draining = is_draining
        self.options = options or OutputOptions()
        self._open: dict[OutputTelling, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def open(
        self, tenant: str, source: Source, position: OutputPosition, is_still_allowed: IsStillAllowed
    ) -> OutputTelling:
        """Everything that can fail before there is a stream fails here. `close` it, whatever happens."""
        self._admit(tenant)
        telling = OutputTelling(self, source, position, is_still_allowed)
        self._open[telling] = tenant
        try:
            await telling.begin()
        except BaseException:
            await telling.close()
            raise
        return telling

    def left(self, telling: OutputTelling) -> None:
        self._open.pop(telling, None)

    def _admit(self, tenant: str) -> None:
        if self.is_draining():
            raise DrainingError("this server is shutting down", retry_after_seconds=1)
        most = self.options.most_streams
        if len(self._open) >= most:
            raise OverloadedError("too many streams are open here", retry_after_seconds=RETRY_SECONDS)
        if sum(one == tenant for one in self._open.values()) >= max(1, most // TENANTS_PART):
            raise OverloadedError("this tenant has too many streams open here", retry_after_seconds=RETRY_SECONDS)


class OutputTelling:
    """One reader."""

    def __init__(
        self, streams: OutputStreams, source: Source, position: OutputPosition, is_still_allowed: IsStillAllowed
    ) -> None:
        self._streams = streams
        self._source = source
        self._position = replace(position, ended=False)
        self._is_still_allowed = is_still_allowed
        self._first: tuple[Output, bytes] = (Output(), b"")
        self._look_at = time.monotonic() + streams.options.look_seconds

    async def begin(self) -> None:
        self._first = await self._source.output(self._position, 0)

    async def close(self) -> None:
        self._streams.left(self)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """As they come, each when it is asked for. Ends with the command, the server or the caller's permission; and
        where the worker cannot be reached any more, since a client that comes back is told why."""
        try:
            async with aclosing(self._paced()) as paced:
                async for message in paced:
                    yield message
        except FumehoodError as error:
            structlog.get_logger().warning("output.ended", code=error.code, detail=error.detail)

    async def _paced(self) -> AsyncGenerator[Message, None]:
        options, began = self._streams.options, time.monotonic()
        due, over = began + options.heartbeat_seconds, began + options.stream_seconds
        (output, data), self._first = self._first, (Output(), b"")
        yield Message()
        while True:
            for told, position in unseen(self._position, output, data):
                self._position = position
                yield Message(told.encode(), "output", str(position))
            if output.ended is not None or not output.pieces:
                end = await self._source.end(output.ended)
                if end is not None:
                    if output.ended is None:
                        async for message in self._rest():
                            yield message
                    yield Message(end, "end", str(replace(self._position, ended=True)))
                    return
            if time.monotonic() >= due:
                yield Message()
                due = time.monotonic() + options.heartbeat_seconds
            data = b""  # one piece is held, not two
            if time.monotonic() >= over or (found := await self._next(min(due, over))) is None:
                return
            output, data = found

    async def _rest(self) -> AsyncGenerator[Message, None]:
        """What a command printed that ended between the question for its output and that for its end.
        `test_what_a_quick_command_printed_is_told_before_its_end`"""
        while True:
            output, data = await self._source.output(self._position, 0)
            before = self._position
            for told, position in unseen(before, output, data):
                self._position = position
                yield Message(told.encode(), "output", str(position))
            if self._position == before:
                return

    async def _next(self, until: float) -> tuple[Output, bytes] | None:
        """The next output, if only that there is none yet; None where the reader must go."""
        began = time.monotonic()
        wait_ms = min(LONGEST_WAIT_MS, max(0, math.ceil((until - began) * 1000)))
        asking = asyncio.ensure_future(self._source.output(self._position, wait_ms))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=max(0.0, self._look_at - time.monotonic()))
                if not await self._may_stay():
                    return None
            output, data = asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        is_early = time.monotonic() < began + wait_ms / 1000 - PAUSE_SECONDS
        if is_early and not output.pieces and output.ended is None:
            await asyncio.sleep(PAUSE_SECONDS)
        return output, data

    async def _may_stay(self) -> bool:
        """Whether the reader may go on, as far as one must know now."""
        if time.monotonic() < self._look_at:
            return True
        self._look_at = time.monotonic() + self._streams.options.look_seconds
        return not self._streams.is_draining() and await self._is_still_allowed()
