"""Workers, queues and providers in the web console, on a real `fumehood dev`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check


def provider(api: httpx.Client, worker: str) -> dict[str, Any]:
    listed = api.get("/v1/providers").raise_for_status().json()["providers"]
    found: dict[str, Any] = next(one for one in listed if one["worker"] == worker)
    return found


def test_a_worker_is_seen_and_drained(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_role("row", name="dev-provider-1").first).to_contain_text("oa.sandbox_run.v1")
    expect(page.get_by_role("row", name="dev-provider-1").first.get_by_role("button", name="Drain")).to_have_count(0)
    here = {
        "worker_id": "web-hands",
        "task_types": ["web.wave"],
        "max_tasks": 3,
        "language": "cobol",
        "metadata": {"room": "left \u202eright", "draining": "true"},
    }
    with api.stream("POST", "/v1/workers/connect", json=here) as stream:
        row = page.get_by_role("row", name="web-hands")
        expect(row).to_contain_text("HTTP")
        expect(row).to_contain_text("web.wave")
        row.get_by_text("cobol").click()
        expect(row).to_contain_text(r"left \u{202e}right")
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Drain").click()
        expect(row).to_have_count(0)
        assert "event: drain" in stream.read().decode()


def test_tasks_that_no_worker_takes_are_seen_and_their_rate_is_limited(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client
) -> None:
    api.put(
        "/v1/workflows/web-waits", json={"name": "web-waits", "steps": [{"id": "wait", "task": "web.nobody"}]}
    ).raise_for_status()
    run = api.post("/v1/workflows/web-waits/runs", json={}).raise_for_status().json()["run_id"]
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/workers")
    row = page.get_by_role("row", name="web.nobody")
    expect(row).to_contain_text("none takes it")
    row.get_by_role("button", name="Change the limit of web.nobody").click()
    page.get_by_label("Rate").fill("often")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("10/s")
    page.get_by_label("Rate").fill("5/m")
    page.get_by_label("At once").fill("2")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("5/m, 2 at once")
    types = api.get("/v1/task-types").raise_for_status().json()["task_types"]
    limit = next(one["limit"] for one in types if one["task_type"] == "web.nobody")
    assert limit == {"rate": "5/m", "burst": 2}
    row.get_by_role("button", name="Change the limit of web.nobody").click()
    page.get_by_role("button", name="Remove").click()
    expect(row.locator("[data-label=Limit]")).to_have_text("none change")
    types = api.get("/v1/task-types").raise_for_status().json()["task_types"]
    assert not any("limit" in one for one in types if one["task_type"] == "web.nobody")
    api.post(f"/v1/runs/{run}:cancel").raise_for_status()


def test_a_provider_is_set_aside_and_restored(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/workers")
    row = page.get_by_role("row", name="dev-judge").last
    page.once("dialog", lambda dialog: dialog.accept("its disk is bad"))
    row.get_by_role("button", name="Set aside").click()
    expect(row).to_contain_text("its disk is bad (admin")
    assert provider(api, "dev-judge")["set_aside"]["reason"] == "its disk is bad"
    row.get_by_role("button", name="Restore").click()
    expect(row.get_by_role("button", name="Set aside")).to_be_visible()
    assert "set_aside" not in provider(api, "dev-judge")


def test_a_key_of_the_scope_workers_is_offered_no_more_than_it_may(visit_to_dev: Visit, api: httpx.Client) -> None:
    made = api.post("/v1/keys", json={"name": "keeper", "scopes": ["workers"]}).raise_for_status().json()
    api.put("/v1/task-types/web.limited/limit", json={"rate": "7/h"}).raise_for_status()
    page = visit_to_dev.page
    visit_to_dev.give(made["key"])
    expect(page.get_by_role("navigation", name="Pages", exact=True)).to_have_text("Workers")
    expect(page.get_by_role("row", name="web.limited")).to_contain_text("7/h")
    expect(page.get_by_role("row", name="dev-judge").last).to_contain_text("there")
    for name in ("Set aside", "Drain", "Change the limit of web.limited"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_accessible(visit_to_dev: Visit, dev: Dev, api: httpx.Client, width: int) -> None:
    api.put("/v1/task-types/web.limited/limit", json={"rate": "7/h"}).raise_for_status()
    page = visit_to_dev.page
    page.set_viewport_size({"width": width, "height": 900})
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Workers").click()
    page.get_by_role("row", name="dev-provider-1").first.get_by_text("python").click()
    page.get_by_role("button", name="Change the limit of web.limited").click()
    check(page)
