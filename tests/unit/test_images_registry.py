"""The registry client against registries that misbehave; the well-behaved ones are real, in tests/integration."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError, DigestResolutionError, RegistryUnavailableError
from fumehood.images import ImageReference, RegistryAccess, RegistryClient, RetryPolicy
from fumehood.images.challenge import MAX_HEADER, parse_challenges
from fumehood.images.conversation import MAX_REDIRECTS, MAX_TOKEN_BYTES
from fumehood.images.reading import MANIFEST_TYPES, MAX_MANIFEST_BYTES
from tests.conftest import TimeBounds
from tests.noise import Watch

MANIFEST = b'{"schemaVersion": 2}'
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()
OTHER = "sha256:" + "0" * 64
PASSWORD = "hunter2-hunter2"
BASIC = "Basic " + base64.b64encode(f"robot:{PASSWORD}".encode()).decode()
ACCESS = RegistryAccess("registry.example", "robot", PASSWORD)
QUICK = RetryPolicy(attempts=3, first_seconds=0.001, longest_seconds=0.002)
BEARER = 'Bearer realm="https://auth.example/token?x=1",service="registry.example",scope="repository:evil:push"'

Handler = Callable[[httpx.Request], httpx.Response]


def found(digest: str | None = DIGEST, body: bytes = MANIFEST, kind: str = MANIFEST_TYPES[0]) -> httpx.Response:
    headers = {"Content-Type": kind}
    if digest is not None:
        headers["Docker-Content-Digest"] = digest
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))


class Registry:
    """A scripted registry: answers by a function, remembers every request."""

    def __init__(self, handler: Handler) -> None:
        self.requests: list[httpx.Request] = []
        self._handler = handler

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._handler(request)

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.url}" for request in self.requests]

    def seen_by(self, host: str) -> list[str | None]:
        """The Authorization headers that a host got."""
        return [request.headers.get("Authorization") for request in self.requests if request.url.host == host]


async def resolve(
    registry: Registry | Handler,
    image: str = "registry.example/app:1",
    *accesses: RegistryAccess,
    deadline: float = 5.0,
    retry: RetryPolicy = QUICK,
) -> str:
    transport = httpx.MockTransport(registry)
    async with RegistryClient(accesses, deadline_seconds=deadline, retry=retry, transport=transport) as client:
        return await client.resolve(ImageReference.parse(image))


async def failure(
    registry: Registry | Handler,
    image: str = "registry.example/app:1",
    *accesses: RegistryAccess,
    deadline: float = 5.0,
    retry: RetryPolicy = QUICK,
) -> str:
    """The detail of the failure that must come; it never holds the password."""
    with pytest.raises(DigestResolutionError) as caught:
        await resolve(registry, image, *accesses, deadline=deadline, retry=retry)
    assert caught.value.reason == "digest_resolution_failed"
    assert PASSWORD not in caught.value.detail
    assert BASIC not in caught.value.detail
    return caught.value.detail


def redirect(location: str) -> httpx.Response:
    return httpx.Response(307, headers={"Location": location})


def challenged(request: httpx.Request, *challenges: str) -> httpx.Response | None:
    if "Authorization" in request.headers:
        return None
    return httpx.Response(401, headers=[("WWW-Authenticate", challenge) for challenge in challenges])


# --- the question and its answer -----------------------------------------------------------------------------------


async def test_one_head_with_every_manifest_type_is_enough() -> None:
    """Without the full Accept list some registries answer with an old schema and another digest."""
    registry = Registry(lambda request: found(body=b""))
    assert await resolve(registry) == DIGEST
    assert registry.asked == ["HEAD https://registry.example/v2/app/manifests/1"]
    assert registry.requests[0].headers["Accept"].split(", ") == list(MANIFEST_TYPES)
    assert registry.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("image", "url"),
    [
        ("python:3.12", "https://registry-1.docker.io/v2/library/python/manifests/3.12"),
        ("127.0.0.1:5055/app", "http://127.0.0.1:5055/v2/app/manifests/latest"),
        ("localhost/app", "http://localhost/v2/app/manifests/latest"),
        ("[::1]:5000/app", "http://[::1]:5000/v2/app/manifests/latest"),
        ("ghcr.io:443/app", "https://ghcr.io/v2/app/manifests/latest"),
        (f"ghcr.io/app:1@{DIGEST}", f"https://ghcr.io/v2/app/manifests/{DIGEST}"),
    ],
)
async def test_asks_at_the_right_place(image: str, url: str) -> None:
    """Plain HTTP on the loopback alone; Docker Hub's API has a host of its own."""
    registry = Registry(lambda request: found())
    assert await resolve(registry, image) == DIGEST
    assert registry.asked == [f"HEAD {url}"]


