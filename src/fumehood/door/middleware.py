"""What happens to every request before a route sees it, from the outside in.

`Edge` gives it an id and catches what nobody else caught; `Authentication` decides before a byte of the body is
read; `BodyBound` counts and times the body while it is read; `Tracing` goes on with the caller's trace; `Methods` knows
what a path can do. They are plain ASGI: the framework's own helper for middlewares would tie a job to the life of its
connection.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.door.bodies import KEYLESS
from fumehood.door.keepers import DECIDED, ENTRANT, Doorkeeper, Entrant
from fumehood.door.paths import OTHER, Templates
from fumehood.door.problems import (
    CHALLENGE,
    REQUEST_ID,
    RequestTimeoutError,
    internal_problem,
    on_error,
    problem,
    request_id_of,
)
from fumehood.door.telemetry import Telemetry
from fumehood.errors import FumehoodError, PayloadTooLargeError

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GOOD_SECONDS = 1.0
"""How long a token that was looked at is taken to be good, within one request."""
_BLIND_SECONDS = 15.0
"""How long an answer goes on while nobody can say whether its token is still good: through a change of the broker's
leader, and no longer than a revocation may take to end a stream."""
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

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry, routes: Templates, body_limit: int) -> None:
        self._app = app
        self._telemetry = telemetry
        self._routes = routes
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID] = _choose_id(Headers(scope=scope))
        exchange = _Exchange(scope, receive, send, self._body_limit)
        began = time.monotonic()
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id_of(scope)):
                await self._guarded(scope, exchange)
        finally:
            self._count(scope, exchange.status, time.monotonic() - began)

    async def _guarded(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            if exchange.is_ambiguous:
                await _ambiguous(scope)(scope, exchange.receive, exchange.send)
                return
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            return
        except Exception:
            self._telemetry.log.exception("http.failed", path=self._route(scope))
            if exchange.status is not None:
                raise
            await internal_problem(request_id_of(scope))(scope, exchange.receive, exchange.send)

    def _route(self, scope: Scope) -> str:
        return self._routes.of(scope["path"]) or OTHER

    def _count(self, scope: Scope, status: int | None, seconds: float) -> None:
        method, route = scope["method"] if scope["method"] in _KNOWN_METHODS else "other", self._route(scope)
        self._telemetry.metrics.http_requests.labels(route, method, str(status or "none")).inc()
        self._telemetry.metrics.http_seconds.labels(route).observe(seconds)


def _ambiguous(scope: Scope) -> Response:
    detail = "a body has Content-Length or Transfer-Encoding, not both"
    return problem("invalid-request", detail, request_id_of(scope), {"connection": "close"})


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

    @property
    def is_ambiguous(self) -> bool:
        """Two ends of one body: a proxy that believes the other one would take the rest of it for a request."""
        headers = Headers(scope=self._scope)
        return "transfer-encoding" in headers and "content-length" in headers

    def _body_may_be_long(self) -> bool:
        """A short unread body is thrown away by the server, and the connection lives on. Others end with it."""
        headers = Headers(scope=self._scope)
        if "transfer-encoding" in headers or "expect" in headers:
            return True
        return _announced_length(headers) > self._body_limit


class Authentication:
    """Lets in whom the doorkeeper knows and allows, decided before a byte of the body is read; paths that do not exist
    are no exception, so that a stranger learns nothing about the door but that it is shut."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keeper: Doorkeeper,
        open_paths: Collection[str],
        routes: Templates,
        methods: Mapping[str, Collection[str]],
    ) -> None:
        self._app = app
        self._keeper = keeper
        self._open_paths = frozenset(open_paths)
        self._routes = routes
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none, and one that is added must not be open
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[DECIDED] = self._routes.of(scope["path"])
        visit = _Visit(self._keeper, scope, send)
        refusal = None if scope[DECIDED] in self._open_paths else await self._refusal(scope, visit)
        try:
            await (self._app if refusal is None else refusal)(scope, receive, visit.send)
        except ClientDisconnect:
            raise
        except Exception:  # `Edge` answers it
            await visit.answered(500)
            raise

    async def _refusal(self, scope: Scope, visit: _Visit) -> Response | None:
        given = Headers(scope=scope).getlist("authorization")
        try:
            entrant = await visit.enter(given[0] if len(given) == 1 else None)
        except FumehoodError as error:
            return await on_error(Request(scope), error)
        if entrant is None:
            return _challenge(scope, with_token=bool(given))
        scope[ENTRANT], scope[KEYLESS] = entrant.who, entrant.keyless
        if self._is_no_method(scope) or self._keeper.allows(entrant.who, scope["method"], scope[DECIDED]):
            return None
        wanted = self._keeper.wanted(scope["method"], scope[DECIDED])
        return problem("forbidden", f"this token does not allow it: that takes {wanted}", request_id_of(scope))

    def _is_no_method(self, scope: Scope) -> bool:
        """Those are answered further in (`Methods`), and nothing is done for them."""
        return scope[DECIDED] in self._methods and scope["method"] not in self._methods[scope[DECIDED]]


