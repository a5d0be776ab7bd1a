"""The engine's attach stream as a warden's transport.

The engine wraps what a container writes in frames of its own: one byte for the stream, three zero bytes, a
big-endian length. The warden speaks on stream 1; stream 2 carries its last words when it cannot start.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from fumehood.errors import DeadlineExceededError, EngineStatusError, EngineUnavailableError, SandboxNotFoundError
from fumehood.sandbox.docker.engine import API_VERSION

READ_SIZE = 256 * 1024
LAST_WORDS = 4096
_HEADER = struct.Struct(">BxxxI")


class Demultiplexer:
    """Takes the engine's framing apart, whatever the pieces."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0
        self.errors = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What of this piece belongs to stream 1."""
        out: list[memoryview] = []
        view = memoryview(data)
        while view:
            if self._left == 0:
                need = _HEADER.size - len(self._header)
                self._header += view[:need]
                view = view[need:]
                if len(self._header) < _HEADER.size:
                    break
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._stream == 1:
                out.append(piece)
            elif len(self.errors) < LAST_WORDS:
                self.errors += piece[: LAST_WORDS - len(self.errors)]
        return b"".join(out)


class AttachTransport:
    """One attachment to one container."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._demultiplexer = Demultiplexer()

    @property
    def last_words(self) -> str:
        return self._demultiplexer.errors.decode("utf-8", "replace").strip()

    async def read(self) -> bytes:
        while raw := await self._reader.read(READ_SIZE):
            if data := self._demultiplexer.feed(raw):
                return data
        return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()


async def attach(socket: Path, container: str, *, seconds: float) -> AttachTransport:
    """Attach to a container, running or not yet started."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(str(socket), limit=4 * READ_SIZE)
            try:
                writer.write(_request(container))
                head = await reader.readuntil(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
                if status == 404:
                    raise SandboxNotFoundError("the engine knows no such sandbox")
                if status not in (101, 200):
                    raise EngineStatusError(status, "the engine refused to attach")
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError:
        raise DeadlineExceededError(f"the container engine did not attach within {seconds:g} s") from None
    except (OSError, asyncio.IncompleteReadError) as error:
        raise EngineUnavailableError("the container engine does not answer") from error
    return AttachTransport(reader, writer)


def _request(container: str) -> bytes:
    return (
        f"POST /{API_VERSION}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
        "Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
    ).encode()
