"""The MCP server over stdin and stdout, for an agent program that starts it. stdout carries the protocol alone."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.stdio import stdio_server

from fumehood.errors import FumehoodError
from fumehood.mcp.aftermath import Aftermath
from fumehood.mcp.progress import Progress
from fumehood.mcp.serving import Context, make_server
from fumehood.mcp.tool import Call
from fumehood.sdk.aio.client import AsyncClient
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.connection import Connection
from fumehood.wire.key_api import CALLER_PATH


async def serve_stdio(connection: Connection) -> None:
    """Until the program closes our stdin. Commands of calls that it did not wait for are killed then."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    transport = AsyncTransport(connection)
    aftermath, client = Aftermath(), AsyncClient(transport=transport)

    @asynccontextmanager
    async def opened(_: Context, progress: Progress) -> AsyncIterator[Call]:
        yield Call(client, progress, aftermath, pinned=True)

    server = make_server(opened)
    looking = asyncio.create_task(_tell_server(transport))
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await aftermath.close()
        await client.aclose()


async def _tell_server(transport: AsyncTransport) -> None:
    """One line for whoever looks why there are no tools, or none that work. Nobody waits for it."""
    url = transport.url
    try:
        await transport.get(CALLER_PATH)
        said = f"the server is {url}, and answers"
    except FumehoodError as error:
        said = f"the server is {url}, and cannot be used: {error.detail}; {error.remedy}"
    print(f"fumehood: {said}", file=sys.stderr, flush=True)
