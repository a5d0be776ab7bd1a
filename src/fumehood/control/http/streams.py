"""Answers that are written piece by piece, for as long as somebody takes them.

A stream is watched from both ends: it ends when the client hangs up, and when a client does not take a piece in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.broker.shield import shielded

SLOW_SECONDS = 20.0
"""For one piece to be taken by a client: it is no larger than the buffers on the way, so that one who needs longer has
stopped reading."""
PIECE_BYTES = 64 * 1024
SSE = "text/event-stream"


async def disconnected(receive: Receive) -> None:
    """Until the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel them, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def send_piece(send: Send, piece: bytes) -> None:
    """One piece of an answer that goes on; `ClientDisconnect` for a client that does not take what came before it."""
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except (TimeoutError, OSError):
        raise ClientDisconnect from None


class EventStream(Response):
    """Server-Sent Events, each asked for when those before it were taken. `close` is called however it ends. Written by
    hand: the framework's own cancels from outside, over and over, and would not let things be put away in peace."""

    media_type = SSE

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        self._events = events
        self._close = close
        self.status_code = 200
        self.background = None
        # A proxy that collects before it passes on would make a heartbeat useless.
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.create_task(self._tell(send))
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({telling, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await shielded(self._end(telling, gone))
        if not telling.cancelled() and (error := telling.exception()) is not None:
            raise error

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        await cancelled(*tasks)
        await self._close()

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for event in events:
                for begin in range(0, len(event), PIECE_BYTES):
                    await send_piece(send, event[begin : begin + PIECE_BYTES])
        await send({"type": "http.response.body", "body": b"", "more_body": False})
