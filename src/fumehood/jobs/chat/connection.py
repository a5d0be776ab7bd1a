"""The way to a model's endpoint, made narrow: it is given the key and the code of others, and it is not ours.

The official client does the talking and the retrying. What it would do beyond that is taken from it here:

- Redirects are not followed: it would follow them to other hosts, with the code.
- The environment has no say. No proxies, no `SSL_CERT_FILE`, no netrc; and the client's own variables
  (`OPENAI_ORG_ID`, `OPENAI_CUSTOM_HEADERS` …) would add headers or change the key, so only headers named here leave.
- Answers are bounded while they are read, and are not unpacked: a small body could become a large one.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from urllib.parse import SplitResult, urlsplit

import httpx2
import openai

from fumehood.errors import ConfigurationError, JobFailedError
from fumehood.jobs.base import ChatOptions
from fumehood.settings.base import is_loopback, is_token

MAX_ANSWER_BYTES = 8 * 1024 * 1024
CONNECT_SECONDS = 10.0

_HEADERS = frozenset(
    {"host", "accept", "connection", "content-type", "content-length", "idempotency-key", "user-agent"}
)
_NO_KEY = "none"
"""The client insists on a key; this one is taken out again before anything is sent."""


class Way:
    """To one endpoint, as its operator described it; `ConfigurationError` where that makes no sense."""

    def __init__(self, options: ChatOptions) -> None:
        parts = _checked(options)
        self._options = options
        self._tls = _trusted() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def client(self) -> openai.AsyncOpenAI:
        """A fresh one, to be closed: connections live as long as the job that made them."""
        options = self._options
        timeout = httpx2.Timeout(options.timeout_seconds, connect=min(CONNECT_SECONDS, options.timeout_seconds))
        http = httpx2.AsyncClient(
            transport=_Narrow(httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False), options.api_key),
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
        )
        return openai.AsyncOpenAI(
            base_url=options.base_url,
            api_key=options.api_key or _NO_KEY,
            timeout=timeout,
            max_retries=options.max_retries,
            http_client=http,
        )


def _checked(options: ChatOptions) -> SplitResult:
    parts = _split(options.base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("the model service's address must begin with http:// or https:// and name a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError("the model service's address may hold no user, password, query or fragment")
    if parts.scheme == "http" and not options.plain_http and not is_loopback(parts.hostname):
        raise ConfigurationError("plain http: goes to this machine only: a model service elsewhere needs https:")
    if options.api_key and not is_token(options.api_key):
        raise ConfigurationError("the model service's key must be visible ASCII characters, without blanks")
    if not options.model:
        raise ConfigurationError("a model service needs the name of a model")
    return parts


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError("the model service's address is no URL") from None
    return parts


def _trusted() -> ssl.SSLContext:
    """The machine's certificate authorities, whatever the environment says."""
    return httpx2.create_ssl_context(trust_env=False)


class _Narrow(httpx2.AsyncBaseTransport):
    """The last place that a request passes, and the first that an answer reaches. (Taking headers away any earlier
    confuses the client, which keeps notes to itself in them.)"""

    def __init__(self, inner: httpx2.AsyncBaseTransport, api_key: str) -> None:
        self._inner = inner
        self._own = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        kept = {name: value for name, value in request.headers.items() if name in _HEADERS}
        answer = await self._inner.handle_async_request(
            httpx2.Request(
                request.method,
                request.url,
                headers=kept | self._own,
                stream=request.stream,
                extensions=request.extensions,
            )
        )
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            raise JobFailedError("model_answer_invalid", "the model service packs its answers, unasked", again=True)
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_BoundedStream(answer.stream),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                detail = f"the model service's answer is longer than {MAX_ANSWER_BYTES} bytes"
                raise JobFailedError("model_answer_invalid", detail, again=True)
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
