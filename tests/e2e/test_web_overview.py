"""The first page of the web console: how runs went, and what there is to run them, on a real `fumehood dev`."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check
from tests.waiting import wait_until

FAILS = {"name": "web-fails", "steps": [{"id": "decide", "wait_signal": {"name": "never", "timeout": 10}}]}


def failures(api: httpx.Client) -> int:
    wanted: dict[str, str | int] = {"workflow": "web-fails", "status": "failed", "limit": 200}
    return len(api.get("/v1/runs", params=wanted).raise_for_status().json()["runs"])


def fail(api: httpx.Client, times: int) -> None:
    """Runs that failed, and are in the lists."""
    after = failures(api) + times
    for _ in range(times):
        api.post("/v1/workflows/web-fails/runs", json={}).raise_for_status()
    wait_until(lambda: failures(api) == after)


@pytest.fixture(scope="module", autouse=True)
def failed_runs(api: httpx.Client) -> None:
    """So many that their step is among those that fail most."""
    api.put("/v1/workflows/web-fails", json=FAILS).raise_for_status()
    fail(api, 5)


def test_failures_are_counted_and_lead_to_their_run(visit_to_dev: Visit, dev: Dev) -> None:
    page = visit_to_dev.page
    visit_to_dev.give(dev.facts["tokens"]["admin"])
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("link", name="Last hour").click()
    expect(page).to_have_url(re.compile(r"\?window=hour$"))
    page.reload()
    expect(page.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"^Last hour: [1-9]\d* runs"))
    expect(page.locator("svg rect.failed").last).to_be_visible()
    expect(page.locator("dl.totals a.failed")).not_to_have_text("0")
    row = page.get_by_role("row", name="web-fails").first
    expect(row).to_contain_text("decide")
    row.get_by_role("link", name="open").click()
    expect(page).to_have_url(re.compile(r"/runs/run-\w+\?step=decide$"))
    visit_to_dev.status("failed")


def test_a_new_failure_is_counted_without_a_reload(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    page = visit_to_dev.page
    visit_to_dev.give(dev.facts["tokens"]["admin"])
    runs = page.get_by_role("row", name="web-fails").first.locator("[data-label=Runs]")
    expect(runs).to_have_text(str(failures(api)))
    fail(api, 1)
    expect(runs).to_have_text(str(failures(api)))


def test_a_key_without_the_scope_of_workers_sees_runs_alone(visit_to_dev: Visit, api: httpx.Client) -> None:
    made = api.post("/v1/keys", json={"name": "reader", "scopes": ["runs:read"]}).raise_for_status().json()
    page = visit_to_dev.page
    visit_to_dev.give(made["key"])
    expect(page.get_by_role("row", name="web-fails").first).to_be_visible()
    for hidden in ("Workers", "Sandboxes"):
        expect(page.get_by_role("heading", name=hidden)).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_accessible(visit_to_dev: Visit, dev: Dev, width: int) -> None:
    page = visit_to_dev.page
    page.set_viewport_size({"width": width, "height": 900})
    visit_to_dev.give(dev.facts["tokens"]["admin"])
    expect(page.get_by_text("Tasks that wait")).to_be_visible()
    expect(page.get_by_role("row", name="web-fails").first).to_be_visible()
    check(page)