@pytest.mark.parametrize(
    "head",
    [
        httpx.Response(405),
        httpx.Response(501),
        found(digest=None),
        found(digest="sha256:short"),
        found(kind="application/json"),
    ],
)
async def test_falls_back_to_get_and_hashes_the_body(head: httpx.Response) -> None:
    """A HEAD that says too little is followed by a GET, whose body has a digest of its own."""
    registry = Registry(lambda request: head if request.method == "HEAD" else found(digest=None))
    assert await resolve(registry) == DIGEST
    assert [request.method for request in registry.requests] == ["HEAD", "GET"]


async def test_a_body_that_is_not_what_the_header_says_is_refused() -> None:
    registry = Registry(lambda request: httpx.Response(405) if request.method == "HEAD" else found(digest=OTHER))
    assert "not that of the manifest" in await failure(registry)


async def test_another_digest_than_asked_for_is_refused() -> None:
    assert "another digest" in await failure(lambda request: found(), f"registry.example/app@{OTHER}")


@pytest.mark.parametrize("kind", ["text/html", "application/vnd.docker.distribution.manifest.v1+prettyjws", ""])
async def test_a_login_page_is_not_a_manifest(kind: str) -> None:
    """Status 200 alone proves nothing: any body has a SHA-256."""
    assert "not a manifest" in await failure(lambda request: found(digest=None, kind=kind))


