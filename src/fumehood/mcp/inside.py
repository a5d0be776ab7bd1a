"""The server's own API, asked from inside its process: the same guards, rules and audit as for anybody, and no socket.

httpx has a transport for this that gives an answer when all of it is there, which a stream of events never is. Here the
answer is taken piece by piece, each when the one before it was read, and whoever hangs up is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

LEAVE_SECONDS = 5.0
"""For the application to notice that nobody listens any more."""


class InsideTransport(httpx.AsyncBaseTransport):
    """Requests as calls of an ASGI application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request)
        read = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(read):
                status, headers = await exchange.head()
        except TimeoutError:
            await exchange.aclose()
            raise httpx.ReadTimeout("no answer in time", request=request) from None
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(exchange, read), request=request)


class _Exchange:
    """One request and its answer. The application runs in a task of its own, which goes with whoever asked."""

    def __init__(self, app: App, request: httpx.Request) -> None:
        self._request = request
        self._body = aiter(request.stream)  # type: ignore[arg-type]  # of an asynchronous client it is one
        self._sent = False
        self._over = False
        self._left = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        self._task = asyncio.ensure_future(self._run(app))

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        message = await self._next()
        return message["status"], list(message.get("headers", ()))

    async def piece(self) -> bytes | None:
        """The next of the body; None: that was all of it."""
        if self._over:
            return None
        message = await self._next()
        self._over = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def _next(self) -> Message:
        """What the application says next, as long as it runs."""
        getting = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait({getting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not getting.done():
                getting.cancel()
        if getting.done() and not getting.cancelled():
            return getting.result()
        try:
            return self._messages.get_nowait()
        except asyncio.QueueEmpty:
            raise httpx.RemoteProtocolError("the answer broke off", request=self._request) from None

    async def aclose(self) -> None:
        self._left.set()
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=LEAVE_SECONDS)

    async def _run(self, app: App) -> None:
        """The application tells its own log what broke; whoever asked gets no answer, as over a socket."""
        with contextlib.suppress(Exception):
            await app(self._scope(), self._receive, self._send)

    def _scope(self) -> Scope:
        url = self._request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port),
            "client": None,
            "root_path": "",
        }

    async def _receive(self) -> Message:
        if self._sent:
            await self._left.wait()
            return {"type": "http.disconnect"}
        try:
            piece = await anext(self._body)
        except StopAsyncIteration:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _send(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "http.response.body"):
            await self._messages.put(message)


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange, seconds: float | None) -> None:
        self._exchange = exchange
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    piece = await self._exchange.piece()
            except TimeoutError:
                raise httpx.ReadTimeout("the answer did not go on") from None
            if piece is None:
                return
            if piece:
                yield piece

    async def aclose(self) -> None:
        await self._exchange.aclose()
