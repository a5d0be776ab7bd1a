"""Signing in to the web console: an API key is exchanged for a cookie, which stands for that key at this server.

The cookie holds the key, sealed so that only servers of this cell can read it: nothing is stored for it, and it is good
for as long as the key is, but no longer than `LIFETIME_SECONDS`. The browser sends it along whichever page makes the
request. So it counts only together with a header that a page of another site cannot set, and not at all where the
browser says that the request comes from elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Awaitable, Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fumehood.broker.ports import Broker
from fumehood.control.callers import Caller
from fumehood.control.http import schema
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import known_as
from fumehood.control.http.queries import Query
from fumehood.door.keepers import Entrant
from fumehood.door.schema import REQUEST_ID, Responses
from fumehood.errors import ForbiddenError, UnauthenticatedError
from fumehood.wire import sign_in_api
from fumehood.wire.sign_in_api import BROWSER_HEADER

PATHS = (sign_in_api.SIGN_IN_PATH, sign_in_api.SIGN_OUT_PATH)
MODELS: schema.Models = [(sign_in_api.SignInRequest, "validation")]
COOKIE = "fumehood-sign-in"
LIFETIME_SECONDS = 12 * 3600
LABEL = "sign-in cookie"
_NONCE_BYTES = 12
_LONGEST_COOKIE = 4096

_MARK = schema.in_header(BROWSER_HEADER, "Set by the web console", {"const": "1", "type": "string"})
_DONE: Responses = {204: {"description": "The cookie is set, or removed", "headers": REQUEST_ID}}

Recognize = Callable[[str | None], Awaitable[Entrant | None]]


class Cookies:
    """Seals keys into cookies, and reads them again."""

    def __init__(self, broker: Broker, *, now: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self._now = now

    def seal(self, token: str) -> str:
        content = json.dumps([token, int(self._now()) + LIFETIME_SECONDS]).encode()
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._cipher().encrypt(nonce, content, None)).decode().rstrip("=")

    def read(self, cookie: str) -> str | None:
        """The key in it; None if it is too old, or was not sealed here."""
        if not 0 < len(cookie) <= _LONGEST_COOKIE or not cookie.isascii():
            return None
        try:
            sealed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
            token, expires = json.loads(self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None))
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return str(token) if self._now() < expires else None

    def _cipher(self) -> AESGCM:
        return AESGCM(self._broker.derived_key(LABEL))


class CookieSignIn:
    """Turns the cookie of a request that our own page makes into the `Authorization` header that it stands for."""

    def __init__(self, app: ASGIApp, *, cookies: Cookies) -> None:
        self._app = app
        self._cookies = cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "authorization" not in headers and COOKIE in headers.get("cookie", "") and _is_our_page(headers):
                token = self._cookies.read(cookie_parser(headers["cookie"]).get(COOKIE, ""))
                if token is not None:
                    authorization = (b"authorization", f"Bearer {token}".encode())
                    scope = {**scope, "headers": [*scope["headers"], authorization]}
        await self._app(scope, receive, send)


def sign_in_router(cookies: Cookies, recognize: Recognize) -> APIRouter:
    """`recognize` tells whom an `Authorization` header proves."""
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
        _check_page(request)
        asked = await body_of(sign_in_api.SignInRequest, request)
        entrant = await recognize(f"Bearer {asked.key}")
        if entrant is None or not isinstance(entrant.who, Caller):
            raise UnauthenticatedError("this key is wrong, expired or revoked")
        known_as(request, entrant.who)
        return _with_cookie(request, cookies.seal(asked.key), LIFETIME_SECONDS)

    @router.post(
        sign_in_api.SIGN_OUT_PATH,
        **schema.operation("sign_out", "Sign out a browser", _DONE, _MARK, token=None),
    )
    async def sign_out(request: Request) -> Response:
        _check_page(request)
        Query(request)
        entrant = await recognize(request.headers.get("authorization"))
        if entrant is not None and isinstance(entrant.who, Caller):
            known_as(request, entrant.who)
        return _with_cookie(request, "", 0)

    return router


def _with_cookie(request: Request, value: str, seconds: int) -> Response:
    """Only to be sent over TLS if the page came over it: the server may stand behind a proxy, but the page knows."""
    answer = Response(status_code=204, headers={"cache-control": "no-store"})
    secure = request.headers.get("origin", "").startswith("https://")
    answer.set_cookie(COOKIE, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


def _check_page(request: Request) -> None:
    """A page of another site must not sign its visitor in or out."""
    if not _is_our_page(request.headers):
        raise ForbiddenError(f"a browser signs in from the web console's own page, which sends {BROWSER_HEADER}: 1")


def _is_our_page(headers: Headers) -> bool:
    return headers.get(BROWSER_HEADER) == "1" and headers.get("sec-fetch-site", "same-origin") == "same-origin"