async def test_a_flood_is_cut_while_it_is_read() -> None:
    """Content-Length is not trusted, and what is beyond the bound is never asked for."""
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b"x" * (1 << 20)

    def handler(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": MANIFEST_TYPES[1]}
        return httpx.Response(200, headers=headers, content=flood()) if request.method == "GET" else httpx.Response(405)

    assert f"larger than {MAX_MANIFEST_BYTES}" in await failure(handler)
    assert sent <= MAX_MANIFEST_BYTES + (2 << 20)


@pytest.mark.parametrize(
    ("status", "why"), [(404, "no such repository or tag"), (403, "denies"), (400, "400"), (204, "204"), (418, "418")]
)
async def test_a_final_answer_is_final(status: int, why: str) -> None:
    """No second try for what will not change."""
    registry = Registry(lambda request: httpx.Response(status))
    assert why in await failure(registry)
    assert len(registry.requests) == 1


# --- redirects -----------------------------------------------------------------------------------------------------


async def test_credentials_do_not_follow_a_redirect_to_another_host() -> None:
    """Basic credentials were shown to the registry, and to nobody else."""

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "cdn.example":
            return found()
        return challenged(request, 'Basic realm="r"') or redirect("https://cdn.example/m?signature=s3cret")

    registry = Registry(handler)
    assert await resolve(registry, "registry.example/app:1", ACCESS) == DIGEST
    assert registry.seen_by("registry.example") == [None, BASIC]
    assert registry.seen_by("cdn.example") == [None]


@pytest.mark.parametrize("target", ["https://registry.example:8443/m", "https://registry.example.evil/m"])
async def test_another_port_is_another_host(target: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/m":
            return found()
        return challenged(request, "Basic") or redirect(target)

    registry = Registry(handler)
    assert await resolve(registry, "registry.example/app:1", ACCESS) == DIGEST
    assert [request.headers.get("Authorization") for request in registry.requests] == [None, BASIC, None]


async def test_a_redirect_within_the_registry_keeps_its_credentials() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/moved":
            return found()
        return challenged(request, "Basic") or redirect("/moved")

    registry = Registry(handler)
    assert await resolve(registry, "registry.example/app:1", ACCESS) == DIGEST
    assert registry.seen_by("registry.example") == [None, BASIC, BASIC]


async def test_a_redirect_target_that_wants_credentials_gets_none() -> None:
    """Otherwise a registry could send us to collect tokens for somebody else."""

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "cdn.example":
            return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="r"'})
        return challenged(request, "Basic") or redirect("https://cdn.example/m")

    registry = Registry(handler)
    assert "it gets none" in await failure(registry, "registry.example/app:1", ACCESS)
    assert registry.seen_by("cdn.example") == [None]


@pytest.mark.parametrize(
    ("image", "location", "why"),
    [
        ("registry.example/app", "http://cdn.example/m", "plain HTTP"),
        ("registry.example/app", "https://127.0.0.1/m", "loopback"),
        ("registry.example/app", "https://localhost/m", "loopback"),
        ("registry.example/app", "https://[::1]/m", "loopback"),
        ("registry.example/app", "http://127.0.0.1:2375/m", "loopback"),
        ("registry.example/app", "file:///etc/passwd", "neither HTTP"),
        ("registry.example/app", "https://127.1/m", "spelled"),
        ("registry.example/app", "https://2130706433/m", "spelled"),
        ("registry.example/app", "https://[::ffff:7f00:1]/m", "spelled"),
        ("registry.example/app", "https://localhost./m", "spelled"),
        ("registry.example/app", "https://a%20b/m", "spelled"),
        ("registry.example/app", "https://u:p@cdn.example/m", "credentials in the URL"),
        ("127.0.0.1:5055/app", "http://cdn.example/m", "plain HTTP"),
    ],
)
async def test_a_registry_cannot_send_us_anywhere(image: str, location: str, why: str) -> None:
    """Not to plain HTTP, not to this machine, not to another scheme."""
    registry = Registry(lambda request: redirect(location))
    assert why in await failure(registry, image)
    assert len(registry.requests) == 1


async def test_https_is_never_downgraded() -> None:
    """Not even on the loopback, once HTTPS was configured for it."""
    registry = Registry(lambda request: redirect("http://127.0.0.1:5056/m"))
    access = RegistryAccess("127.0.0.1:5056", "robot", PASSWORD)
    assert "from HTTPS to plain" in await failure(registry, "127.0.0.1:5056/app", access)


async def test_redirects_come_to_an_end() -> None:
    registry = Registry(lambda request: redirect("/again"))
    assert "redirects" in await failure(registry)
    assert len(registry.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("location", ["https://[::/m", "https://x\x00/", "https://x:99999999/"])
async def test_a_redirect_to_what_is_no_url_is_a_failure_like_any_other(location: str) -> None:
    assert "cannot resolve registry.example/app:1: " in await failure(lambda request: redirect(location))


async def test_a_redirect_needs_a_target() -> None:
    assert "nowhere" in await failure(lambda request: httpx.Response(302))


# --- credentials and tokens ----------------------------------------------------------------------------------------


def with_tokens(token: Mapping[str, object], challenge: str = BEARER) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            return httpx.Response(200, stream=httpx.ByteStream(json.dumps(token).encode()))
        return challenged(request, 'Negotiate, Basic realm="r"', challenge) or found()

    return handler


@pytest.mark.parametrize("key", ["token", "access_token"])
async def test_an_anonymous_token_is_fetched_where_the_registry_says(key: str) -> None:
    """As public registries want it; the scope is ours, whatever the challenge suggests."""
    registry = Registry(with_tokens({key: "abc"}))
    assert await resolve(registry) == DIGEST
    assert registry.seen_by("registry.example") == [None, "Bearer abc"]
    assert registry.seen_by("auth.example") == [None]
    query = dict(registry.requests[1].url.params)
    assert query == {"x": "1", "service": "registry.example", "scope": "repository:app:pull"}


async def test_credentials_buy_a_token_and_are_not_shown_to_the_manifest() -> None:
    registry = Registry(with_tokens({"token": "abc"}))
    assert await resolve(registry, "registry.example/app:1", ACCESS) == DIGEST
    assert registry.seen_by("auth.example") == [BASIC]
    assert registry.seen_by("registry.example") == [None, "Bearer abc"]


async def test_a_token_serves_head_and_get() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            return httpx.Response(200, stream=httpx.ByteStream(b'{"token": "abc"}'))
        return challenged(request, BEARER) or (httpx.Response(405) if request.method == "HEAD" else found())

    registry = Registry(handler)
    assert await resolve(registry) == DIGEST
    assert registry.seen_by("registry.example") == [None, "Bearer abc", "Bearer abc"]


async def test_credentials_of_one_registry_are_not_for_another() -> None:
    registry = Registry(lambda request: challenged(request, "Basic") or found())
    assert "none are configured" in await failure(registry, "other.example/app", ACCESS)
    assert registry.seen_by("other.example") == [None]


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        ('Bearer realm="http://auth.example/token"', "plain HTTP"),
        ('Bearer realm="https://127.0.0.1/token"', "loopback"),
        ('Bearer realm="http://localhost/token"', "loopback"),
        ('Bearer realm="https://u:p@auth.example/token"', "credentials in the URL"),
        ('Bearer realm="/token"', "neither HTTP"),
        ('Bearer realm="https://[::/token"', "not a URL"),
        ("Bearer", "neither HTTP"),
        ("Negotiate", "none are configured"),
        ('realm="no scheme"', "401"),
        ("", "401"),
    ],
)
async def test_a_token_service_must_be_a_safe_place(challenge: str, why: str) -> None:
    """Credentials would go there, so nothing is sent to a place that could leak them."""
    registry = Registry(lambda request: httpx.Response(401, headers={"WWW-Authenticate": challenge}))
    assert why in await failure(registry, "registry.example/app:1", ACCESS)
    assert registry.seen_by("registry.example") == [None]
    assert len(registry.requests) == 1


async def test_a_loopback_registry_may_have_a_plain_token_service() -> None:
    handler = with_tokens({"token": "abc"}, 'Bearer realm="http://localhost:5001/token"')
    assert await resolve(handler, "127.0.0.1:5055/app") == DIGEST


async def test_a_registry_that_is_never_content_is_asked_twice() -> None:
    """No loop of challenges."""
    registry = Registry(lambda request: httpx.Response(401, headers={"WWW-Authenticate": "Basic"}))
    assert "refuses ours" in await failure(registry, "registry.example/app:1", ACCESS)
    assert registry.seen_by("registry.example") == [None, BASIC]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"token": 1}',
        b'{"token": "a b"}',
        b'{"token": "a\\r\\nX: y"}',
        b'{"token": "\xc3\xa4"}',
        b"\xff",
        b"[" * 50_000,
    ],
)
async def test_a_token_must_be_usable(body: bytes) -> None:
    """What the token service sends becomes a header: it cannot add another one."""

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            return httpx.Response(200, stream=httpx.ByteStream(body))
        return httpx.Response(401, headers={"WWW-Authenticate": BEARER})

    assert "no usable token" in await failure(handler)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(200, stream=httpx.ByteStream(b"x" * (MAX_TOKEN_BYTES + 1))), f"larger than {MAX_TOKEN_BYTES}"),
        (httpx.Response(401), "token service answered 401"),
        (redirect("https://evil.example/token"), "token service answered 307"),
    ],
)
async def test_a_token_service_is_bounded_and_direct(answer: httpx.Response, why: str) -> None:
    """Its redirects are not followed: credentials are in the request."""

    def handler(request: httpx.Request) -> httpx.Response:
        bearer = {"WWW-Authenticate": BEARER}
        return answer if request.url.path == "/token" else httpx.Response(401, headers=bearer)

    registry = Registry(handler)
    assert why in await failure(registry, "registry.example/app:1", ACCESS)
    assert registry.seen_by("evil.example") == []


