"""Questions to one registry: whom we follow, and whom we show what.

Credentials go to the registry that they were configured for, and to the token service that this registry names; never
to where a redirect points. A registry elsewhere can send us neither to a plain URL nor to the loopback.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from fumehood.errors import InvalidReferenceError
from fumehood.images.access import RegistryAccess
from fumehood.images.challenge import Challenge, parse_challenges
from fumehood.images.reference import ImageReference, check_host, is_loopback_host
from fumehood.images.transport import KIB, Answer, RefusedError, Trouble, Wire, meaning, no

MAX_TOKEN_BYTES = 64 * KIB
MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class _Wish:
    """What kind of answer is wanted, and how much of it at most."""

    accept: str
    limit: int


class Conversation:
    """Questions to one registry about one repository: redirects, and one challenge that is answered for all of them."""

    def __init__(self, reference: ImageReference, access: RegistryAccess, wire: Wire) -> None:
        self._reference = reference
        self._access = access
        self._wire = wire
        self._authorization: str | None = None
        self._home = _origin(access.url(""))
        self.trouble = Trouble()

    async def ask(self, method: str, path: str, accept: str, limit: int) -> Answer:
        """The answer at the end of the redirects; `path` is below the repository."""
        url = self._access.url(f"{self._reference.repository}/{path}")
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(method, url, _Wish(accept, limit))
            if answer.status not in _REDIRECTS:
                return answer
            url = self._redirected(url, answer)
        raise RefusedError(f"more than {MAX_REDIRECTS} redirects")

    async def _ask(self, method: str, url: httpx.URL, wish: _Wish) -> Answer:
        """One exchange, and where the registry itself challenges us, one more with what it wants to see."""
        at_home = _origin(url) == self._home
        answer = await self._send(method, url, wish, self._authorization if at_home else None)
        if answer.status != 401:
            return answer
        if not at_home:
            raise RefusedError("the registry redirects to another host, which wants credentials: it gets none")
        if self._authorization is None:
            self._authorization = await self._authorize(parse_challenges(answer.headers.get_list("WWW-Authenticate")))
            answer = await self._send(method, url, wish, self._authorization)
        if answer.status == 401:
            raise RefusedError(meaning(401))
        return answer

    async def _send(self, method: str, url: httpx.URL, wish: _Wish, authorization: str | None) -> Answer:
        headers = {"Accept": wish.accept}
        if authorization is not None:
            headers["Authorization"] = authorization
        return await self._wire.exchange(method, url, headers, limit=wish.limit, trouble=self.trouble)

    def _redirected(self, url: httpx.URL, answer: Answer) -> httpx.URL:
        try:
            target = url.join(answer.headers.get("Location", ""))
        except (httpx.InvalidURL, ValueError):
            raise RefusedError("the registry redirects to something that is not a URL") from None
        if "Location" not in answer.headers or target.userinfo:
            raise RefusedError("the registry redirects to nowhere, or with credentials in the URL")
        self._check_target(target, "the registry redirects to")
        if url.scheme == "https" and target.scheme != "https":
            raise RefusedError("the registry redirects from HTTPS to plain HTTP")
        return target

    def _check_target(self, url: httpx.URL, what: str) -> None:
        """Where a registry may send us: anywhere with HTTPS; the loopback, and plain HTTP there, only from there."""
        loopback = is_loopback_host(url.host)
        if url.scheme not in ("http", "https") or not url.host:
            raise RefusedError(f"{what} a URL that is neither HTTP nor HTTPS")
        try:
            check_host(f"[{url.host}]" if ":" in url.host else url.host)
        except InvalidReferenceError:  # 127.1 is the loopback too, by another name
            raise RefusedError(f"{what} a host that is not spelled plainly") from None
        if loopback and not self._access.is_loopback:
            raise RefusedError(f"{what} this machine's loopback")
        if url.scheme == "http" and not loopback:
            raise RefusedError(f"{what} a plain HTTP URL")

    async def _authorize(self, challenges: list[Challenge]) -> str:
        """The `Authorization` header that answers a challenge; a token where the registry offers one."""
        offered = {challenge.scheme: challenge for challenge in reversed(challenges)}
        if "bearer" in offered:
            return await self._token(offered["bearer"])
        if "basic" in offered and self._access.basic is not None:
            return self._access.basic
        raise RefusedError("the registry wants credentials, and none are configured" if offered else meaning(401))

    async def _token(self, challenge: Challenge) -> str:
        headers = {"Accept": "application/json"}
        if self._access.basic is not None:
            headers["Authorization"] = self._access.basic
        url = self._token_url(challenge)
        answer = await self._wire.exchange("GET", url, headers, limit=MAX_TOKEN_BYTES, trouble=self.trouble)
        if answer.status != 200:
            raise no(answer.status, f"the registry's token service answered {answer.status}")
        return f"Bearer {_token_in(answer.body)}"

    def _token_url(self, challenge: Challenge) -> httpx.URL:
        """The realm with our own scope, never the challenge's: pull, and this repository, is all we ever want."""
        try:
            realm = httpx.URL(challenge.parameters.get("realm", ""))
        except (httpx.InvalidURL, ValueError):
            raise RefusedError("the registry names a token service that is not a URL") from None
        if realm.userinfo:
            raise RefusedError("the registry names a token service with credentials in the URL")
        self._check_target(realm, "the registry names a token service at")
        wanted = {"scope": f"repository:{self._reference.repository}:pull"}
        if "service" in challenge.parameters:
            wanted["service"] = challenge.parameters["service"]
        return realm.copy_merge_params(wanted)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _token_in(body: bytes) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise RefusedError("the registry's token service sent no usable token")
    return token