class _Visit:
    """One request, from who brought it to its answer. A stream, or an answer that was long in coming, goes out only
    while its token is still good."""

    def __init__(self, keeper: Doorkeeper, scope: Scope, send: Send) -> None:
        self._keeper = keeper
        self._scope = scope
        self._send = send
        self._told = False
        self._token: str | None = None
        self._good_until = math.inf
        self._blind_since: float | None = None

    async def enter(self, token: str | None) -> Entrant | None:
        entrant = await self._keeper.knows(token)
        if entrant is not None:
            self._token, self._good_until = token, time.monotonic() + _GOOD_SECONDS
        return entrant

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self.answered(message["status"])
        is_end = message["type"] == "http.response.body" and not message.get("body") and not message.get("more_body")
        if not is_end and time.monotonic() > self._good_until and not await self._is_still_good():
            raise ClientDisconnect
        await self._send(message)

    async def answered(self, status: int) -> None:
        if not self._told:
            self._told = True
            await self._keeper.saw(self._scope, status)

    async def _is_still_good(self) -> bool:
        """Where that cannot be found out, a stream need not end for it at once."""
        now = time.monotonic()
        self._good_until = now + _GOOD_SECONDS
        try:
            known = await self._keeper.knows(self._token)
        except FumehoodError:
            self._blind_since = now if self._blind_since is None else self._blind_since
            return time.monotonic() - self._blind_since < _BLIND_SECONDS
        self._blind_since = None
        return known is not None


def _challenge(scope: Scope, *, with_token: bool) -> Response:
    challenge = CHALLENGE + (', error="invalid_token"' if with_token else "")
    detail = "the bearer token is wrong or expired" if with_token else "a bearer token is needed"
    return problem("unauthenticated", detail, request_id_of(scope), {"www-authenticate": challenge})


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How long a body may be, and how long it may take to come."""

    limit: int
    seconds: float
    stall_seconds: float = math.inf
    """Without a single byte of it, while it is waited for."""
    streamed: bool = False
    """Whether the route takes it piece by piece, and may answer before all of it was sent."""


class BodyBound:
    """Ends requests whose body is too long, whatever a header says, or comes too slowly."""

    def __init__(self, app: ASGIApp, *, usual: BodyLimits, others: Mapping[tuple[str, str], BodyLimits]) -> None:
        """`others` are those of single routes, by method and template."""
        self._app = app
        self._usual = usual
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits = self._others.get((scope["method"], scope[DECIDED]), self._usual)
        body = _BoundedBody(scope, receive, send, limits)
        await self._app(scope, body.receive, body.send)


class _BoundedBody:
    """The body of one request, counted and timed; and the answer, which must end the connection if it broke."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: BodyLimits) -> None:
        self._receive = receive
        self._send = send
        self._limits = limits
        self._limit = limits.limit
        self._deadline = time.monotonic() + limits.seconds
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
            async with asyncio.timeout(min(self._deadline - time.monotonic(), self._limits.stall_seconds)):
                return await self._receive()
        except TimeoutError:
            self._broken = True
            raise RequestTimeoutError("the body did not arrive in time") from None

    def _too_large(self) -> PayloadTooLargeError:
        self._broken = True
        return PayloadTooLargeError(f"the body is longer than {self._limit} bytes")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._broken |= self._limits.streamed and not self._complete
            if self._broken:
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


class Methods:
    """Answers where a path has other methods, naming all of them; the framework knows of one route at a time."""

    def __init__(self, app: ASGIApp, *, routes: Templates, methods: Mapping[str, Sequence[str]]) -> None:
        self._app = app
        self._routes = routes
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.of(scope["path"]) if scope["type"] == "http" else None
        allowed = self._methods.get(route) if route is not None else None
        if allowed is None or scope["method"] in allowed:
            await self._app(scope, receive, send)
            return
        detail = "this path has other methods; the header Allow names them"
        headers = {"allow": ", ".join(allowed)}
        await problem("method-not-allowed", detail, request_id_of(scope), headers)(scope, receive, send)


class Tracing:
    """Makes the request's span. Inside authentication, so that a stranger cannot write into our traces."""

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry, routes: Templates) -> None:
        self._app = app
        self._telemetry = telemetry
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.of(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        with self._telemetry.server_span(f"{scope['method']} {route}", Headers(scope=scope)):
            await self._app(scope, receive, send)