async def test_cookies_are_not_kept() -> None:
    """One caller's session at a registry is not the next one's."""

    def handler(request: httpx.Request) -> httpx.Response:
        response = found()
        response.headers["Set-Cookie"] = "session=1; Path=/"
        return response

    registry = Registry(handler)
    async with RegistryClient(transport=httpx.MockTransport(registry)) as client:
        for _ in range(2):
            await client.resolve(ImageReference.parse("registry.example/app"))
    assert all("Cookie" not in request.headers for request in registry.requests)


# --- trouble and time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [429, 500, 502, 503, 504, httpx.ConnectError("x"), httpx.ReadTimeout("x")])
async def test_passing_trouble_is_tried_again(trouble: int | Exception) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if len(registry.requests) < QUICK.attempts:
            if isinstance(trouble, Exception):
                raise trouble
            return httpx.Response(trouble)
        return found()

    registry = Registry(handler)
    assert await resolve(registry) == DIGEST
    assert len(registry.requests) == QUICK.attempts


async def test_trouble_that_stays_is_named() -> None:
    registry = Registry(lambda request: httpx.Response(503))
    assert "answered 503 (3 tries)" in await failure(registry)
    assert len(registry.requests) == QUICK.attempts


async def test_a_failed_connection_does_not_quote_the_library() -> None:
    """Its message could name a host's path or address that the caller need not know."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"could not reach {PASSWORD}")

    said = await failure(handler)
    assert "the connection failed: it could not be made, or broke" in said
    assert PASSWORD not in said


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(), "nothing listens there"),
        (socket.gaierror(), "the name of the host is not known"),
        (ssl.SSLError(), "does not speak TLS"),
        (ExceptionGroup("x", [ConnectionRefusedError()]), "nothing listens there"),
    ],
)
async def test_a_failed_connection_is_told_in_words(cause: Exception, words: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("x") from cause

    assert words in await failure(handler)


async def test_a_tls_registry_that_is_spoken_to_plainly_is_guessed() -> None:
    assert "perhaps it speaks TLS" in await failure(lambda request: httpx.Response(400), "127.0.0.1:5056/app:1")


@pytest.mark.parametrize(
    ("answer", "later"),
    [(401, False), (403, False), (404, False), (429, True), (500, True), (503, True), (507, True), (None, True)],
)
async def test_a_registry_that_cannot_be_asked_is_told_from_one_that_says_no(answer: int | None, later: bool) -> None:
    """The first is worth another try under the same job; the second is an answer."""

    def handler(request: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("x")
        return httpx.Response(answer)

    with pytest.raises(DigestResolutionError) as caught:
        await resolve(Registry(handler))
    assert isinstance(caught.value, RegistryUnavailableError) is later
    assert caught.value.retryable is later


async def test_an_untrusted_certificate_is_not_tried_again() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        cause = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
        cause.verify_message = "self-signed certificate"
        raise httpx.ConnectError("x") from cause

    registry = Registry(handler)
    assert "not trusted (self-signed certificate)" in await failure(registry)
    assert len(registry.requests) == 1


async def test_a_host_that_no_resolver_takes_is_a_failure_like_any_other() -> None:
    """A redirect can name one: the standard library raises UnicodeError for a label that is too long."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise UnicodeError("label too long")

    assert "address is not valid" in await failure(handler)


