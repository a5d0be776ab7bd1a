"""An operation of ours: run to its end under a fresh id, or given up without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fumehood.sandbox.driver import Sink
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.frames import Exit, WireCommand


async def run_once(client: WardenClient, command: WireCommand, sink: Sink, stdin: bytes | AsyncIterator[bytes]) -> Exit:
    """Whoever gives it up leaves nothing that waits for him: it is killed, and what it says is passed over."""
    command_id = client.fresh_id()
    try:
        if isinstance(stdin, bytes):
            return await client.run(command_id, command, sink, stdin)
        return await _run_fed(client, command_id, command, sink, stdin)
    finally:
        await client.abandon(command_id)


async def _run_fed(
    client: WardenClient, command_id: int, command: WireCommand, sink: Sink, pieces: AsyncIterator[bytes]
) -> Exit:
    end = await client.start(command_id, command, sink)
    try:
        await _feed(client, command_id, end, pieces)
        return await end
    finally:
        client.leave(command_id, sink)


async def _feed(client: WardenClient, command_id: int, end: asyncio.Future[Exit], pieces: AsyncIterator[bytes]) -> None:
    offset = 0
    async for piece in pieces:
        await client.feed(command_id, offset, piece)
        offset += len(piece)
        if end.done():
            return
    await client.end_input(command_id)
