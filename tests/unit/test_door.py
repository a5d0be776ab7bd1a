"""What all doors share: paths by their templates, and a guard that asks its keeper before anything else."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fumehood.door import middleware
from fumehood.door.app import Door
from fumehood.door.keepers import ENTRANT, Entrant, TokenKeeper
from fumehood.door.middleware import Authentication
from fumehood.door.paths import Templates
from fumehood.door.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.errors import BrokerUnavailableError
from fumehood.settings import Access
from tests.waiting import past

TEMPLATES = Templates(["/healthz", "/v1/runs/{run_id}", "/v1/runs/{run_id}:cancel", "/v1/runs/{run_id}/history"])


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/healthz", "/healthz"),
        ("/v1/runs/run-1", "/v1/runs/{run_id}"),
        ("/v1/runs/run-1:cancel", "/v1/runs/{run_id}:cancel"),
        ("/v1/runs/run-1/history", "/v1/runs/{run_id}/history"),
        ("/v1/runs/", None),
        ("/v1/runs/a/b", None),
        ("/v1/runs/a\n", "/v1/runs/{run_id}"),
        ("/healthz/", None),
        ("", None),
    ],
)
def test_a_path_is_called_by_its_template(path: str, template: str | None) -> None:
    assert TEMPLATES.of(path) == template


class Keeper:
    """Knows whom a test says; `bob` may only read `/v1/runs/…`."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.away = False
        self.seen: list[tuple[object, int]] = []

    async def knows(self, authorization: str | None) -> Entrant | None:
        if self.away:
            raise BrokerUnavailableError("nobody can be asked")
        name = (authorization or "").removeprefix("Bearer ")
        return Entrant(name) if name in self.known else None

    def wanted(self, method: str, route: str | None) -> str:
        return "more"

    def allows(self, who: object, method: str, route: str | None) -> bool:
        return who == "admin" or (method == "GET" and route == "/v1/runs/{run_id}")

    async def saw(self, scope: Scope, status: int) -> None:
        self.seen.append((scope.get(ENTRANT), status))


def guard(keeper: Keeper | TokenKeeper, app: ASGIApp | None = None) -> Authentication:
    return Authentication(
        app or PlainTextResponse("in"),
        keeper=keeper,
        open_paths={"/healthz"},
        routes=TEMPLATES,
        methods={"/v1/runs/{run_id}": ["GET"], "/v1/runs/{run_id}:cancel": ["POST"]},
    )


async def knock(app: ASGIApp, path: str, token: str | None, method: str = "GET") -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/healthz", None, 200),
        ("GET", "/v1/runs/a", "admin", 200),
        ("GET", "/v1/runs/a", "bob", 200),
        ("POST", "/v1/runs/a:cancel", "admin", 200),
        ("POST", "/v1/runs/a:cancel", "bob", 403),
        ("GET", "/v1/runs/a/history", "bob", 403),
        ("GET", "/nowhere", "bob", 403),
        ("GET", "/nowhere", "admin", 200),
        ("GET", "/nowhere", "wrong", 401),
        ("GET", "/nowhere", None, 401),
        ("GET", "/v1/runs/a", "wrong", 401),
        ("GET", "/v1/runs/a", None, 401),
        ("DELETE", "/v1/runs/a", "bob", 200),  # no such method, which is said further in
        ("DELETE", "/v1/runs/a", None, 401),
    ],
)
async def test_who_is_unknown_stays_out_and_who_is_known_may_what_it_may(
    method: str, path: str, token: str | None, status: int
) -> None:
    keeper = Keeper("admin", "bob")
    answer = await knock(guard(keeper), path, token, method)
    assert answer.status_code == status
    assert keeper.seen == [(token if status in (200, 403) else None, status)]
    if status == 403:
        assert answer.json()["type"] == "urn:fumehood:problem:forbidden"
        assert "www-authenticate" not in answer.headers
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_two_authorization_headers_are_none() -> None:
    headers = [("authorization", "Bearer admin"), ("authorization", "Bearer admin")]
    transport = httpx.ASGITransport(app=guard(Keeper("admin")))
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        assert (await client.get("/v1/runs/a", headers=headers)).status_code == 401


async def test_a_keeper_that_cannot_find_out_lets_nobody_in() -> None:
    keeper = Keeper("admin")
    keeper.away = True
    answer = await knock(guard(keeper), "/v1/runs/a", "admin")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fumehood:problem:broker-unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await knock(guard(keeper), "/healthz", None)).status_code == 200


