"""A TCP line to a NATS server on which a test can lose, delay, freeze and spoil what is said.

Killing a server does not show this, since it takes its consumers along; a cut connection seldom, since what was sent
has mostly arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class _Pair:
    """One connection of a client, and the one to the server behind it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.frozen = False
        self.late_pongs: list[bytes] = []

    def close(self) -> None:
        self.client.close()
        self.server.close()


class BrokenLine:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._pairs: set[_Pair] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._swallowing = False
        self._after: bytes | None = None
        self._held_pings = 0
        self._news = asyncio.Event()
        self.swallowed = b""
        self.port = 0
        self.connections = 0
        """Made since the beginning."""
        self.delayed = 0
        """PONGs that came late."""

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[BrokenLine]:
        host, _, port = url.rpartition("/")[2].rpartition(":")
        line = cls(host, int(port))
        listener = await asyncio.start_server(line._connected, "127.0.0.1", 0)
        line.port = listener.sockets[0].getsockname()[1]
        try:
            yield line
        finally:
            listener.close()
            line.cut()
            await asyncio.gather(*line._pumps, return_exceptions=True)

    def swallow(self, *, after: bytes | None = None) -> None:
        """From now on, or once it has said `after`, nothing that the server says gets through."""
        self.swallowed, self._swallowing, self._after = b"", after is None, after

    async def has_swallowed(self, what: bytes) -> None:
        while what not in self.swallowed:
            self._news.clear()
            await self._news.wait()

    def cut(self) -> None:
        """End all connections; the next ones are sound."""
        self._swallowing = False
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()

    def freeze(self) -> None:
        """Leave the present connections half open: neither side hears anything again. The next ones are sound."""
        for pair in self._pairs:
            pair.frozen = True

    def end_reading(self) -> None:
        """Say something to each client that ends its read loop with an error that it does not expect."""
        for pair in self._pairs:
            pair.client.write(b"INFO {\r\n")

    def delay_pongs(self, pings: int) -> None:
        """Hold back every PONG until the clients of this line have sent so many PINGs."""
        self._held_pings = pings

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            from_server, to_server = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        pair = _Pair(writer, to_server)
        self._pairs.add(pair)
        for pump in (self._from_client(reader, pair), self._from_server(from_server, pair)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _from_client(self, source: asyncio.StreamReader, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if pair.frozen:
                    continue
                pair.server.write(data)
                await pair.server.drain()
                if self._held_pings and b"PING\r\n" in data:
                    self._held_pings -= 1
        pair.server.close()

    async def _from_server(self, source: asyncio.StreamReader, pair: _Pair) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await _protocol_message(source):
                if self._swallowing:
                    self.swallowed += data
                    self._news.set()
                elif data == b"PONG\r\n" and self._held_pings:
                    pair.late_pongs.append(data)
                    self.delayed += 1
                elif not pair.frozen:
                    late, pair.late_pongs = ([], pair.late_pongs) if self._held_pings else (pair.late_pongs, [])
                    pair.client.write(b"".join(late) + data)
                    await pair.client.drain()
                    if self._after is not None and self._after in data:
                        self._swallowing, self._after = True, None
        if not pair.frozen:
            pair.client.close()


async def _protocol_message(source: asyncio.StreamReader) -> bytes:
    """One line of the protocol, with the payload that belongs to it. Empty at the end."""
    line = await source.readline()
    words = line.split()
    if words and words[0] in (b"MSG", b"HMSG"):
        line += await source.readexactly(int(words[-1]) + 2)
    return line
