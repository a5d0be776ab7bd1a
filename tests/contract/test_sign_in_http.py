"""Signing in a browser: what its cookie opens, and what it does not."""

from __future__ import annotations

import base64
from functools import partialmethod

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from fumehood.control.http import sign_in, web
from fumehood.wire.key_api import Scope
from tests.contract.server_api_harness import ADMIN, Api

MARK = "a-mark-of-this-browser"
PAGE = {"x-fumehood-browser": MARK, "origin": "http://localhost:8080"}


async def signed_in(api: Api, key: str = ADMIN) -> httpx.AsyncClient:
    browser = api.client(None)
    answer = await browser.post("/v1/sign-in", json={"key": key}, headers=PAGE)
    assert answer.status_code == 204, answer.text
    return browser


async def status(browser: httpx.AsyncClient, headers: dict[str, str] | None = None) -> int:
    return (await browser.get("/v1/caller", headers=PAGE if headers is None else headers)).status_code


async def test_a_cookie_stands_for_the_key_that_it_was_made_from() -> None:
    api = Api()
    made = await api.client().post("/v1/keys", json={"name": "reader", "scopes": [Scope.RUNS_READ]})
    browser = await signed_in(api, made.json()["key"])
    caller = (await browser.get("/v1/caller", headers=PAGE)).json()
    assert (caller["name"], caller["scopes"]) == (f"{made.json()['id']}/reader", ["runs:read"])
    assert (await browser.get("/v1/runs/none", headers=PAGE)).status_code == 404
    assert (await browser.get("/v1/keys", headers=PAGE)).status_code == 403


async def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites() -> None:
    answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers=PAGE)
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert sorted(attributes) == ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=strict"]
    assert ADMIN.encode() not in base64.urlsafe_b64decode(cookie.partition("=")[2] + "==")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("origin", ["https://fumehood.example", "null", None])
async def test_a_page_that_came_over_tls_gets_a_cookie_for_tls_alone(origin: str | None) -> None:
    headers = {"x-fumehood-browser": MARK} | ({} if origin is None else {"origin": origin})
    answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "origin", ["http://fumehood.example", "http://10.0.0.5:8080", "http://localhost.example", "http://["]
)
async def test_no_key_is_taken_from_a_page_that_crossed_a_network_in_clear(origin: str) -> None:
    answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers={**PAGE, "origin": origin})
    assert answer.status_code == 403
    assert "HTTPS" in answer.json()["detail"]


@pytest.mark.parametrize("origin", ["http://[::1]:8080", "http://127.0.0.1:8080", "http://fumehood.localhost:8080"])
async def test_a_page_of_this_machine_may_come_over_plain_http(origin: str) -> None:
    answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers={**PAGE, "origin": origin})
    assert answer.status_code == 204


async def test_two_servers_on_one_host_have_a_cookie_each() -> None:
    names = set()
    for host in ("127.0.0.1:8080", "127.0.0.1:8081", "[::1]:8080", "fumehood.example", "[::1]"):
        answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers={**PAGE, "host": host})
        names.add(answer.headers["set-cookie"].partition("=")[0])
    assert names == {"fumehood-sign-in-8080", "fumehood-sign-in-8081", "fumehood-sign-in"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**PAGE, "x-fumehood-browser": "1"},
        {**PAGE, "sec-fetch-site": "same-site"},
        {**PAGE, "sec-fetch-site": "cross-site"},
    ],
)
async def test_a_request_from_another_page_gets_nothing_from_the_cookie(headers: dict[str, str]) -> None:
    api = Api()
    browser = await signed_in(api)
    assert await status(browser, headers) == 401
    for path, body in (("/v1/sign-in", {"key": ADMIN}), ("/v1/sign-out", None)):
        assert (await browser.post(path, json=body, headers=headers)).status_code == 403
    assert await status(browser) == 200


async def test_a_cookie_counts_only_with_the_mark_that_it_was_made_for() -> None:
    """Another server on the host is sent the cookie, and can set one of its own; the mark it neither sees nor sets."""
    browser = await signed_in(Api())
    assert await status(browser, {**PAGE, "x-fumehood-browser": "the-mark-of-somebody-else"}) == 401
    assert await status(browser) == 200


async def test_a_wrong_key_gets_no_cookie() -> None:
    client = Api().client(None)
    for key, refused in (("guess", 401), ("", 400), ("two\r\nlines", 400), ("\u2003blank", 400), ("k" * 1025, 400)):
        answer = await client.post("/v1/sign-in", json={"key": key}, headers=PAGE)
        assert answer.status_code == refused, key
        assert "set-cookie" not in answer.headers
    assert (await client.post("/v1/sign-in", content=b" " * 20_000, headers=PAGE)).status_code == 413


async def test_a_revoked_key_ends_its_cookies() -> None:
    api = Api()
    made = (await api.client().post("/v1/keys", json={"name": "gone", "scopes": [Scope.RUNS_READ]})).json()
    browser = await signed_in(api, made["key"])
    assert await status(browser) == 200
    await api.client().delete(f"/v1/keys/{made['id']}")
    assert await status(browser) == 401


