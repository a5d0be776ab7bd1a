"""A caller of the server's door that costs next to nothing itself: HTTP/1.1 over connections that are kept.

A client of the common kind takes about as long for one request as a bare round trip does in all (0.2 to 0.3 ms on two
cores), and would be measured instead of the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, cast
from urllib.parse import urlsplit

from bench.world import BenchError
from fumehood.wire.command_api import COMMANDS_PATH, CommandStatus
from fumehood.wire.console.codes import Capability

ANSWER_SECONDS = 60.0
TIMEOUT_MS = 30_000
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        found = _read(self._got)
        if found is not None and self._answer is not None and not self._answer.done():
            self._got.clear()
            self._answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    @property
    def closed(self) -> bool:
        """A server does not keep what nobody uses."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def _read(got: bytearray) -> tuple[int, bytes] | None:
    """Status and body, once all of it is there."""
    end = got.find(_HEAD_END)
    if end < 0:
        return None
    head, begin = bytes(got[:end]), end + len(_HEAD_END)
    length = _LENGTH.search(head)
    if length is None or _CHUNKED.search(head):
        raise BenchError("an answer without a length")
    if len(got) < begin + int(length[1]):
        return None
    return int(head.split(b" ", 2)[1]), bytes(got[begin:])


class Caller:
    """Use with `async with`."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._head = f"host: {parts.netloc}\r\nauthorization: Bearer {token}\r\n"
        self._free: list[_Connection] = []

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._free:
            connection.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        kind = "content-type: application/json\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}content-length: {len(body)}\r\n\r\n"
        connection = await self._connection()
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await connection.ask(head.encode() + body)
        self._free.append(connection)
        return answer

    async def json(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        """For what is not timed; anything but success is a `BenchError`."""
        status, body = await self.ask(method, path, b"" if document is None else json.dumps(document).encode())
        if not 200 <= status < 300:
            raise BenchError(f"{method} {path}: {status} {body.decode(errors='replace')}")
        found: dict[str, Any] = json.loads(body or b"{}")
        return found

    async def echo(self, payload: bytes) -> float:
        """Seconds of one; its answer is compared byte for byte."""
        body = b'{"capability":"%b","payload":%b,"timeout_ms":%d}' % (_ECHO, payload, TIMEOUT_MS)
        began = time.perf_counter()
        status, answer = await self.ask("POST", COMMANDS_PATH, body)
        seconds = time.perf_counter() - began
        if status != 200 or b'"result":' + payload not in answer or _SUCCEEDED not in answer:
            raise BenchError(f"a wrong answer to {payload!r}: {status} {answer!r}")
        return seconds

    async def _connection(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return connection


_ECHO = Capability.ECHO.value.encode()
_SUCCEEDED = f'"status":"{CommandStatus.SUCCEEDED.value}"'.encode()
