"""The server name in the first message of a TLS client. Pure; nothing is decrypted.

A client may say one name to the proxy and another one to the server, and a server of many names then serves the other
one. So the two are compared. (Names that a client hides, by ECH, and the `Host` inside of the encrypted stream cannot
be seen by anybody in between: docs/explanation/networks.md says what that means.)
"""

from __future__ import annotations

from typing import Final

MAX_HELLO: Final = 16 * 1024
"""Bytes, records' headers included. Hellos with post-quantum keys take about 2 KiB."""
MAX_RECORDS: Final = 8
"""Clients send one. Some cut it in two or three, so that those in between who do not put it together see no name."""

HANDSHAKE: Final = 22
"""The first byte of every TLS connection."""
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0


class NotAHelloError(Exception):
    """These bytes are not the beginning of TLS, or name no server."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise NotAHelloError("the TLS hello is cut short")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> _Reader:
        """What a length of `size` bytes announces."""
        return _Reader(self.take(self.number(size)))


class HelloReader:
    """Puts a hello together from what comes, as it comes. Each byte is looked at once, however few come at a time."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._body = bytearray()
        self._at = 0
        """Where the record begins that is not all there yet."""
        self._records = 0

    @property
    def said(self) -> bytes:
        """All that came."""
        return bytes(self._said)

    def feed(self, data: bytes) -> str | None:
        """The name, in lower case; `None` while more bytes are needed. Raises when there will never be one."""
        self._said += data
        while (record := self._record()) is not None:
            self._body += record
            if self._body[0] != _CLIENT_HELLO:
                raise NotAHelloError("the connection does not begin with a TLS hello")
            if len(self._body) >= 4 and len(self._body) - 4 >= int.from_bytes(self._body[1:4], "big"):
                return _name_in(bytes(self._body[4 : 4 + int.from_bytes(self._body[1:4], "big")]))
        if len(self._said) >= MAX_HELLO:
            raise NotAHelloError("the TLS hello is too long")
        return None

    def _record(self) -> bytes | None:
        """What is in the next record, once it is all there."""
        head = bytes(self._said[self._at : self._at + 5])
        if head[:1] not in (b"", bytes([HANDSHAKE])) or head[1:2] not in (b"", b"\x03"):
            raise NotAHelloError("the connection does not begin with TLS")
        if len(head) < 5:
            return None
        length = int.from_bytes(head[3:], "big")
        if length == 0:
            raise NotAHelloError("the connection begins with an empty TLS record")
        end = self._at + 5 + length
        if len(self._said) < end:
            return None
        self._records += 1
        if self._records > MAX_RECORDS:
            raise NotAHelloError(f"the TLS hello is in more than {MAX_RECORDS} pieces")
        self._at, start = end, self._at + 5
        return bytes(self._said[start:end])


def _name_in(hello: bytes) -> str:
    reader = _Reader(hello)
    reader.take(2 + 32)  # version, random
    reader.block(1)  # session
    reader.block(2)  # ciphers
    reader.block(1)  # compressions
    if not reader.left:
        raise NotAHelloError("the TLS hello names no server")
    extensions = reader.block(2)
    names = []
    while extensions.left:
        kind, content = extensions.number(2), extensions.block(2)
        if kind == _SERVER_NAME:
            names.append(_one_name(content))
    if len(names) != 1:
        raise NotAHelloError("the TLS hello names no server, or several")
    return names[0]


def _one_name(content: _Reader) -> str:
    entries = content.block(2)
    kind, name = entries.number(1), entries.block(2)
    if kind != _HOST_NAME or entries.left or content.left:
        raise NotAHelloError("the TLS hello names its server in no known way")
    try:
        return name.take(name.left).decode("ascii").lower().removesuffix(".")
    except UnicodeDecodeError:
        raise NotAHelloError("the TLS hello's server name is not ASCII") from None
