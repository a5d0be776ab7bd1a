"""What a hostile sandbox does to the node's proxy and resolver: hold on to them, keep them busy, and go around."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.images.egress import EgressRules
from fumehood.sandbox.network import gate as gates
from fumehood.sandbox.network import own
from fumehood.sandbox.network import proxy as proxies
from fumehood.sandbox.network import resolver as resolvers
from fumehood.sandbox.network.accounts import Accounts
from fumehood.sandbox.network.addresses import Address
from fumehood.sandbox.network.client_hello import MAX_HELLO, MAX_RECORDS, HelloReader, NotAHelloError
from fumehood.sandbox.network.dns_message import Answer, Query, question_for
from fumehood.sandbox.network.gate import Gate, RefusedError
from fumehood.sandbox.network.resolver import Resolver
from fumehood.sandbox.network.targets import Target
from fumehood.sandbox.network.upstream import Upstream
from fumehood.sandbox.spec import Network
from tests.unit.proxy_world import ANSWER, HELLO, Names, hello, server_name, serving
from tests.waiting import until

# --- connections that are not read -------------------------------------------------------------------------

LEFT_OVER = 50_000
"""More than the kernel takes with the buffers below, and less than what makes a writer wait."""


def sockets() -> int:
    """Of this process."""
    found = 0
    for name in Path("/proc/self/fd").iterdir():
        try:
            found += str(name.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def small(one: socket.socket, buffer: int) -> None:
    one.setsockopt(socket.SOL_SOCKET, buffer, 2048)


async def call(port: int, said: bytes) -> socket.socket:
    """A client that asks, and never reads."""
    client, loop = socket.socket(), asyncio.get_running_loop()
    small(client, socket.SO_RCVBUF)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, said)
    return client


ASKING = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"


def answer_of(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


async def test_an_answer_that_is_not_read_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as long as it is open, and it is not open for long."""
    monkeypatch.setattr(proxies, "CLIENT_SECONDS", 0.5)
    async with serving(answer_of(LEFT_OVER)) as served:
        small(served.listener, socket.SO_SNDBUF)
        before = sockets()
        with await call(served.port, ASKING):
            await until(lambda: served.account.allowed == 1)
            await until(lambda: not served.account.tasks)
            await asyncio.sleep(0)
            assert sockets() == before + 1  # the client's own


async def test_who_reads_slowly_gets_all_the_same() -> None:
    async with serving(answer_of(LEFT_OVER)) as served:
        small(served.listener, socket.SO_SNDBUF)
        before = sockets()
        with await call(served.port, ASKING) as client:
            await until(lambda: served.account.allowed == 1 and sockets() == before + 2)  # the server has gone
            got, loop = b"", asyncio.get_running_loop()
            async with asyncio.timeout(60):
                while data := await loop.sock_recv(client, 65536):
                    got += data
    assert got.endswith(b"\r\n\r\n" + b"x" * LEFT_OVER)


