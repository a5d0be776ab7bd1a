"""Keys and the audit list in the web console, on a real `fumehood dev`. Each test has a tenant of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check
from tests.waiting import wait_until

PAGE = 50
MONTH_SECONDS = 30 * 86_400
PLACES = """() => [
    location.href,
    document.title,
    JSON.stringify(history.state),
    JSON.stringify({ ...localStorage }),
    JSON.stringify({ ...sessionStorage }),
]"""
DOM = "() => document.documentElement.outerHTML + [...document.querySelectorAll('input')].map((one) => one.value)"


def key(api: httpx.Client, name: str, *scopes: str, **more: Any) -> dict[str, Any]:
    made = api.post("/v1/keys", json={"name": name, "scopes": scopes, **more}).raise_for_status()
    return dict(made.json())


def asked(dev: Dev, secret: str, path: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.get(f"{dev.server_url}{path}", headers=headers, timeout=60, trust_env=False)


def create(page: Page, name: str, *scopes: str, tenant: str) -> str:
    """Fills in the form; returns the key that the page shows."""
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("form", name="New key")
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Tenant", exact=True).fill(tenant)
    for scope in scopes:
        form.locator(f"input[value='{scope}']").check()
    form.get_by_role("button", name="Create").click()
    shown = page.get_by_role("region", name="The new key").locator("pre").inner_text()
    assert shown.startswith("fhk_")
    return shown


def is_in_memory(page: Page, text: str) -> bool:
    """Whether the scripts of the page still hold it."""
    chunks: list[str] = []
    session = page.context.new_cdp_session(page)
    session.on("HeapProfiler.addHeapSnapshotChunk", lambda event: chunks.append(event["chunk"]))
    session.send("HeapProfiler.takeHeapSnapshot")
    session.detach()
    return text in "".join(chunks)


def test_a_key_is_created_used_watched_and_revoked(visit_to_dev: Visit, dev: Dev) -> None:
    page = visit_to_dev.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Keys").click()
    secret = create(page, "reporter", "runs:read", tenant="press")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.get_by_role("region", name="The new key").get_by_role("link", name="press").click()
    expect(page.get_by_label("Tenant", exact=True)).to_have_value("press")
    row = page.get_by_role("row", name="reporter")
    expect(row.locator("code")).to_have_text("runs:read")
    page.get_by_role("button", name="Close", exact=True).click()

    assert asked(dev, secret, "/v1/runs").status_code == 200
    refusal = asked(dev, secret, "/v1/workflows")
    assert refusal.status_code == 403
    page.get_by_role("link", name="Activity of reporter").click()
    line = page.get_by_role("row", name="GET /v1/workflows")
    expect(line.locator(".status")).to_have_text("refused")
    line.locator("summary").click()
    expect(line).to_contain_text(refusal.headers["x-request-id"])
    expect(page.get_by_role("row", name="key.created")).to_have_count(0)  # that was the administrator
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("row", name="key.created").locator(".status")).to_have_text("done")

    page.get_by_role("main").get_by_role("link", name="Keys").click()
    questions: list[str] = []

    def answer(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.accept() if len(questions) == 2 else dialog.dismiss()

    page.on("dialog", answer)
    revoke = row.get_by_role("button", name="Revoke reporter")
    revoke.click()
    assert asked(dev, secret, "/v1/runs").status_code == 200
    revoke.click()
    expect(row).to_have_count(0)
    assert asked(dev, secret, "/v1/runs").status_code == 401
    assert all("reporter" in question for question in questions)


def test_a_new_key_is_shown_once(visit_to_dev: Visit, dev: Dev) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Keys").click()
    panel = page.get_by_role("region", name="The new key")
    leave: dict[str, Callable[[], object]] = {
        "first": lambda: page.get_by_role("button", name="Close", exact=True).click(),
        "second": lambda: page.get_by_role("link", name="Audit list").click(),
        "third": lambda: page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))"),
    }
    for name, away in leave.items():
        secret = create(page, name, "runs:read", tenant="secrets")
        assert not any(secret in place for place in page.evaluate(PLACES))
        away()
        expect(panel).to_have_count(0)
        if name == "second":
            page.go_back()
            expect(page.get_by_role("heading", name="Keys")).to_be_visible()
            expect(panel).to_have_count(0)
        assert not any(secret in place for place in [page.evaluate(DOM), *page.evaluate(PLACES)])
    page.reload()
    expect(page.get_by_role("button", name="New key")).to_be_visible()
    expect(panel).to_have_count(0)


def test_the_memory_of_the_page_does_not_keep_a_key(visit_to_dev: Visit, dev: Dev) -> None:
    """Neither the cache of TanStack Query nor anything else in the heap."""
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Keys").click()
    secret = create(page, "forgotten", "runs:read", tenant="secrets").split("_", 2)[2]
    assert is_in_memory(page, secret)
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("link", name="Audit list").click()
    expect(page.get_by_role("heading", name="Audit list")).to_be_visible()
    wait_until(lambda: not is_in_memory(page, secret))


def test_a_key_offers_only_what_it_can_give(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    key(api, "stronger", "runs:write", tenant="crew")
    own = key(api, "chief", "keys", "runs:read", tenant="crew", expires_in_seconds=MONTH_SECONDS)
    page = visit_to_dev.page
    visit_to_dev.sign_in(own["key"])
    page.get_by_role("link", name="Keys").click()
    expect(page.get_by_role("row", name="stronger")).to_be_visible()
    expect(page.get_by_role("button", name="Revoke stronger")).to_have_count(0)
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("form", name="New key")
    expect(form.get_by_role("checkbox")).to_have_count(2)
    assert [one.get_attribute("value") for one in form.get_by_role("checkbox").all()] == ["runs:read", "keys"]
    expect(page.get_by_label("Tenant", exact=True)).to_have_count(0)
    expires = form.get_by_label("Expires")
    expect(expires.locator("option")).to_have_text(["in 7 days", re.compile("^with your own key, in 29 d")])

    form.get_by_label("Name", exact=True).fill("helper")
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("alert")).to_have_text("Scopes: must not be empty")
    form.get_by_role("checkbox").first.check()
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_role("row", name="helper")).to_be_visible()
    made = {one["name"]: one for one in api.get("/v1/keys?tenant=crew").raise_for_status().json()["keys"]}
    assert made["helper"]["scopes"] == ["runs:read"]
    assert made["helper"]["expires_at"] == own["expires_at"]

    page.goto(f"{visit_to_dev.url}/ui/keys?tenant=default")
    expect(page.get_by_role("alert")).to_have_text("This token does not allow another tenant's")
    page.goto(f"{visit_to_dev.url}/ui/keys")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke chief").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_the_scopes_of_the_cell_are_offered_for_its_own_tenant_only(visit_to_dev: Visit, dev: Dev) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/keys")
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("form", name="New key")
    of_the_cell = form.locator("input[value='*'], input[value=workers]")
    expect(of_the_cell).to_have_count(2)
    form.get_by_label("Tenant", exact=True).fill("another")
    expect(of_the_cell).to_have_count(0)


def test_a_key_without_the_scope_is_told_why(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(key(api, "reader", "runs:read", tenant="readers")["key"])
    expect(page.get_by_role("link", name="Keys")).to_have_count(0)
    for address in ("keys", "keys?view=audit"):
        page.goto(f"{visit_to_dev.url}/ui/{address}")
        expect(page.get_by_role("alert")).to_have_text("This token does not allow it: that takes the scope keys")
        expect(page.get_by_role("button", name="New key")).to_have_count(0)


def test_long_lists_have_pages(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    key(api, "short-lived", "runs:read", tenant="crowd", expires_in_seconds=1)
    names = [f"member-{number}" for number in range(PAGE)]
    for name in names:
        key(api, name, "runs:read", tenant="crowd")
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/keys")
    page.get_by_label("Tenant", exact=True).select_option("crowd")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(PAGE)
    expect(rows.first.locator(".status")).to_have_text("expired")
    page.get_by_role("link", name="Next page").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(names[-1])
    page.get_by_role("link", name="First page").click()
    expect(rows).to_have_count(PAGE)

    page.get_by_role("link", name="Audit list").click()
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(1)
    rows.locator("summary").click()
    expect(rows).to_contain_text("short-lived")
    page.get_by_role("button", name="Newest").click()
    expect(rows).to_have_count(PAGE)
    page.get_by_label("Target").fill("no-such-key")
    page.get_by_label("By", exact=True).fill("admin")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile(r"\?view=audit&tenant=crowd&by=admin&target=no-such-key$"))
    expect(page.get_by_text("No line matches these filters")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_everyone_can_use_it(visit_to_dev: Visit, dev: Dev, api: httpx.Client, scheme: Any, width: int) -> None:
    """No serious finding of axe, and nothing is wider than the screen."""
    ended = key(api, "ended", "runs:read", "workflows:read", tenant="visitors", expires_in_seconds=1)
    refused = key(api, "refused", "runs:read", tenant="visitors")
    assert asked(dev, refused["key"], "/v1/workflows").status_code == 403
    page = visit_to_dev.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/keys?tenant=visitors")
    expect(page.get_by_role("row").filter(has_text=ended["id"]).locator(".status")).to_have_text("expired")
    page.get_by_role("button", name="New key").press("Enter")
    expect(page.get_by_role("form").get_by_label("Name", exact=True)).to_be_focused()
    check(page)
    page.get_by_role("button", name="New key").press("Enter")
    create(page, "shown", "runs:read", tenant="visitors")
    expect(page.get_by_role("button", name="Copy")).to_be_focused()
    check(page)
    page.get_by_role("link", name="Audit list").click()
    line = page.get_by_role("row").filter(has_text=refused["id"]).filter(has_text="refused")
    line.last.locator("summary").click()
    expect(page.locator("details[open]")).to_be_visible()
    check(page)
