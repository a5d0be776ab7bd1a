"""An egress proxy over real sockets, with a server behind it and names that lead where a test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_address

from fumehood.images.egress import EgressRules
from fumehood.sandbox.network.accounts import Accounts
from fumehood.sandbox.network.addresses import Address
from fumehood.sandbox.network.client_hello import HelloReader
from fumehood.sandbox.network.gate import Gate
from fumehood.sandbox.network.proxy import Proxy
from fumehood.sandbox.network.relay import Stream
from fumehood.sandbox.network.targets import Target
from fumehood.sandbox.network.upstream import NoAddressError, Upstream
from fumehood.sandbox.spec import Network


def hello(name: str | None) -> bytes:
    """The first bytes of a real TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = hello("a.test")


def server_name(data: bytes) -> str | None:
    """What is found in bytes that come all at once."""
    return HelloReader().feed(data)


class Names(Upstream):
    """Says where names lead, without asking anybody."""

    def __init__(self, **names: str) -> None:
        super().__init__()
        self.names = names
        self.asked: list[str] = []

    async def addresses(self, name: str) -> tuple[Address, ...]:
        self.asked.append(name)
        found = tuple(ip_address(text) for text in self.names.get(name.partition(".")[0], "").split())
        if not found:
            raise NoAddressError(name)
        return found


RULES = EgressRules.parse(["a.test:80", "a.test:443", "a.test:8443", "b.test:80"])


class OpenGate(Gate):
    """Judges by the rules, and connects to a server of the test's."""

    def __init__(self, port: int) -> None:
        self.now = RULES
        super().__init__(lambda: self.now, Names(a="8.8.8.8", b="8.8.8.8"))
        self._port = port

    async def connect(self, target: Target) -> Stream:
        if not self.allows(target):
            return await super().connect(target)
        return await asyncio.open_connection("127.0.0.1", self._port)


class Served:
    def __init__(self, accounts: Accounts, proxy: Proxy, gate: OpenGate, received: list[bytes]) -> None:
        assert proxy._server is not None
        self.accounts, self.proxy, self.gate, self.received = accounts, proxy, gate, received
        self.listener = proxy._server.sockets[0]
        self.port = int(self.listener.getsockname()[1])
        self.account = accounts.enter("s", Network.RESTRICTED, "127.0.0.1")

    async def say(self, data: bytes, *, then: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            if then:
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                writer.write(then)
            async with asyncio.timeout(60):
                return await reader.read()
        except ConnectionResetError:
            return b"reset"
        finally:
            writer.close()


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nX-A: b\r\n\r\nhello"


@contextlib.asynccontextmanager
async def serving(answer: bytes = ANSWER, *, greets: bytes = b"") -> AsyncIterator[Served]:
    """The server behind it says `greets` first, if anything, and `answer` to the first that it hears."""
    received: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greets)
        with contextlib.suppress(OSError):
            received.append(await reader.read(65536))
            writer.write(answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    serving_now: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving_now.add(asyncio.create_task(server(reader, writer)))

    upstream = await asyncio.start_server(connected, "127.0.0.1", 0)
    accounts = Accounts()
    gate = OpenGate(upstream.sockets[0].getsockname()[1])
    proxy = Proxy(accounts, gate)
    await proxy.start("127.0.0.1", 0)
    try:
        yield Served(accounts, proxy, gate, received)
    finally:
        await proxy.close()
        upstream.close()
        await asyncio.gather(*serving_now)
