"""The connection to NATS against a server that answers at the wrong moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from fumehood.broker.connection import Connection, ConnectionOptions
from fumehood.errors import BrokerUnavailableError

INFO = {"server_id": "x", "version": "2.12.0", "proto": 1, "max_payload": 1048576, "headers": True}


class LateServer:
    """Speaks as much NATS as a connection needs: sends back what is published, and no PONG while `answers` is unset."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"INFO " + json.dumps(INFO).encode() + b"\r\n")
        try:
            while line := await reader.readline():
                match line.split():
                    case [b"PING"]:
                        await self.answers.wait()
                        writer.write(b"PONG\r\n")
                    case [b"PUB", subject, size]:
                        writer.write(b"MSG %b 1 %b\r\n" % (subject, size) + await reader.readline())
        finally:
            writer.close()


@pytest.fixture
async def server() -> LateServer:
    return LateServer()


@pytest.fixture
async def connection(server: LateServer) -> AsyncIterator[Connection]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = await Connection.open(ConnectionOptions((f"nats://127.0.0.1:{port}",), request_timeout=0.1))
    yield made
    server.answers.set()
    await made.close()
    listening.close()


@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_late_pong_keeps_the_connection(server: LateServer, connection: Connection, end: str) -> None:
    """The client of NATS alone would stop reading here, and call itself connected."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await connection.subscribe("echo", lambda message: heard.put_nowait(message.data))
    server.answers.clear()
    waiting = asyncio.create_task(connection.round_trip())
    if end == "cancel":
        await asyncio.sleep(0)  # it has sent its PING
        waiting.cancel()
    with pytest.raises((BrokerUnavailableError, asyncio.CancelledError)):
        await waiting
    server.answers.set()

    await connection.publish("echo", b"still here")
    async with asyncio.timeout(30):
        assert await heard.get() == b"still here"
    assert (connection.connected, server.connections) == (True, 1)
