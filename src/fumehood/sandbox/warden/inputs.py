"""Input for commands, within the warden's window.

What went into a connection may have ended there. So input counts as received only when the warden has answered a ping
that was sent behind it: a PONG says that all before it was dealt with, and refused where it had to be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from fumehood.errors import InvalidRequestError
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.known import Known


class Inputs:
    def __init__(self, write: Callable[[bytes], Awaitable[None]], round_trip: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._round_trip = round_trip

    async def first(self, known: Known, data: bytes, *, more: bool) -> None:
        """What a command is given with its start, and unless there is `more` to come, the end of it."""
        async with known.input_lock:
            await self._send(known, 0, data)
            if more:
                await self._confirm(known)
            elif not known.over:
                known.input_ended = True
                await self._write(frames.stdin_eof(known.command_id, len(data)))

    async def feed(self, known: Known, offset: int, data: bytes, seconds: float | None) -> int:
        async with known.input_lock:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._send(known, offset, data)
            return await self._confirm(known)

    async def end(self, known: Known) -> None:
        async with known.input_lock:
            if not known.over:
                await self._write(frames.stdin_eof(known.command_id, known.written))
                await self._confirm(known)
                known.input_ended = True

    async def _send(self, known: Known, offset: int, data: bytes) -> None:
        """What is new of this; the program may end without reading all of it."""
        end = offset + len(data)
        if known.over:
            return
        if offset > known.written:
            raise InvalidRequestError(f"the input goes on at byte {known.written}, not at {offset}")
        if known.input_ended and end > known.written:
            raise InvalidRequestError("the input of this command has ended")
        while known.written < end and not known.over:
            if known.lost is not None:
                raise known.lost
            if known.room <= 0:
                known.moved.clear()
                await known.moved.wait()
                continue
            size = min(known.room, frames.MAX_PAYLOAD - 8, end - known.written)
            begin, known.written = known.written, known.written + size
            await self._write(frames.stdin(known.command_id, begin, data[begin - offset : begin - offset + size]))

    async def _confirm(self, known: Known) -> int:
        if known.over:
            return known.received
        await self._round_trip()
        if known.input_refused:
            known.input_refused, known.written = False, known.received
            raise InvalidRequestError("this command takes no input, or no more of it")
        known.received = known.written
        return known.received