@pytest.mark.parametrize("size", [LEFT_OVER, 1_000_000])
async def test_a_sandbox_that_ends_keeps_no_connection(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Whether there is still something to come, or only something to be read."""
    monkeypatch.setattr(proxies, "CLIENT_SECONDS", 3600.0)
    monkeypatch.setattr(proxies, "SERVER_SECONDS", 3600.0)
    async with serving(answer_of(size)) as served:
        small(served.listener, socket.SO_SNDBUF)
        before = sockets()
        with await call(served.port, ASKING):
            await until(lambda: len(served.received) == 1 and sockets() <= before + 4)
            assert len(served.account.tasks) == 1
            served.accounts.leave("s")
            await until(lambda: not served.proxy._tasks)
            await until(lambda: sockets() == before + 1)


async def test_names_that_are_not_read_keep_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolvers, "IDLE_SECONDS", 0.5)

    class Long(Upstream):
        async def ask(self, query: Query, *, over_tcp: bool) -> tuple[bytes, Answer]:
            return query.as_sent(0) + bytes(LEFT_OVER), Answer(0, False, (), ())

    accounts = Accounts()
    account = accounts.enter("s", Network.DNS_ONLY, "127.0.0.1")
    resolver = Resolver(accounts, Long())
    await resolver.start("127.0.0.1", 0)
    assert resolver._tcp is not None
    listener = resolver._tcp.sockets[0]
    small(listener, socket.SO_SNDBUF)
    before, question = sockets(), question_for("a.test", 16).as_sent(1)
    with await call(listener.getsockname()[1], len(question).to_bytes(2, "big") + question) as client:
        await until(lambda: account.allowed == 1)
        client.shutdown(socket.SHUT_WR)
        await until(lambda: not account.tasks)
        await asyncio.sleep(0)
        assert sockets() == before + 1
    await resolver.close()


# --- hellos that come in crumbs ----------------------------------------------------------------------------


def in_records(data: bytes, size: int) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


@pytest.mark.parametrize("size", [1, 2, 20])
def test_a_hello_in_crumbs_is_refused(size: int) -> None:
    """What it costs to put one together would grow with the square of their number."""
    crumbs = in_records(HELLO[5:], size)
    with pytest.raises(NotAHelloError, match="pieces"):
        server_name(crumbs[: (MAX_RECORDS + 1) * (5 + size)])


@given(st.lists(st.integers(1, 200), max_size=30))
def test_a_hello_that_comes_slowly_is_the_same(sizes: list[int]) -> None:
    reader, at = HelloReader(), 0
    for size in sizes:
        if at + size >= len(HELLO):
            break
        assert reader.feed(HELLO[at : at + size]) is None
        at += size
    assert reader.feed(HELLO[at:] + b"more") == "a.test"
    assert reader.said == HELLO + b"more"


def test_a_hello_without_end_is_given_up() -> None:
    reader = HelloReader()
    reader.feed(b"\x16\x03\x01\xff\xff\x01\x00\xff\xff")
    while len(reader.said) < MAX_HELLO - 1:
        assert reader.feed(b"x") is None
    with pytest.raises(NotAHelloError, match="too long"):
        reader.feed(b"x")


async def test_crumbs_through_the_proxy_are_a_denial() -> None:
    async with serving() as served:
        head = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
        assert await served.say(head, then=in_records(HELLO[5:], 1)) in (b"", b"reset")
        assert served.received in ([], [b""])
        assert "pieces" in served.account.denials[0]


# --- the machine itself ------------------------------------------------------------------------------------


def test_the_kernel_knows_what_is_ours() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.9", 9))
        assert own.is_own(ip_address(one.getsockname()[0]))
    assert own.is_own(ip_address("127.8.9.10"))
    assert own.is_own(ip_address("::1"))
    for elsewhere in ("192.0.2.254", "8.8.8.8", "2600::1"):
        assert not own.is_own(ip_address(elsewhere))


async def visit(monkeypatch: pytest.MonkeyPatch) -> RefusedError:
    """Ask for a name that leads to this machine, as if its address were a public one; somebody listens there."""
    monkeypatch.setattr(gates, "is_public", lambda _address: True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        gate = Gate(lambda: EgressRules.parse([f"a.test:{port}"]), Names(a="127.0.0.1"))
        with pytest.raises(RefusedError, match="this machine itself") as refused:
            await gate.connect(Target("a.test", port))
    return refused.value


async def test_the_machine_itself_is_not_even_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[object] = []
    real = asyncio.open_connection

    async def remember(*words: object) -> object:
        connected.append(words)
        return await real(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "open_connection", remember)
    refused = await visit(monkeypatch)
    assert (refused.status, refused.denied, connected) == (403, True, [])


async def test_an_address_that_became_ours_meanwhile_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "is_own", lambda _address: False)
    refused = await visit(monkeypatch)
    assert (refused.status, refused.denied) == (403, True)


async def test_when_the_kernel_does_not_tell_nothing_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_address: Address) -> bool:
        raise OSError(13, "prohibited")

    monkeypatch.setattr(gates, "is_own", silent)
    with pytest.raises(RefusedError, match="no way") as refused:
        await Gate(lambda: EgressRules.parse(["a.test:80"]), Names(a="8.8.8.8")).connect(Target("a.test", 80))
    assert refused.value.status == 502


# --- tunnels and bodies ------------------------------------------------------------------------------------

TUNNEL = b"CONNECT a.test:8443 HTTP/1.1\r\nHost: a.test:8443\r\n\r\n"


async def test_plain_http_is_not_tunnelled() -> None:
    """Inside of a tunnel its `Host` could be any site behind the same address."""
    async with serving() as served:
        said = await served.say(
            b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\nGET / HTTP/1.1\r\nHost: c.test\r\n\r\n"
        )
        assert said.startswith(b"HTTP/1.1 403 ") or said == b"reset"
        assert served.received == []
        assert (served.account.allowed, served.account.denied) == (0, 1)


@pytest.mark.parametrize(
    ("first", "passes"),
    [(HELLO, True), (b"SSH-2.0-x\r\n", True), (hello("b.test"), False), (hello(None), False), (b"\x16what", False)],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_tls_on_another_port_must_name_the_server_too(first: bytes, passes: bool, at_once: bool) -> None:
    async with serving() as served:
        said = await (served.say(TUNNEL + first) if at_once else served.say(TUNNEL, then=first))
        assert said.endswith(ANSWER) == passes
        assert served.received in (([first],) if passes else ([], [b""]))
        assert served.account.denied == int(not passes)


async def test_a_server_may_speak_first() -> None:
    async with serving(greets=b"220 hello\r\n") as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(TUNNEL)
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readline() == b"220 hello\r\n"
            writer.write(b"EHLO\r\n")
            assert await reader.read() == ANSWER
        writer.close()


async def test_a_body_has_one_length() -> None:
    async with serving() as served:
        head = (
            b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        said = await served.say(head)
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"Transfer-Encoding" in said
        assert served.received == []


# --- a policy that becomes stricter ------------------------------------------------------------------------


async def test_what_is_not_allowed_any_more_ends() -> None:
    async with serving() as served:
        tunnels = []
        for port in (443, 8443):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"CONNECT a.test:%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % port)
            await reader.readuntil(b"\r\n\r\n")
            tunnels.append((reader, writer))
        served.proxy.review()
        served.gate.now = EgressRules.parse(["a.test:443"])
        served.proxy.review()
        (kept, kept_writer), (ended, ended_writer) = tunnels
        async with asyncio.timeout(60):
            assert await ended.read() == b""
            assert served.account.denied == 1
            assert "a.test:8443: ended" in served.account.denials[0]
            kept_writer.write(HELLO)
            assert await kept.read() == ANSWER
        for writer in (kept_writer, ended_writer):
            writer.close()
        await until(lambda: not served.proxy._passages)
