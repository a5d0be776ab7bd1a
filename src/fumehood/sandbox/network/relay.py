"""Bytes from one connection to another and back, never more in memory than a few buffers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

CHUNK: Final = 64 * 1024
IDLE_SECONDS: Final = 300.0
"""Nothing in either direction for so long: somebody has gone."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

Alive = Callable[[], None]
"""Called when something happened."""
Opening = Callable[[], Awaitable[bytes]]
"""Reads the first bytes of one side, once they may pass."""


def end_of(writer: asyncio.StreamWriter, which: str = "peername") -> str:
    """The address of one end; empty when the connection has gone already."""
    name = writer.get_extra_info(which)
    return str(name[0]) if name else ""


@contextlib.asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[Alive]:
    """Ends a block, with `TimeoutError`, when nothing has happened in it for a while."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds) as timeout:

        def alive() -> None:
            if not timeout.expired():
                timeout.reschedule(loop.time() + seconds)

        yield alive


async def let_go(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Close it. What the other end does not read by then is thrown away: it must not keep a connection of ours.

    Whoever was told to end does not wait at all.
    """
    task = asyncio.current_task()
    try:
        writer.close()
        if task is None or not task.cancelling():
            async with asyncio.timeout(seconds):
                await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # closed by the other end, or not read: it ends here in any case
    finally:
        writer.transport.abort()


async def relay(one: Stream, other: Stream, *, opening: Opening | None = None, seconds: float = IDLE_SECONDS) -> None:
    """Both ways, until both sides have said all, one breaks, or nothing has come for a while.

    `opening` reads what `one` says first; the other direction does not wait for it.
    """
    with contextlib.suppress(OSError, TimeoutError):
        async with patience(seconds) as alive:
            there = asyncio.ensure_future(_pump(one[0], other[1], alive, opening))
            back = asyncio.ensure_future(_pump(other[0], one[1], alive))
            try:
                await asyncio.gather(there, back)
            finally:
                there.cancel()
                back.cancel()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, alive: Alive, opening: Opening | None = None
) -> None:
    if opening is not None:
        writer.write(await opening())
        alive()
    while data := await reader.read(CHUNK):
        alive()
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
