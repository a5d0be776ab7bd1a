"""Asking a registry which digest a tag names.

The answer decides what runs, and the one who answers is not ours, so this client is narrow and distrustful:

- One question: `HEAD`, else `GET`, of a manifest, always with the full `Accept` list (without it some registries answer
  with an old schema that has another digest). A body, where there is one, is hashed and must fit what the registry
  says about it. Every body is bounded while it is read.
- Plain HTTP goes to the loopback only; everything else is HTTPS. Which of the two a registry gets is decided before the
  first byte and never changed by a failure, so that nobody can push credentials onto a plain connection.
- Credentials go to the registry that they were configured for, and to the token service that this registry names;
  never to where a redirect points. A registry elsewhere can send us neither to a plain URL nor to the loopback.
- The environment is not read (no proxies, no netrc) and cookies are not kept.

Every failure is a `DigestResolutionError`, and a `RegistryUnavailableError` where the registry did not say no but could
not be asked. Its detail names the reference and the cause and nothing that the registry
or the operator may want kept: no header, no query, no body.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from fumehood.errors import (
    ConfigurationError,
    DigestResolutionError,
    InvalidReferenceError,
    RegistryUnavailableError,
)
from fumehood.images.challenge import Challenge, parse_challenges
from fumehood.images.reference import (
    DEFAULT_REGISTRY,
    ImageReference,
    check_host,
    check_registry,
    is_digest,
    is_loopback_host,
    is_loopback_registry,
)
from fumehood.images.singleflight import SingleFlight, Turn, WorkCancelledError

KIB = 1024
MIB = 1024 * KIB

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MAX_MANIFEST_BYTES = 4 * MIB
"""The size that the distribution specification asks registries to accept."""
MAX_TOKEN_BYTES = 64 * KIB
MAX_REDIRECTS = 5
DEADLINE_SECONDS = 15.0
EXCHANGE_SECONDS = 5.0
"""For each of connecting, sending and one read: short enough for a second try before the deadline."""

_ENDPOINTS = {DEFAULT_REGISTRY: "registry-1.docker.io"}
"""Docker Hub's API is not at the name that its images bear."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_NO_HEAD = frozenset({405, 501})
_STATUS_MEANING = {
    401: "it wants credentials, or refuses ours",
    403: "it denies access",
    404: "no such repository or tag",
    429: "too many requests",
}
_PERHAPS_TLS = (
    "the registry answered 400 to plain HTTP: perhaps it speaks TLS; a [[registries]] table with its ca_file or "
    "credentials makes the node speak TLS too"
)
_LONGEST_WAIT = 3600


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How to reach one registry. Registries that need nothing special need no entry."""

    host: str
    """As in references, with the port: `ghcr.io`, `127.0.0.1:5056`."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates (PEM) to trust for this host instead of the public ones."""
    insecure_http: bool = False
    """Plain HTTP although credentials or a CA are given; loopback only. A loopback registry without either gets plain
    HTTP anyway, as from Docker."""

    def __post_init__(self) -> None:
        try:
            check_registry(self.host)
        except InvalidReferenceError as error:
            raise ConfigurationError(f"registry access: {error.detail}") from None
        if (self.username is None) != (self.password is None):
            raise ConfigurationError(f"registry {self.host}: a username needs a password, and the other way round")
        if self.username is not None and ":" in self.username:
            raise ConfigurationError(f"registry {self.host}: a username cannot contain a colon")
        if self.insecure_http and not self.is_loopback:
            raise ConfigurationError(f"registry {self.host}: plain HTTP is for the loopback only")

    @property
    def is_loopback(self) -> bool:
        return is_loopback_registry(self.host)

    @property
    def plain(self) -> bool:
        """Decided once, from what is configured: see the module's docstring."""
        if self.insecure_http:
            return True
        return self.is_loopback and self.username is None and self.ca_file is None

    @property
    def basic(self) -> str | None:
        """The value of a Basic `Authorization` header."""
        if self.username is None:
            return None
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often one exchange is tried, and how long to wait between: twice as long each time, with full jitter."""

    attempts: int = 5
    first_seconds: float = 0.2
    longest_seconds: float = 3.0
    patience_seconds: float = 10.0
    """A registry that asks for a longer wait (`Retry-After`) is given up at once, not when the deadline comes."""

    def pause(self, attempt: int, asked_seconds: float) -> float:
        """After the attempt of this number (from 1); never shorter than the registry asked for."""
        ceiling = min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 30))
        return asked_seconds + random.uniform(0, ceiling)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an exchange yields: never more than we asked to read."""

    status: int
    headers: httpx.Headers
    body: bytes = b""


