"""The egress proxy of sandboxes with the profile `restricted`: HTTP and CONNECT, by name, and nothing else gets out.

It listens on the bridge's own address, outside of every sandbox. Who asks is told by the address that it comes from;
what it may have is the `Gate`'s to say. Every decision is counted for the evidence of the sandbox's run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Final

import h11

from fumehood.errors import NetworkUnavailableError
from fumehood.images.egress import EgressRules
from fumehood.sandbox.network.accounts import Account, Accounts
from fumehood.sandbox.network.client_hello import HANDSHAKE, HelloReader, NotAHelloError
from fumehood.sandbox.network.exchange import Side, check_framing, exchange
from fumehood.sandbox.network.gate import Gate, RefusedError
from fumehood.sandbox.network.relay import CHUNK, Stream, end_of, let_go, relay
from fumehood.sandbox.network.ruleset import PROXY_PORT
from fumehood.sandbox.network.targets import BadTargetError, Target, absolute_target, connect_target, shown_target

CONNECTIONS_OF_ONE: Final = 64
CONNECTIONS_OF_ALL: Final = 1024
HEAD_SECONDS: Final = 30.0
"""For a request's head, and for the first message of TLS after it."""
CLIENT_SECONDS: Final = 60.0
SERVER_SECONDS: Final = 5.0
"""For either end to read the last that was sent to it. It counts as a connection meanwhile; programs pause, and a
download must not lose its end."""
TLS_PORT: Final = 443
CONNECT: Final = "CONNECT"

_REASONS: Final = {400: b"Bad Request", 403: b"Forbidden", 502: b"Bad Gateway", 503: b"Service Unavailable"}


class Proxy:
    """One listener on one address."""

    def __init__(self, accounts: Accounts, gate: Gate) -> None:
        self._accounts = accounts
        self._gate = gate
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._passages: dict[asyncio.Task[None], tuple[Account, Target]] = {}
        self._reviewed: EgressRules | None = None

    async def start(self, address: str, port: int = PROXY_PORT) -> None:
        try:
            self._server = await asyncio.start_server(self._connected, address, port, limit=CHUNK)
        except OSError as error:
            raise NetworkUnavailableError(
                f"the proxy of sandboxes cannot listen on {address} port {port} ({error.strerror}): "
                "another program that listens there must be told not to"
            ) from error

    @property
    def port(self) -> int:
        """The one that it listens on, which the kernel chose where 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        account = self._accounts.at(end_of(writer))
        if account is None:
            writer.transport.abort()
        elif len(account.tasks) >= CONNECTIONS_OF_ONE or len(self._tasks) >= CONNECTIONS_OF_ALL:
            writer.write(_plain_answer(503, "too many connections at once"))
            writer.transport.abort()  # what the kernel took of it is sent; the rest must not keep it open
        else:
            task = asyncio.create_task(self._serve(account, (reader, writer)), name="proxy.connection")
            for tasks in (account.tasks, self._tasks):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _serve(self, account: Account, stream: Stream) -> None:
        client = Side(stream, h11.SERVER)
        try:
            with contextlib.suppress(OSError, TimeoutError, h11.ProtocolError):
                try:
                    await self._judge(account, client)
                except RefusedError as refused:
                    await _refuse(client, refused)
        finally:
            await let_go(client.writer, CLIENT_SECONDS)

    async def _judge(self, account: Account, client: Side) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            request = await _head(client)
        method = _method(request)
        asked = request.target.decode("ascii", "replace")
        try:
            target = connect_target(asked) if method == CONNECT else absolute_target(asked)
        except BadTargetError as error:
            account.deny(f"{method[:20]} {shown_target(asked)!a}: {error}")
            raise RefusedError(403, str(error), denied=True) from None
        with self._passing(account, target):
            await self._pass(account, client, request, target)

    async def _pass(self, account: Account, client: Side, request: h11.Request, target: Target) -> None:
        try:
            server = await self._gate.connect(target)
        except RefusedError as refused:
            if refused.denied:
                account.deny(f"{_method(request)[:20]} {target}: {refused.sentence}")
            raise
        try:
            if _method(request) == CONNECT:
                await self._tunnel(account, client, target, server)
            else:
                account.allow()
                await exchange(client, request, target, server)
        finally:
            await let_go(server[1], SERVER_SECONDS)

    async def _tunnel(self, account: Account, client: Side, target: Target, server: Stream) -> None:
        client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        early = client.http.trailing_data[0]
        try:
            if target.port == TLS_PORT:
                server[1].write(await _greeting(client.reader, early, target))
                account.allow()
                await relay((client.reader, client.writer), server)
            else:
                account.allow()
                opening = partial(_opening, client.reader, early, target)
                await relay((client.reader, client.writer), server, opening=opening)
        except NotAHelloError as error:
            account.deny(f"CONNECT {target}: {error}")
            client.writer.transport.abort()

    # --- when the policy changes ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _passing(self, account: Account, target: Target) -> Iterator[None]:
        """Known from before it is judged: no change of the rules can slip in between."""
        task = asyncio.current_task()
        assert task is not None
        self._passages[task] = account, target
        try:
            yield
        finally:
            del self._passages[task]

    def review(self) -> None:
        """End what was allowed and is not any more. To be called every now and then."""
        rules = self._gate.rules()
        if rules == self._reviewed:
            return
        self._reviewed = rules
        for task, (account, target) in self._passages.items():
            if not self._gate.allows(target):
                account.deny(f"{target}: ended, since this node's policy does not allow it any more")
                task.cancel()


async def _head(client: Side) -> h11.Request:
    try:
        event = await client.receive()
    except h11.RemoteProtocolError as error:
        raise RefusedError(400, f"this is not a request to a proxy: {error}") from None
    if not isinstance(event, h11.Request):
        raise ConnectionResetError("the client has gone")
    check_framing(event)
    return event


async def _opening(reader: asyncio.StreamReader, early: bytes, target: Target) -> bytes:
    """What a client says first where TLS is not a must: if it is TLS, it must name the server all the same."""
    first = early or await reader.read(CHUNK)
    return await _greeting(reader, first, target) if first[:1] == bytes([HANDSHAKE]) else first


async def _greeting(reader: asyncio.StreamReader, early: bytes, target: Target) -> bytes:
    """The first bytes of a TLS client, once they name the server that the proxy was asked for."""
    hello, more = HelloReader(), early
    async with asyncio.timeout(HEAD_SECONDS):
        while (name := hello.feed(more)) is None:
            more = await reader.read(CHUNK)
            if not more:
                raise NotAHelloError("the connection ended before TLS began")
    if name != target.host:
        raise NotAHelloError(f"TLS names another server, {name[:100]!a}")
    return hello.said


def _method(request: h11.Request) -> str:
    return request.method.decode("ascii", "replace")


async def _refuse(client: Side, refused: RefusedError) -> None:
    """A plain answer, where one can still be given."""
    if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    client.writer.write(_plain_answer(refused.status, refused.sentence))
    await client.writer.drain()


def _plain_answer(status: int, sentence: str) -> bytes:
    body = f"fumehood: {sentence}\n".encode()
    head = b"HTTP/1.1 %d %s\r\n" % (status, _REASONS[status])
    fields = b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    return head + fields + body
