"""The connection to NATS against a server that answers at the wrong moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fumehood.broker.connection import Connection, ConnectionOptions, _Client
from fumehood.errors import BrokerUnavailableError
from tests.waiting import until

INFO = {"server_id": "x", "version": "2.12.0", "proto": 1, "max_payload": 1048576, "headers": True}


class LateServer:
    """Speaks as much NATS as a connection needs: sends back what is published as
    `echo`, and no PONG while `answers` is unset."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.connections = 0
        self.greetings: list[bytes] = []
        """What the next connections hear instead of INFO; an empty one hears nothing at all."""
        self.reads = asyncio.Event()
        """While unset, the present connection is half open: all buffers on the way fill up. The next one sets it."""
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        self.reads.set()
        greeting = self.greetings.pop(0) if self.greetings else b"INFO " + json.dumps(INFO).encode() + b"\r\n"
        writer.write(greeting)
        subscription = b"1"
        try:
            while line := await reader.readline():
                await self.reads.wait()
                match line.split():
                    case [b"PING"]:
                        await self.answers.wait()
                        writer.write(b"PONG\r\n")
                    case [b"SUB", _, number]:
                        subscription = number
                    case [b"PUB", subject, size]:
                        payload = await reader.readexactly(int(size) + 2)
                        if subject == b"echo":
                            writer.write(b"MSG echo %b %b\r\n" % (subscription, size) + payload)
        finally:
            writer.close()

    def say(self, words: bytes) -> None:
        assert self.writer is not None
        self.writer.write(words)


@pytest.fixture
async def server() -> LateServer:
    return LateServer()


@pytest.fixture
async def connection(server: LateServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    monkeypatch.setattr("fumehood.broker.connection._WATCH_SECONDS", 0.1)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    made = await Connection.open(ConnectionOptions((f"nats://127.0.0.1:{port}",), request_timeout=0.1))
    yield made
    server.answers.set()
    server.reads.set()
    await made.close()
    listening.close()


@pytest.fixture
async def heard(connection: Connection) -> asyncio.Queue[bytes]:
    """What comes back on `echo`."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    await connection.subscribe("echo", lambda message: queue.put_nowait(message.data))
    return queue


async def works_again(connection: Connection, heard: asyncio.Queue[bytes]) -> None:
    """A message comes back; those that were under way when the connection broke may have been lost."""

    async def heard_something() -> bool:
        await connection.publish("echo", b"still here")
        with contextlib.suppress(BrokerUnavailableError):
            await connection.round_trip()
        return not heard.empty()

    await until(heard_something)
    assert heard.get_nowait() == b"still here"


async def read_loop_has_ended(connection: Connection) -> None:
    reading = connection._client._reading_task
    assert reading is not None
    await asyncio.wait({reading})


async def test_round_trip_fails_after_the_read_loop_has_ended(server: LateServer, connection: Connection) -> None:
    """The client calls itself connected and hears nothing: a message that it cannot parse has ended its read loop."""
    assert connection._watching is not None
    connection._watching.cancel()  # it would replace the connection before we have looked
    server.say(b"INFO {\r\n")
    await read_loop_has_ended(connection)
    assert connection.connected
    with pytest.raises(BrokerUnavailableError):
        await connection.round_trip()


async def test_ended_read_loop_is_replaced(
    server: LateServer, connection: Connection, heard: asyncio.Queue[bytes]
) -> None:
    server.say(b"INFO {\r\n")
    await read_loop_has_ended(connection)
    await works_again(connection, heard)
    assert connection.errors["replaced"] >= 1
    assert server.connections >= 2


@pytest.mark.parametrize("unsent", [0, 8_000_000])
async def test_half_open_connection_is_replaced(
    server: LateServer, connection: Connection, heard: asyncio.Queue[bytes], unsent: int
) -> None:
    """Also with more unsent data than the buffers on the way take, which an orderly close would wait for."""
    server.reads.clear()
    for _ in range(unsent // 1_000_000):
        await connection.publish("bulk", bytes(1_000_000))
    await works_again(connection, heard)
    assert connection.errors["replaced"] >= 1
    assert server.connections >= 2


async def test_half_open_connection_can_be_closed(
    server: LateServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its peer never takes what is buffered."""
    monkeypatch.setattr("fumehood.broker.connection._SILENT_ROUNDS", 1_000_000)
    server.reads.clear()
    connection._client._flush_timeout = 0.1  # of each large publish
    for _ in range(8):
        await connection.publish("bulk", bytes(1_000_000))
    await connection.close()
    assert connection.closed


async def test_subscription_that_could_not_be_drained_is_not_repeated(
    server: LateServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or tasks would be sent to a pull that has ended."""
    monkeypatch.setattr("fumehood.broker.connection._SILENT_ROUNDS", 1_000_000)
    subscription = await connection.subscribe("inbox", lambda message: None)
    server.answers.clear()
    await connection.unsubscribe(subscription)
    assert connection.errors["unsubscribe"] == 1
    assert subscription._id not in connection._client._subs


@pytest.mark.parametrize("greeting", [b"x" * 100_000, b""], ids=["broken", "silent"])
async def test_stuck_reconnect_is_started_again(
    server: LateServer, connection: Connection, heard: asyncio.Queue[bytes], greeting: bytes
) -> None:
    """A greeting that the client does not expect ends its reconnecting for good."""
    connection._client.options["connect_timeout"] = 3600  # or the client's own timeout would end the silence
    server.greetings.append(greeting)
    assert server.writer is not None
    server.writer.close()
    await works_again(connection, heard)
    assert connection.errors["replaced"] >= 1
    assert server.connections >= 3


@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_late_pong_keeps_the_connection(
    server: LateServer,
    connection: Connection,
    heard: asyncio.Queue[bytes],
    end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client of NATS alone would stop reading here, and call itself connected."""
    monkeypatch.setattr("fumehood.broker.connection._SILENT_ROUNDS", 1_000_000)
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


async def test_an_attempt_to_connect_that_loses_its_cancellation_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `asyncio.wait_for` of Python 3.11 does when the cancellation comes together with its answer."""

    connect = _Client.connect

    async def goes_on(client: _Client, **arguments: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await connect(client, **arguments)
        await asyncio.Event().wait()

    monkeypatch.setattr(_Client, "connect", goes_on)
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        await Connection.open(ConnectionOptions(("nats://127.0.0.1:1",), connect_timeout=0.01))