async def test_signing_out_removes_the_cookie() -> None:
    browser = await signed_in(Api())
    assert (await browser.post("/v1/sign-out", headers=PAGE)).status_code == 204
    assert not browser.cookies
    assert await status(browser) == 401


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]
    init = sign_in.Cookies.__init__
    monkeypatch.setattr(sign_in.Cookies, "__init__", partialmethod(init, now=lambda: now[0]))
    return now


async def test_a_cookie_is_good_for_twelve_hours(clock: list[float]) -> None:
    browser = await signed_in(Api())
    clock[0] += 12 * 3600 - 1
    assert await status(browser) == 200
    clock[0] += 1
    assert await status(browser) == 401


async def test_a_stream_ends_with_its_cookie(clock: list[float]) -> None:
    """Raised for whoever writes to it: what lies behind takes that for a reader who has left."""
    api = Api()
    cookies = sign_in.Cookies(api.service.broker)
    sent: list[Message] = []

    async def stream(scope: AsgiScope, receive: Receive, send: Send) -> None:
        assert Headers(scope=scope)["authorization"] == f"Bearer {ADMIN}"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        clock[0] += 12 * 3600
        await send({"type": "http.response.body", "body": b"two", "more_body": True})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    cookie = f"{sign_in.COOKIE}={cookies.seal(ADMIN, MARK)}"
    headers = [(b"x-fumehood-browser", MARK.encode()), (b"cookie", cookie.encode())]
    with pytest.raises(ClientDisconnect):
        await sign_in.CookieSignIn(stream, cookies=cookies)({"type": "http", "headers": headers}, receive, send)
    assert [message.get("body") for message in sent] == [None, b"one"]


async def test_no_cache_keeps_what_one_visitor_was_answered() -> None:
    answer = await (await signed_in(Api())).get("/v1/caller", headers=PAGE)
    assert (answer.headers["cache-control"], answer.headers["vary"]) == ("private, no-store", "cookie")


MADE_UP = ["", "x", "\xe9", "A" * 64, "A" * 5000, "!!!!", '"' + '\\"' * 20_000 + '"']


@pytest.mark.parametrize("cookie", MADE_UP, ids=range(len(MADE_UP)))
async def test_a_made_up_cookie_is_nothing(cookie: str) -> None:
    headers = {name.encode(): value.encode() for name, value in PAGE.items()}
    headers[b"cookie"] = f"fumehood-sign-in={cookie}".encode("latin-1")
    answer = await Api().client(None).get("/v1/caller", headers=headers)
    assert answer.status_code == 401


async def test_another_cookie_by_the_same_name_is_passed_over() -> None:
    browser = await signed_in(Api())
    [cookie] = browser.cookies.jar
    value = f"{cookie.name}=made-up; theme=dark; {cookie.name}={cookie.value}; {cookie.name}"
    browser.cookies.clear()
    assert await status(browser, {**PAGE, "cookie": value}) == 200
    split = [*PAGE.items(), ("cookie", "theme=dark"), ("cookie", f"{cookie.name}={cookie.value}")]
    assert (await browser.get("/v1/caller", headers=split)).status_code == 200


async def test_a_cookie_of_another_cell_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Api().service.broker
    cookie = sign_in.Cookies(broker).seal("key", MARK)
    monkeypatch.setattr(broker, "derived_key", lambda label: bytes(32))
    assert sign_in.Cookies(broker).read(cookie, MARK) is None


async def test_a_changed_cookie_is_nothing() -> None:
    cookies = sign_in.Cookies(Api().service.broker)
    cookie = cookies.seal("key", MARK)
    for place in range(0, len(cookie) - 1, 7):  # of the last character, not all bits count
        changed = cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :]
        assert cookies.read(changed, MARK) is None


async def test_a_header_counts_before_the_cookie() -> None:
    api = Api()
    made = (await api.client().post("/v1/keys", json={"name": "reader", "scopes": [Scope.RUNS_READ]})).json()
    browser = await signed_in(api)
    answer = await browser.get("/v1/caller", headers={**PAGE, "authorization": f"Bearer {made['key']}"})
    assert answer.json()["scopes"] == ["runs:read"]


async def test_the_console_loads_nothing_from_elsewhere() -> None:
    browser = Api().client(None)
    root = await browser.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "/ui")
    for path in ("/ui", "/ui/", "/ui/runs", "/ui/runs/run-1"):
        page = await browser.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert page.headers["x-content-type-options"] == "nosniff"
        assert "//" not in page.text
        again = await browser.get(path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for path in ("/ui/assets/none.js", "/ui/assets/index.html"):
        assert (await browser.get(path)).status_code == 404


async def test_every_built_file_is_served() -> None:
    browser = Api().client(None)
    built = [path.relative_to(web.FOLDER) for path in web.FOLDER.rglob("*") if path.is_file()]
    assert len(built) > 3
    for path in built:
        if path.name not in ("index.html", "BUILT_FROM"):
            assert (await browser.get(f"/ui/{path}")).content == (web.FOLDER / path).read_bytes()