async def test_the_deadline_is_for_everything_and_names_the_last_trouble(time_bounds: TimeBounds) -> None:
    patient = RetryPolicy(attempts=1000, first_seconds=0.01, longest_seconds=0.01)
    began = Watch()
    detail = await failure(lambda request: httpx.Response(503), deadline=0.2, retry=patient)
    assert "no answer within 0.2 s (last: the registry answered 503)" in detail
    time_bounds.check(began.seconds, 2)


async def test_a_registry_that_says_nothing_meets_the_deadline() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return found()

    with pytest.raises(DigestResolutionError, match=r"no answer within 0\.05 s$"):
        async with RegistryClient(deadline_seconds=0.05, transport=httpx.MockTransport(handler)) as client:
            await client.resolve(ImageReference.parse("registry.example/app"))


async def test_a_long_wait_asked_for_is_a_failure_now() -> None:
    registry = Registry(lambda request: httpx.Response(429, headers={"Retry-After": "3600"}))
    with pytest.raises(RegistryUnavailableError, match="asks for a wait of 3600 s") as caught:
        await resolve(registry)
    assert caught.value.retry_after_seconds == 3600
    assert len(registry.requests) == 1


@given(st.integers(1, 2000), st.floats(0, 10))
def test_pauses_are_jittered_within_bounds(attempt: int, asked: float) -> None:
    """Never shorter than asked for, never much longer, whatever the attempt."""
    retry = RetryPolicy()
    assert asked <= retry.pause(attempt, asked) <= asked + retry.longest_seconds


