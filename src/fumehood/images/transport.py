"""Exchanges with registries: one request, one bounded answer, tried again where that may help.

The environment is not read (no proxies, no netrc), cookies are not kept, redirects are not followed: what an answer
means is for others to say. Every body is bounded while it is read.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import httpx

from fumehood.errors import ConfigurationError
from fumehood.images.access import RegistryAccess

KIB = 1024
MIB = 1024 * KIB

EXCHANGE_SECONDS = 5.0
"""For each of connecting, sending and one read: short enough for a second try before the deadline."""

_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_STATUS_MEANING = {
    401: "it wants credentials, or refuses ours",
    403: "it denies access",
    404: "no such repository or tag",
    429: "too many requests",
}
_LONGEST_WAIT = 3600


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
class Answer:
    """What an exchange yields: never more than we asked to read."""

    status: int
    headers: httpx.Headers
    body: bytes = b""


class RefusedError(Exception):
    """Ends a resolution; the text becomes part of the error's detail."""


class UnfitContentError(RefusedError):
    """What came is not what was asked for, or too large: nothing that another registry's honesty could mend."""


class UnavailableError(RefusedError):
    """The same, where the next try may go better: after so many seconds."""

    def __init__(self, text: str, seconds: float = 5) -> None:
        super().__init__(text)
        self.seconds = min(max(1, round(seconds)), _LONGEST_WAIT)


@dataclass(slots=True)
class Trouble:
    """What went wrong last, kept for the case that the deadline ends the next try."""

    text: str = ""


class Wire:
    """Exchanges of one request and one bounded answer, tried again where that may help."""

    def __init__(
        self, accesses: Iterable[RegistryAccess], retry: RetryPolicy, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._retry = retry
        self._public = _http_client(True, transport)
        self._private = {
            access.authority: _http_client(_trust(access, access.ca_file), transport)
            for access in accesses
            if access.ca_file is not None
        }

    async def aclose(self) -> None:
        for client in (self._public, *self._private.values()):
            await client.aclose()

    async def exchange(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], *, limit: int, trouble: Trouble
    ) -> Answer:
        """The first answer that is not a passing trouble; `UnavailableError` with the last one when tries run out."""
        for attempt in range(1, self._retry.attempts + 1):
            asked = 0.0
            try:
                answer = await self._once(method, url, headers, limit)
            except (httpx.TransportError, OSError) as error:
                _refuse_untrusted(error)
                trouble.text = f"the connection failed: {_what_failed(error)}"
            except (httpx.InvalidURL, UnicodeError):  # a host that no resolver takes
                raise RefusedError("the registry's address is not valid") from None
            else:
                if answer.status not in _TRANSIENT:
                    return answer
                trouble.text = meaning(answer.status)
                asked = _retry_after(answer)
            if asked > self._retry.patience_seconds:
                raise UnavailableError(f"{trouble.text}, and asks for a wait of {asked:g} s", asked)
            if attempt < self._retry.attempts:
                await asyncio.sleep(self._retry.pause(attempt, asked))
        raise UnavailableError(f"{trouble.text} ({self._retry.attempts} tries)")

    async def _once(self, method: str, url: httpx.URL, headers: Mapping[str, str], limit: int) -> Answer:
        client = self._private.get(url.netloc.decode("ascii"), self._public)
        async with client.stream(method, url, headers=dict(headers)) as response:
            wanted = method == "GET" and response.status_code == 200
            body = await _read(response, limit) if wanted else b""
            return Answer(response.status_code, response.headers, body)


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


async def _read(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            raise UnfitContentError(f"the answer is larger than {limit} bytes")
    return bytes(body)


def _refuse_untrusted(error: BaseException) -> None:
    """A certificate that does not verify will not verify a second later: say so instead of trying again."""
    for seen in _chain(error):
        if isinstance(seen, ssl.SSLCertVerificationError):
            raise RefusedError(
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


def _retry_after(answer: Answer) -> float:
    """The wait that the registry asks for, in seconds; its other form, a date, is left to our own backoff."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else 0.0


def meaning(status: int) -> str:
    words = _STATUS_MEANING.get(status)
    return f"the registry answered {status}" + (f" ({words})" if words else "")


def no(status: int, text: str) -> RefusedError:
    """A status that is not 200: a definite no, or trouble of the registry's own."""
    return UnavailableError(text) if status >= 500 else RefusedError(text)
