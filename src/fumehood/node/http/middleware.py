"""What happens to every request before a route sees it, from the outside in.

`Edge` gives it an id and catches what nobody else caught; `Authentication` decides before a byte of the body is
read; `BodyBound` counts and times the body while it is read; `Tracing` goes on with the caller's trace. They are
plain ASGI: the framework's own helper for middlewares would tie a job to the life of its connection.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Collection
from contextlib import suppress

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.errors import PayloadTooLargeError
from fumehood.node.http.problems import REQUEST_ID, RequestTimeoutError, internal_problem, problem, request_id_of
from fumehood.node.http.tokens import TokenSource
from fumehood.node.telemetry import Telemetry

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 4 * 1024 * 1024


def _choose_id(headers: Headers) -> str:
    """The caller's id if it is one and harmless; it goes into logs and answers."""
    given = headers.getlist("x-request-id")
    return given[0] if len(given) == 1 and _SANE_ID.fullmatch(given[0]) else uuid.uuid4().hex


def _announced_length(headers: Headers) -> int:
    """What the caller says of its body; good enough to refuse early, never to let anything through."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 10**18


class Edge:
    """The outermost: request id, metrics, the last catch, and no connection left in doubt."""

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry, routes: Collection[str], body_limit: int) -> None:
        self._app = app
        self._telemetry = telemetry
        self._routes = frozenset(routes)
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = _choose_id(Headers(scope=scope))
        exchange = _Exchange(scope, receive, send, self._body_limit)
        with structlog.contextvars.bound_contextvars(request_id=request_id_of(scope)):
            await self._guarded(scope, exchange)
        self._count(scope, exchange.status)

    async def _guarded(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            return
        except Exception:
            self._telemetry.log.exception("http.failed", path=self._route(scope))
            if exchange.status is not None:
                raise
            await internal_problem(request_id_of(scope))(scope, exchange.receive, exchange.send)

    def _route(self, scope: Scope) -> str:
        return scope["path"] if scope["path"] in self._routes else "other"

    def _count(self, scope: Scope, status: int | None) -> None:
        method = scope["method"] if scope["method"] in _KNOWN_METHODS else "other"
        self._telemetry.metrics.http_requests.labels(self._route(scope), method, str(status or "none")).inc()


class _Exchange:
    """One request and its answer, watched from outside."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, body_limit: int) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._body_limit = body_limit
        self._body_read = False
        self.status: int | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self._body_read |= not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = request_id_of(self._scope)
            if not self._body_read and self._body_may_be_long():
                headers["connection"] = "close"
        await self._send(message)

    def _body_may_be_long(self) -> bool:
        """A short unread body is thrown away by the server, and the connection lives on. Others end with it."""
        headers = Headers(scope=self._scope)
        if "transfer-encoding" in headers or "expect" in headers:
            return True
        return _announced_length(headers) > self._body_limit


class Authentication:
    """Lets in who bears a valid token, decided before a byte of the body is read."""

    def __init__(self, app: ASGIApp, *, tokens: TokenSource, open_paths: Collection[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist("authorization")
        if self._tokens.accepts(given[0] if len(given) == 1 else None):
            await self._app(scope, receive, send)
            return
        challenge = 'Bearer realm="fumehood"' + (', error="invalid_token"' if given else "")
        detail = "the bearer token is wrong or expired" if given else "a bearer token is needed"
        headers = {"www-authenticate": challenge}
        await problem("unauthenticated", detail, request_id_of(scope), headers)(scope, receive, send)


class BodyBound:
    """Ends requests whose body is too long, whatever a header says, or comes too slowly."""

    def __init__(self, app: ASGIApp, *, limit: int, seconds: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BoundedBody(scope, receive, send, self._limit, self._seconds)
        await self._app(scope, body.receive, body.send)


class _BoundedBody:
    """The body of one request, counted and timed; and the answer, which must end the connection if it broke."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int, seconds: float) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._deadline = time.monotonic() + seconds
        self._announced = _announced_length(Headers(scope=scope))
        self._count = 0
        self._complete = False
        self._broken = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._announced > self._limit:
            raise self._too_large()
        message = await self._next()
        self._count += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._count > self._limit:
            raise self._too_large()
        return message

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await self._receive()
        except TimeoutError:
            self._broken = True
            raise RequestTimeoutError("the body did not arrive in time") from None

    def _too_large(self) -> PayloadTooLargeError:
        self._broken = True
        return PayloadTooLargeError(f"the body is longer than {self._limit} bytes")

    async def send(self, message: Message) -> None:
        if self._broken and message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        if self._broken and message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _linger(self) -> None:
        """Take in a little more before the connection closes: a caller that is still writing would otherwise be
        reset, and never read why."""
        taken = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._complete and taken <= max(self._limit, _LINGER_BYTES):
                    message = await self._receive()
                    taken += len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)


class Tracing:
    """Makes the request's span. Inside authentication, so that a stranger cannot write into our traces."""

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry, routes: Collection[str]) -> None:
        self._app = app
        self._telemetry = telemetry
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._routes:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        with self._telemetry.server_span(f"{scope['method']} {scope['path']}", headers):
            await self._app(scope, receive, send)