# --- sharing -------------------------------------------------------------------------------------------------------


class Gate:
    """An async registry that answers when told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = 0
        self.digest = DIGEST

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        digest = self.digest
        await self.open.wait()
        return found(digest)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


REFERENCE = ImageReference.parse("registry.example/app")


async def test_a_thousand_at_once_ask_once() -> None:
    gate = Gate()
    async with RegistryClient(transport=httpx.MockTransport(gate)) as client:
        waiting = [asyncio.create_task(client.resolve(REFERENCE)) for _ in range(1000)]
        await settle()
        gate.open.set()
        assert set(await asyncio.gather(*waiting)) == {DIGEST}
    assert gate.asked == 1


async def test_nobody_gets_an_answer_from_before_the_question() -> None:
    """Push a tag, then ask: the digest is the new one, though an older question is still under way."""
    gate = Gate()
    async with RegistryClient(transport=httpx.MockTransport(gate)) as client:
        early = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        gate.digest = OTHER
        late = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        gate.open.set()
        assert (await early, await late) == (DIGEST, OTHER)


async def test_one_caller_leaving_ends_nothing_for_the_others() -> None:
    gate = Gate()
    async with RegistryClient(transport=httpx.MockTransport(gate)) as client:
        first, second = (asyncio.create_task(client.resolve(REFERENCE)) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        assert first.cancelled()
        gate.open.set()
        assert await second == DIGEST
    assert gate.asked == 1


async def test_when_all_callers_left_the_work_ends_and_the_next_one_starts_anew() -> None:
    gate = Gate()
    async with RegistryClient(transport=httpx.MockTransport(gate)) as client:
        gone = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        gone.cancel()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gate.open.set()
        assert await client.resolve(REFERENCE) == DIGEST
    assert gate.asked == 2


async def test_a_waiting_question_that_is_dropped_leaves_the_running_one() -> None:
    """The next caller still waits for its turn instead of starting a second one beside it."""
    gate = Gate()
    async with RegistryClient(transport=httpx.MockTransport(gate)) as client:
        running = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        dropped = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        dropped.cancel()
        await settle()
        third = asyncio.create_task(client.resolve(REFERENCE))
        await settle()
        assert gate.asked == 1
        gate.open.set()
        assert (await running, await third) == (DIGEST, DIGEST)
    assert gate.asked == 2


async def test_a_shared_failure_is_an_error_of_its_own_for_each() -> None:
    """Callers attach their evidence to it."""
    async with RegistryClient(transport=httpx.MockTransport(lambda request: httpx.Response(404))) as client:
        errors = await asyncio.gather(*(client.resolve(REFERENCE) for _ in range(2)), return_exceptions=True)
    assert all(isinstance(error, DigestResolutionError) for error in errors)
    assert errors[0] is not errors[1]


async def test_closing_ends_what_is_under_way() -> None:
    """Those who wait get an error, not a cancellation that nobody asked for."""
    client = RegistryClient(transport=httpx.MockTransport(Gate()))
    waiting = asyncio.create_task(client.resolve(REFERENCE))
    await settle()
    await client.aclose()
    with pytest.raises(DigestResolutionError, match="closed"):
        await waiting


# --- configuration -------------------------------------------------------------------------------------------------


def test_a_password_is_not_printed() -> None:
    assert PASSWORD not in repr(ACCESS)


@pytest.mark.parametrize(
    ("access", "plain"),
    [
        (RegistryAccess("127.0.0.1:5055"), True),
        (RegistryAccess("127.0.0.1:5055", "u", "p"), False),
        (RegistryAccess("127.0.0.1:5055", ca_file=Path("ca.pem")), False),
        (RegistryAccess("127.0.0.1:5055", "u", "p", insecure_http=True), True),
        (RegistryAccess("ghcr.io"), False),
        (RegistryAccess("docker.io", "u", "p"), False),
    ],
)
def test_plain_or_not_is_decided_by_configuration(access: RegistryAccess, plain: bool) -> None:
    """Never by what failed: credentials or a CA mean HTTPS, unless plain HTTP is asked for by name."""
    assert access.plain is plain


@pytest.mark.parametrize(
    ("host", "username", "password", "insecure"),
    [
        ("ghcr.io", None, None, True),
        ("ghcr.io", "u", None, False),
        ("ghcr.io", None, "p", False),
        ("ghcr.io", "a:b", "p", False),
        ("https://ghcr.io", None, None, False),
        ("GHCR.io", None, None, False),
        ("index.docker.io", None, None, False),
    ],
)
def test_wrong_access_is_refused_at_once(host: str, username: str | None, password: str | None, insecure: bool) -> None:
    with pytest.raises(ConfigurationError):
        RegistryAccess(host, username, password, insecure_http=insecure)


def test_a_ca_file_is_read_when_the_client_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    for name, why in (("missing.pem", "cannot be read: No such file"), ("empty.pem", "holds no PEM certificates")):
        with pytest.raises(ConfigurationError) as caught:
            RegistryClient([RegistryAccess("ghcr.io", ca_file=tmp_path / name)])
        assert f"registry ghcr.io: its ca_file {tmp_path / name} {why}" in caught.value.detail


# --- challenges ----------------------------------------------------------------------------------------------------


def test_challenges_are_told_apart() -> None:
    """Several in one header, quoted commas and escapes included."""
    found_ = parse_challenges(['Basic realm="a, Bearer realm=x", Bearer Realm="q\\"q",service=s', "Negotiate"])
    assert [(challenge.scheme, dict(challenge.parameters)) for challenge in found_] == [
        ("basic", {"realm": "a, Bearer realm=x"}),
        ("bearer", {"realm": 'q"q', "service": "s"}),
        ("negotiate", {}),
    ]


@given(st.lists(st.text() | st.text('Bearer="\\, ', max_size=60)))
def test_any_header_can_be_read(headers: list[str]) -> None:
    parse_challenges(headers)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ['a="', "\\", " ", ",", 'a="\\', "a =", "a"])
def test_a_hostile_header_costs_little(piece: str) -> None:
    parse_challenges([piece * MAX_HEADER] * 4)
