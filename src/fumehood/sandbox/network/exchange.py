"""One plain HTTP request through the proxy: taken apart, written anew to the server, and its answer likewise.

Nothing passes that was not understood, so that client, proxy and server cannot disagree about where a request ends or
for which host it is meant. One request for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import h11

from fumehood.sandbox.network.gate import RefusedError
from fumehood.sandbox.network.relay import CHUNK, IDLE_SECONDS, Alive, Stream, patience
from fumehood.sandbox.network.targets import HTTP_PORT, Target

MAX_HEAD: Final = 32 * 1024
_HOP: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
"""Headers that are for the next program and not for the one at the end."""

Headers = Iterable[tuple[bytes, bytes]]


class Side:
    """One end: a connection and what HTTP makes of it."""

    def __init__(self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.reader, self.writer = stream
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)

    async def receive(self) -> object:
        """The next thing that the other end says; `h11.RemoteProtocolError` when it makes no sense."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.reader.read(CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()


def check_framing(request: h11.Request) -> None:
    """Two ways to tell where a body ends are one too many: the next program might go by the other one."""
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise RefusedError(400, "Content-Length together with Transfer-Encoding: send one of them")


async def exchange(client: Side, request: h11.Request, target: Target, stream: Stream) -> None:
    """The rest of a request whose head was read, and the whole answer."""
    server = Side(stream, h11.CLIENT)
    async with patience(IDLE_SECONDS) as alive:
        await server.send(_request(request, target))
        body = asyncio.ensure_future(_pass_on(client, server, alive))
        try:
            await _answer(client, server, alive)
        except h11.RemoteProtocolError:
            raise RefusedError(502, f"{target} answered something else than HTTP") from None
        finally:
            body.cancel()
            await asyncio.gather(body, return_exceptions=True)


async def _answer(client: Side, server: Side, alive: Alive) -> None:
    while not isinstance(event := await server.receive(), h11.Response):
        alive()
        if not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("no answer")
    headers = [*_end_to_end(event.headers.raw_items()), (b"connection", b"close")]
    await client.send(h11.Response(status_code=event.status_code, headers=headers, reason=event.reason))
    await _pass_on(server, client, alive)


async def _pass_on(one: Side, other: Side, alive: Alive) -> None:
    """A body, piece by piece."""
    while True:
        event = await one.receive()
        alive()
        if isinstance(event, h11.Data):
            await other.send(h11.Data(data=event.data))
        elif isinstance(event, h11.EndOfMessage):
            await other.send(h11.EndOfMessage())
            return
        else:
            raise h11.RemoteProtocolError("the body is cut short")


def _request(request: h11.Request, target: Target) -> h11.Request:
    host = target.host if target.port == HTTP_PORT else str(target)
    headers = [(b"host", host.encode()), *_end_to_end(request.headers.raw_items()), (b"connection", b"close")]
    return h11.Request(method=request.method, target=target.path, headers=headers)


def _end_to_end(headers: Headers) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    named = {
        word.strip().lower() for name, value in found if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in found if name.lower() not in _HOP | named | {b"host"}]
