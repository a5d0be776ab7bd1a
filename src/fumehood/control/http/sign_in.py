"""Signing in to the web console: an API key is exchanged for a cookie, which stands for that key at this server.

The cookie holds the key, sealed so that only servers of this cell can read it: nothing is stored for it, and it is good
for as long as the key is, but no longer than `LIFETIME_SECONDS`.

A browser sends a cookie to every port of the host, with requests from any page. So the page also keeps a random mark
where only pages of its own origin can read it, and sends the mark in a header. The mark that was sent at the sign-in is
sealed into the cookie: the cookie counts only together with it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import APIRouter
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.broker.ports import Broker
from fumehood.control.callers import Caller
from fumehood.control.http import schema
from fumehood.control.http.asked import body_of
from fumehood.control.http.queries import Query
from fumehood.door.keepers import Entrant
from fumehood.door.middleware import BodyLimits
from fumehood.door.schema import REQUEST_ID, Responses
from fumehood.errors import ForbiddenError, UnauthenticatedError
from fumehood.settings.base import is_loopback
from fumehood.wire import sign_in_api
from fumehood.wire.sign_in_api import BROWSER_HEADER, MARK_FORM

PATHS = (sign_in_api.SIGN_IN_PATH, sign_in_api.SIGN_OUT_PATH)
MODELS: schema.Models = [(sign_in_api.SignInRequest, "validation")]
COOKIE = "fumehood-sign-in"
LIFETIME_SECONDS = 12 * 3600
BODY_SECONDS = 10.0
BODIES = {("POST", path): BodyLimits(16 * 1024, BODY_SECONDS) for path in PATHS}
LABEL = "sign-in cookie"
_NONCE_BYTES = 12
_LONGEST_COOKIE = 4096

_MARK = schema.in_header(
    BROWSER_HEADER, "Random; the cookie counts only together with it", {"type": "string", "pattern": MARK_FORM}
)
_DONE: Responses = {204: {"description": "The cookie is set, or removed", "headers": REQUEST_ID}}

Recognize = Callable[[str | None], Awaitable[Entrant | None]]


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The key in a cookie, and when the cookie expires."""

    token: str
    until: float


class Cookies:
    """Seals keys into cookies, and reads them again."""

    def __init__(self, broker: Broker, *, now: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self.now = now

    def seal(self, token: str, mark: str) -> str:
        content = json.dumps([token, mark, int(self.now()) + LIFETIME_SECONDS]).encode()
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._cipher().encrypt(nonce, content, None)).decode().rstrip("=")

    def read(self, cookie: str, mark: str) -> SignedIn | None:
        """None if the cookie has expired, was not sealed by this cell, or was sealed for another mark."""
        if not 0 < len(cookie) <= _LONGEST_COOKIE or not cookie.isascii():
            return None
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            content = self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
            token, its_mark, until = json.loads(content)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return SignedIn(token, until) if hmac.compare_digest(its_mark, mark) and self.now() < until else None

    def _cipher(self) -> AESGCM:
        return AESGCM(self._broker.derived_key(LABEL))


class CookieSignIn:
    """Turns the cookie of a request from our own page into the `Authorization` header that it stands for."""

    def __init__(self, app: ASGIApp, *, cookies: Cookies) -> None:
        self._app = app
        self._cookies = cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        signed_in = self._signed_in(Headers(scope=scope)) if scope["type"] == "http" else None
        if signed_in is None:
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            """Keeps responses out of shared caches, and ends streams when the cookie expires."""
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("cache-control", "private, no-store")
                headers.add_vary_header("cookie")
            elif message.get("more_body") and self._cookies.now() >= signed_in.until:
                raise ClientDisconnect
            await send(message)

        authorization = (b"authorization", f"Bearer {signed_in.token}".encode())
        await self._app({**scope, "headers": [*scope["headers"], authorization]}, receive, answer)

    def _signed_in(self, headers: Headers) -> SignedIn | None:
        mark = _mark_of(headers)
        if mark is None or "authorization" in headers:
            return None
        found = (self._cookies.read(value, mark) for value in _values(headers, _cookie_name(headers)))
        return next((one for one in found if one is not None), None)


def sign_in_router(cookies: Cookies, recognize: Recognize) -> APIRouter:
    """`recognize` returns the caller that an `Authorization` header authenticates."""
    router = APIRouter(tags=["web console"])

    @router.post(
        sign_in_api.SIGN_IN_PATH,
        **schema.operation(
            "sign_in",
            "Sign in a browser",
            _DONE,
            _MARK,
            body="SignInRequest",
            token=None,
            description="Exchanges a key for a cookie that stands for it at this server, for twelve hours or until the "
            "key is revoked.",
        ),
    )
    async def sign_in(request: Request) -> Response:
        mark = _page_of(request)
        asked = await body_of(sign_in_api.SignInRequest, request)
        entrant = await recognize(f"Bearer {asked.key}")
        if entrant is None or not isinstance(entrant.who, Caller):
            raise UnauthenticatedError("this key is wrong, expired or revoked")
        return _with_cookie(request, cookies.seal(asked.key, mark), LIFETIME_SECONDS)

    @router.post(
        sign_in_api.SIGN_OUT_PATH,
        **schema.operation("sign_out", "Sign out a browser", _DONE, _MARK, token=None),
    )
    async def sign_out(request: Request) -> Response:
        _page_of(request)
        Query(request)
        return _with_cookie(request, "", 0)

    return router


def _with_cookie(request: Request, value: str, seconds: int) -> Response:
    """The cookie is `Secure` unless the page came over plain HTTP."""
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    secure = not request.headers.get("origin", "").startswith("http://")
    name = _cookie_name(request.headers)
    answer.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


def _page_of(request: Request) -> str:
    """The mark of the page that signs its visitor in or out. Refuses pages of other sites and pages that crossed a
    network in clear."""
    mark = _mark_of(request.headers)
    if mark is None:
        raise ForbiddenError(f"a browser signs in from the web console's own page, which sends {BROWSER_HEADER}")
    if _crossed_in_clear(request.headers.get("origin", "")):
        raise ForbiddenError(
            "sign in over HTTPS, or through a tunnel to localhost: a key must not cross a network in clear"
        )
    return mark


def _crossed_in_clear(origin: str) -> bool:
    """Whether a page came over plain HTTP from another machine. Browsers resolve `*.localhost` to their own."""
    try:
        url = urlsplit(origin)
        host = url.hostname or ""
    except ValueError:
        return True
    return url.scheme == "http" and not (is_loopback(host) or host.endswith(".localhost"))


def _mark_of(headers: Headers) -> str | None:
    """None if the request is not from a page of ours: other pages cannot set the header."""
    mark = headers.get(BROWSER_HEADER, "")
    is_ours = headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return mark if is_ours and re.fullmatch(MARK_FORM, mark) else None


def _cookie_name(headers: Headers) -> str:
    """Each port has its own name: two servers on one host share its cookies and must not overwrite each other's."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _values(headers: Headers, name: str) -> Iterator[str]:
    """The values of all cookies by this name. Not parsed with `http.cookies`, which takes quadratic time for quoted
    values; ours are never quoted."""
    for pair in ";".join(headers.getlist("cookie")).split(";"):
        found, _, value = pair.strip().partition("=")
        if found == name:
            yield value
