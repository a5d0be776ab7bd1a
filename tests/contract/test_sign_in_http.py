"""Signing in a browser: what its cookie opens, and what it does not."""

from __future__ import annotations

import json

import httpx
import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.control.http import sign_in
from fumehood.wire.key_api import Scope
from tests.contract.server_api_harness import ADMIN, Api

PAGE = {"x-fumehood-browser": "1"}


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
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert sorted(attributes) == ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=strict"]
    assert ADMIN not in name
    assert answer.headers["cache-control"] == "no-store"


async def test_a_page_that_came_over_tls_gets_a_cookie_for_tls_alone() -> None:
    headers = {**PAGE, "origin": "https://fumehood.example"}
    answer = await Api().client(None).post("/v1/sign-in", json={"key": ADMIN}, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-fumehood-browser": "0"},
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


async def test_a_wrong_key_gets_no_cookie() -> None:
    answer = await Api().client(None).post("/v1/sign-in", json={"key": "guess"}, headers=PAGE)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


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


async def test_a_cookie_is_good_for_twelve_hours() -> None:
    now = [1_000_000.0]
    cookies = sign_in.Cookies(Api().service.broker, now=lambda: now[0])
    cookie = cookies.seal("key")
    now[0] += 12 * 3600 - 1
    assert cookies.read(cookie) == "key"
    now[0] += 1
    assert cookies.read(cookie) is None


@pytest.mark.parametrize("cookie", ["", "x", "é", "A" * 64, "A" * 5000, "!!!!"])
async def test_a_made_up_cookie_is_nothing(cookie: str) -> None:
    assert sign_in.Cookies(Api().service.broker).read(cookie) is None


async def test_a_cookie_of_another_cell_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Api().service.broker
    cookie = sign_in.Cookies(broker).seal("key")
    monkeypatch.setattr(broker, "derived_key", lambda label: bytes(32))
    assert sign_in.Cookies(broker).read(cookie) is None


async def test_a_changed_cookie_is_nothing() -> None:
    cookies = sign_in.Cookies(Api().service.broker)
    cookie = cookies.seal("key")
    for place in range(0, len(cookie) - 1, 7):  # of the last character, not all bits count
        changed = cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :]
        assert cookies.read(changed) is None


async def test_a_header_counts_before_the_cookie() -> None:
    browser = await signed_in(Api())
    assert await status(browser, {**PAGE, "authorization": "Bearer wrong"}) == 401


async def test_signing_in_and_out_are_in_the_audit_list() -> None:
    api = Api()
    browser = await signed_in(api)
    await browser.post("/v1/sign-out", headers=PAGE)
    entries = await MemoryBroker(api.memory).audit.tail(after=0, limit=10)
    assert [(line["action"], line["by"]) for line in (json.loads(entry.data) for entry in entries)] == [
        ("browser.signed_in", "admin"),
        ("browser.signed_out", "admin"),
    ]


async def test_the_console_loads_nothing_from_elsewhere() -> None:
    browser = Api().client(None)
    root = await browser.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "/ui")
    for path in ("/ui", "/ui/runs", "/ui/runs/run-1"):
        page = await browser.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
        assert "//" not in page.text
        again = await browser.get(path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert (await browser.get("/ui/assets/none.js")).status_code == 404
