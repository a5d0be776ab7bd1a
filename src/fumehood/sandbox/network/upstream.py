"""Asking the resolvers that the node itself uses.

Each question goes out on a socket of its own, with an identity of its own, to one server after the other; only that
server's answer to that question is read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from fumehood.errors import ConfigurationError
from fumehood.sandbox.network.addresses import Address
from fumehood.sandbox.network.dns_message import (
    AAAA,
    NOERROR,
    SERVFAIL,
    A,
    Answer,
    DnsError,
    Query,
    question_for,
    read_answer,
)

SERVER_SECONDS: Final = 2.0
MAX_SERVERS: Final = 3
"""As many as the C library asks."""
RESOLV_CONF: Final = Path("/etc/resolv.conf")

Server = tuple[str, int]


class NoAddressError(Exception):
    """A name leads nowhere, or nobody could be asked."""


def parse_server(text: str) -> Server:
    """`ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`."""
    bare, colon, port = text.rpartition(":")
    if text.startswith("[") and bare.endswith("]"):
        host = bare[1:-1]
    elif colon and bare.count(":") == 0:
        host = bare
    elif text.startswith("[") and text.endswith("]"):
        host, port = text[1:-1], "53"
    else:
        host, port = text, "53"
    try:
        address, number = str(ip_address(host)), int(port)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no resolver: it must be ADDRESS or ADDRESS:PORT") from None
    if not 1 <= number <= 65_535:
        raise ConfigurationError(f"{text!r} is no resolver: its port is not from 1 to 65535")
    return address, number


def host_servers(path: Path = RESOLV_CONF) -> list[Server]:
    """The host's own resolvers, as they are now: a laptop changes them under way."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    found = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    return [(address, 53) for address in found if _is_address(address)][:MAX_SERVERS]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class Upstream:
    """The servers that answer for this node."""

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._named = [parse_server(text) for text in servers][:MAX_SERVERS]

    def servers(self) -> list[Server]:
        return self._named or host_servers()

    async def ask(self, query: Query, *, over_tcp: bool) -> tuple[bytes, Answer]:
        """The first answer of any server, as it came and as it reads; `DnsError` when there is none."""
        for server in self.servers():
            identity = secrets.randbelow(0x10000)
            exchange = _over_tcp if over_tcp else _over_udp
            try:
                async with asyncio.timeout(SERVER_SECONDS):
                    data = await exchange(server, query.as_sent(identity))
                return data, read_answer(data, query, identity)
            except (TimeoutError, OSError, DnsError, asyncio.IncompleteReadError):
                continue
        raise DnsError(SERVFAIL)

    async def addresses(self, name: str) -> tuple[Address, ...]:
        """All addresses of a name, IPv4 first."""
        both = await asyncio.gather(self._addresses(name, A), self._addresses(name, AAAA), return_exceptions=True)
        found: list[Address] = []
        for one in both:
            if isinstance(one, DnsError):
                continue
            if isinstance(one, BaseException):
                raise one
            found += one
        if not found:
            raise NoAddressError(name)
        return tuple(found)

    async def _addresses(self, name: str, kind: int) -> tuple[Address, ...]:
        query = question_for(name, kind)
        _, answer = await self.ask(query, over_tcp=False)
        if answer.truncated:
            _, answer = await self.ask(query, over_tcp=True)
        return answer.addresses if answer.rcode == NOERROR else ()


async def _over_udp(server: Server, message: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: _OneAnswer(answer), remote_addr=server)
    try:
        transport.sendto(message)
        return await answer
    finally:
        transport.close()


class _OneAnswer(asyncio.DatagramProtocol):
    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._answer.done():
            self._answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc)


async def _over_tcp(server: Server, message: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(message).to_bytes(2, "big") + message)
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(2), "big")
        return await reader.readexactly(length)
    finally:
        writer.transport.abort()