class _RefusedError(Exception):
    """Ends a resolution; the text becomes part of the error's detail."""


class _UnavailableError(_RefusedError):
    """The same, where the next try may go better: after so many seconds."""

    def __init__(self, text: str, seconds: float = 5) -> None:
        super().__init__(text)
        self.seconds = min(max(1, round(seconds)), _LONGEST_WAIT)


class RegistryClient:
    """Resolves references. One for each process; close it, or use it as a context manager."""

    def __init__(
        self,
        accesses: Iterable[RegistryAccess] = (),
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._accesses = {access.host: access for access in accesses}
        self._deadline = deadline_seconds
        self._wire = _Wire(self._accesses.values(), retry or RetryPolicy(), transport)
        self._flights: SingleFlight[str, str] = SingleFlight()

    async def resolve(self, reference: ImageReference) -> str:
        """The digest (of an index or a single manifest) that the registry holds under the reference right now.

        Nothing is cached, since tags move. Equal questions that wait at the same time are asked once.
        """
        try:
            return await self._flights.run(str(reference), lambda turn: self._resolve(reference, turn))
        except WorkCancelledError:
            raise RegistryUnavailableError(f"cannot resolve {reference}: the client was closed") from None
        except DigestResolutionError as error:
            raise error.again() from error

    async def aclose(self) -> None:
        """End what is under way and let go of all connections."""
        await self._flights.close()
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _resolve(self, reference: ImageReference, turn: Turn) -> str:
        access = self._accesses.get(reference.registry, RegistryAccess(reference.registry))
        resolution = _Resolution(reference, access, self._wire)
        try:
            async with asyncio.timeout(self._deadline):
                await turn()
                return await resolution.digest()
        except TimeoutError:
            last = f" (last: {resolution.trouble.text})" if resolution.trouble.text else ""
            cause = f"the registry gave no answer within {self._deadline:g} s{last}"
            raise RegistryUnavailableError(f"cannot resolve {reference}: {cause}") from None
        except _UnavailableError as error:
            detail = f"cannot resolve {reference}: {error}"
            raise RegistryUnavailableError(detail, retry_after_seconds=error.seconds) from None
        except _RefusedError as error:
            raise DigestResolutionError(f"cannot resolve {reference}: {error}") from None


@dataclass(slots=True)
class _Trouble:
    """What went wrong last, kept for the case that the deadline ends the next try."""

    text: str = ""


class _Resolution:
    """One question to one registry: redirects, one challenge, and the check of the answer."""

    def __init__(self, reference: ImageReference, access: RegistryAccess, wire: _Wire) -> None:
        self._reference = reference
        self._access = access
        self._wire = wire
        self._authorization: str | None = None
        self._home = _manifest_url(reference, access)
        self.trouble = _Trouble()

    async def digest(self) -> str:
        head = await self._manifest("HEAD")
        told = None if head.status in _NO_HEAD else _digest_of_head(head)
        found = told or _digest_of_body(await self._manifest("GET"))
        if self._reference.digest is not None and found != self._reference.digest:
            raise _RefusedError("the registry answered with another digest than it was asked for")
        return found

    async def _manifest(self, method: str) -> _Answer:
        url = self._home
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(method, url)
            if answer.status == 400 and url.scheme == "http":
                raise _RefusedError(_PERHAPS_TLS)
            if answer.status not in _REDIRECTS:
                return answer
            url = self._redirected(url, answer)
        raise _RefusedError(f"more than {MAX_REDIRECTS} redirects")

    async def _ask(self, method: str, url: httpx.URL) -> _Answer:
        """One exchange, and where the registry itself challenges us, one more with what it wants to see."""
        at_home = _origin(url) == _origin(self._home)
        answer = await self._send(method, url, self._authorization if at_home else None)
        if answer.status != 401:
            return answer
        if not at_home:
            raise _RefusedError("the registry redirects to another host, which wants credentials: it gets none")
        if self._authorization is None:
            self._authorization = await self._authorize(parse_challenges(answer.headers.get_list("WWW-Authenticate")))
            answer = await self._send(method, url, self._authorization)
        if answer.status == 401:
            raise _RefusedError(_meaning(401))
        return answer

    async def _send(self, method: str, url: httpx.URL, authorization: str | None) -> _Answer:
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        if authorization is not None:
            headers["Authorization"] = authorization
        return await self._wire.exchange(method, url, headers, limit=MAX_MANIFEST_BYTES, trouble=self.trouble)

    def _redirected(self, url: httpx.URL, answer: _Answer) -> httpx.URL:
        try:
            target = url.join(answer.headers.get("Location", ""))
        except (httpx.InvalidURL, ValueError):
            raise _RefusedError("the registry redirects to something that is not a URL") from None
        if "Location" not in answer.headers or target.userinfo:
            raise _RefusedError("the registry redirects to nowhere, or with credentials in the URL")
        self._check_target(target, "the registry redirects to")
        if url.scheme == "https" and target.scheme != "https":
            raise _RefusedError("the registry redirects from HTTPS to plain HTTP")
        return target

    def _check_target(self, url: httpx.URL, what: str) -> None:
        """Where a registry may send us: anywhere with HTTPS; the loopback, and plain HTTP there, only from there."""
        loopback = is_loopback_host(url.host)
        if url.scheme not in ("http", "https") or not url.host:
            raise _RefusedError(f"{what} a URL that is neither HTTP nor HTTPS")
        try:
            check_host(f"[{url.host}]" if ":" in url.host else url.host)
        except InvalidReferenceError:  # 127.1 is the loopback too, by another name
            raise _RefusedError(f"{what} a host that is not spelled plainly") from None
        if loopback and not self._access.is_loopback:
            raise _RefusedError(f"{what} this machine's loopback")
        if url.scheme == "http" and not loopback:
            raise _RefusedError(f"{what} a plain HTTP URL")

    async def _authorize(self, challenges: list[Challenge]) -> str:
        """The `Authorization` header that answers a challenge; a token where the registry offers one."""
        offered = {challenge.scheme: challenge for challenge in reversed(challenges)}
        if "bearer" in offered:
            return await self._token(offered["bearer"])
        if "basic" in offered and self._access.basic is not None:
            return self._access.basic
        raise _RefusedError("the registry wants credentials, and none are configured" if offered else _meaning(401))

    async def _token(self, challenge: Challenge) -> str:
        headers = {"Accept": "application/json"}
        if self._access.basic is not None:
            headers["Authorization"] = self._access.basic
        url = self._token_url(challenge)
        answer = await self._wire.exchange("GET", url, headers, limit=MAX_TOKEN_BYTES, trouble=self.trouble)
        if answer.status != 200:
            raise _no(answer.status, f"the registry's token service answered {answer.status}")
        return f"Bearer {_token_in(answer.body)}"

    def _token_url(self, challenge: Challenge) -> httpx.URL:
        """The realm with our own scope, never the challenge's: pull, and this repository, is all we ever want."""
        try:
            realm = httpx.URL(challenge.parameters.get("realm", ""))
        except (httpx.InvalidURL, ValueError):
            raise _RefusedError("the registry names a token service that is not a URL") from None
        if realm.userinfo:
            raise _RefusedError("the registry names a token service with credentials in the URL")
        self._check_target(realm, "the registry names a token service at")
        wanted = {"scope": f"repository:{self._reference.repository}:pull"}
        if "service" in challenge.parameters:
            wanted["service"] = challenge.parameters["service"]
        return realm.copy_merge_params(wanted)


class _Wire:
    """Exchanges of one request and one bounded answer, tried again where that may help."""

    def __init__(
        self, accesses: Iterable[RegistryAccess], retry: RetryPolicy, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._retry = retry
        self._public = _http_client(True, transport)
        self._private = {
            _authority(access): _http_client(_trust(access, access.ca_file), transport)
            for access in accesses
            if access.ca_file is not None
        }

    async def aclose(self) -> None:
        for client in (self._public, *self._private.values()):
            await client.aclose()

    async def exchange(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], *, limit: int, trouble: _Trouble
    ) -> _Answer:
        """The first answer that is not a passing trouble; `_UnavailableError` with the last one when tries run out."""
        for attempt in range(1, self._retry.attempts + 1):
            asked = 0.0
            try:
                answer = await self._once(method, url, headers, limit)
            except (httpx.TransportError, OSError) as error:
                _refuse_untrusted(error)
                trouble.text = f"the connection failed: {_what_failed(error)}"
            except (httpx.InvalidURL, UnicodeError):  # a host that no resolver takes
                raise _RefusedError("the registry's address is not valid") from None
            else:
                if answer.status not in _TRANSIENT:
                    return answer
                trouble.text = _meaning(answer.status)
                asked = _retry_after(answer)
            if asked > self._retry.patience_seconds:
                raise _UnavailableError(f"{trouble.text}, and asks for a wait of {asked:g} s", asked)
            if attempt < self._retry.attempts:
                await asyncio.sleep(self._retry.pause(attempt, asked))
        raise _UnavailableError(f"{trouble.text} ({self._retry.attempts} tries)")

    async def _once(self, method: str, url: httpx.URL, headers: Mapping[str, str], limit: int) -> _Answer:
        client = self._private.get(url.netloc.decode("ascii"), self._public)
        async with client.stream(method, url, headers=dict(headers)) as response:
            wanted = method == "GET" and response.status_code == 200
            body = await _read(response, limit) if wanted else b""
            return _Answer(response.status_code, response.headers, body)


def _http_client(trust: ssl.SSLContext | bool, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=trust,
        transport=transport,
        trust_env=False,
        follow_redirects=False,
        timeout=EXCHANGE_SECONDS,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        # identity: digests are over the bytes as sent, and a small body cannot unpack into a large one
        headers={"User-Agent": "fumehood", "Accept-Encoding": "identity"},
    )


def _trust(access: RegistryAccess, ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise ConfigurationError(f"registry {access.host}: its ca_file {ca_file} holds no PEM certificates") from None
    except OSError as error:
        reason = f"its ca_file {ca_file} cannot be read: {error.strerror}"
        raise ConfigurationError(f"registry {access.host}: {reason}") from None


def _authority(access: RegistryAccess) -> str:
    """Host and port as they stand in the URLs of this registry, where HTTPS's own port is left out."""
    return httpx.URL(f"https://{_ENDPOINTS.get(access.host, access.host)}").netloc.decode("ascii")


def _manifest_url(reference: ImageReference, access: RegistryAccess) -> httpx.URL:
    scheme = "http" if access.plain else "https"
    endpoint = _ENDPOINTS.get(reference.registry, reference.registry)
    return httpx.URL(f"{scheme}://{endpoint}/v2/{reference.repository}/manifests/{reference.digest or reference.tag}")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _read(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            raise _RefusedError(f"the answer is larger than {limit} bytes")
    return bytes(body)


def _refuse_untrusted(error: BaseException) -> None:
    """A certificate that does not verify will not verify a second later: say so instead of trying again."""
    for seen in _chain(error):
        if isinstance(seen, ssl.SSLCertVerificationError):
            raise _RefusedError(
                f"the registry's certificate is not trusted ({seen.verify_message}); a [[registries]] table with "
                "its ca_file makes it so"
            ) from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        if isinstance(seen, BaseExceptionGroup):  # one for each address that was tried
            yield from seen.exceptions
        seen = seen.__cause__ or seen.__context__


_FAILURES: Mapping[type[BaseException], str] = {
    ConnectionRefusedError: "it was refused, nothing listens there",
    socket.gaierror: "the name of the host is not known",
    ssl.SSLError: "the other side does not speak TLS as we do",
    httpx.ConnectTimeout: "nobody answered in time",
    httpx.TimeoutException: "it fell silent",
    ConnectionResetError: "it was reset",
}
"""Our words for what a library says in its own: those could name a path or an address that the caller need not know."""


def _what_failed(error: BaseException) -> str:
    seen = list(_chain(error))
    return next(
        (words for kind, words in _FAILURES.items() if any(isinstance(one, kind) for one in seen)),
        "it could not be made, or broke",
    )


def _retry_after(answer: _Answer) -> float:
    """The wait that the registry asks for, in seconds; its other form, a date, is left to our own backoff."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0.0


def _meaning(status: int) -> str:
    meaning = _STATUS_MEANING.get(status)
    return f"the registry answered {status}" + (f" ({meaning})" if meaning else "")


def _no(status: int, text: str) -> _RefusedError:
    """A status that is not 200: a definite no, or trouble of the registry's own."""
    return _UnavailableError(text) if status >= 500 else _RefusedError(text)


def _digest_of_head(answer: _Answer) -> str | None:
    """What a HEAD says, if it says it well; `None` sends us to GET, where the body can be looked at."""
    if answer.status != 200:
        raise _no(answer.status, _meaning(answer.status))
    digest = answer.headers.get("Docker-Content-Digest", "")
    return digest if _is_manifest(answer) and is_digest(digest) else None


def _digest_of_body(answer: _Answer) -> str:
    if answer.status != 200:
        raise _no(answer.status, _meaning(answer.status))
    if not _is_manifest(answer):
        raise _RefusedError("the registry's answer is not a manifest of a type that we asked for")
    digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    if answer.headers.get("Docker-Content-Digest", digest) != digest:
        raise _RefusedError("the digest that the registry states is not that of the manifest it sent")
    return digest


def _is_manifest(answer: _Answer) -> bool:
    """A login page with status 200 has a SHA-256 too."""
    media_type: str = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return media_type in MANIFEST_TYPES


def _token_in(body: bytes) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise _RefusedError("the registry's token service sent no usable token")
    return token