async def test_nothing_of_the_body_is_read_before_the_token() -> None:
    async def receive() -> Message:
        raise AssertionError("read too early")

    async def send(message: Message) -> None:
        sent.append(message)

    for token, status in (("wrong", 401), ("bob", 403)):
        sent: list[Message] = []
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/runs/a:cancel", "headers": headers}
        await guard(Keeper("bob"))(scope, receive, send)
        assert sent[0]["status"] == status


async def test_a_fault_is_seen_too_and_a_client_that_left_is_not() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("ours")

    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    keeper = Keeper("admin")
    with pytest.raises(RuntimeError):
        await knock(guard(keeper, broken), "/v1/runs/a", "admin")
    with pytest.raises(ClientDisconnect):
        await knock(guard(keeper, left), "/v1/runs/a", "admin")
    assert keeper.seen == [("admin", 500)]


@pytest.mark.parametrize("ends", ["revoked", "away", "good"])
async def test_a_stream_ends_with_its_token(ends: str) -> None:
    """A token that is revoked while an answer is written: not a byte more. An outage is no revocation."""
    keeper, sent = Keeper("bob"), []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"before", "more_body": True})
        if ends == "revoked":
            keeper.known.clear()
        keeper.away = ends == "away"
        await past(middleware._GOOD_SECONDS)
        await send({"type": "http.response.body", "body": b"after", "more_body": False})

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message.get("body"))

    scope = {"type": "http", "method": "GET", "path": "/v1/runs/a", "headers": [(b"authorization", b"Bearer bob")]}
    if ends == "revoked":
        with pytest.raises(ClientDisconnect):
            await guard(keeper, stream)(scope, _nothing, send)
        assert sent == [None, b"before"]
    else:
        await guard(keeper, stream)(scope, _nothing, send)
        assert sent == [None, b"before", b"after"]


async def test_a_stream_does_not_outlive_an_outage_for_long() -> None:
    keeper, sent = Keeper("bob"), []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        keeper.away = True
        while True:
            await send({"type": "http.response.body", "body": b"news", "more_body": True})

    async def send(message: Message) -> None:
        await past(middleware._GOOD_SECONDS)
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/runs/a", "headers": [(b"authorization", b"Bearer bob")]}
    began = time.monotonic()
    with pytest.raises(ClientDisconnect):
        await guard(keeper, stream)(scope, _nothing, send)
    assert time.monotonic() - began >= middleware._BLIND_SECONDS, "it went on for a while"
    assert len(sent) <= 3 + middleware._BLIND_SECONDS / middleware._GOOD_SECONDS, "and then it ended"


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_one_token_opens_all_of_a_door_and_none_closes_it() -> None:
    def source(token: str | None, *, insecure: bool = False) -> TokenKeeper:
        return TokenKeeper(TokenSource(Access("api", "--token-file", token=token, insecure=insecure)))

    assert (await knock(guard(source("t")), "/nowhere", "t")).status_code == 200
    assert (await knock(guard(source("t")), "/nowhere", "other")).status_code == 401
    assert (await knock(guard(source(None)), "/nowhere", "")).status_code == 401
    assert (await knock(guard(source(None, insecure=True)), "/nowhere", None)).status_code == 200


async def test_a_route_that_the_guard_did_not_decide_about_is_closed() -> None:
    """It is not among the paths that the guard knows, so that its rule was never asked."""
    router = APIRouter()

    @router.get("/v1/forgotten")
    async def forgotten(request: Request) -> Response:
        raise AssertionError("let in")

    door = Door(title="t", description="", routers=[router], components=dict, announce=[])
    telemetry = Telemetry("server", "test")
    door.guard(telemetry=telemetry, paths=["/v1/known"], open_paths=[], keeper=Keeper("admin"), body_limit=1000)
    assert (await knock(door, "/v1/forgotten", "admin")).status_code == 403


async def test_what_is_no_request_is_no_way_in() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["type"])

    async def send(message: Message) -> None:
        sent.append(message)

    reached: list[str] = []
    sent: list[Message] = []
    await guard(Keeper("admin"), app)({"type": "websocket", "path": "/v1/runs/a", "headers": []}, _nothing, send)
    assert (reached, [message["type"] for message in sent]) == ([], ["websocket.close"])
    await guard(Keeper("admin"), app)({"type": "lifespan"}, _nothing, send)
    assert reached == ["lifespan"]
