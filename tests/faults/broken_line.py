"""A line to a server that swallows what the server says, and then breaks: what was on its way is gone for good.

Killing a server does not show this, since it takes its consumers along; a cut connection seldom, since what was sent
has mostly arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class BrokenLine:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._swallowing = False
        self._after: bytes | None = None
        self._news = asyncio.Event()
        self.swallowed = b""
        self.port = 0

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
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_server = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, to_server[1]}
        for source, target, heard in ((reader, to_server[1], False), (to_server[0], writer, True)):
            task = asyncio.create_task(self._pump(source, target, said_by_server=heard))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, said_by_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if said_by_server and self._swallowing:
                    self.swallowed += data
                    self._news.set()
                    continue
                target.write(data)
                await target.drain()
                if said_by_server and self._after is not None and self._after in data:
                    self._swallowing, self._after = True, None
        target.close()
