"""Workflows and schedules in the web console: looked at, started, changed, on a real `fumehood dev`."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.dev_process import Dev
from tests.e2e.web_visit import Visit, check

REPORT = """
name: web-report
description: Rests, and says of which city.
input_schema:
  type: object
  required: [city]
  properties: {city: {type: string}, unit: {default: C}, days: {enum: [3, 7]}}
deadline: 2h
steps:
  - {id: rest, sleep: 10ms}
  - {id: ask, needs: [rest], when: input.city == 'Rome', approval: {message: "Send it?"}}
output: {about: input.city}
"""
TAKEN: dict[str, Any] = {
    "workflow": "web-clock",
    "cron": "0 0 1 1 *",
    "labels": {"kept": "yes"},
    "catch_up_limit": 7,
}


def apply(api: httpx.Client, text: str) -> dict[str, Any]:
    name = re.findall(r"^name: ([\w-]+)", text, re.MULTILINE)[0]
    answer = api.put(f"/v1/workflows/{name}", content=text, headers={"content-type": "application/yaml"})
    applied: dict[str, Any] = answer.raise_for_status().json()
    return applied


def schedule(api: httpx.Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/schedules/{name}").raise_for_status().json()
    return found


def choose_step(page: Page, step: str) -> None:
    page.locator(f".react-flow__node[data-id={step}]").click()


def test_a_workflow_is_shown_and_started(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    apply(api, REPORT)
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Workflows").click()
    page.get_by_role("link", name="web-report").click()
    expect(page.get_by_text("Rests, and says of which city.", exact=True)).to_be_visible()
    expect(page.locator("dl").first).to_contain_text("2 h 0 min")
    expect(page.locator(".react-flow__node[data-id=rest]")).to_contain_text("10 ms")
    choose_step(page, "ask")
    expect(page.get_by_role("region", name="Step ask")).to_contain_text("input.city == 'Rome'")

    page.get_by_role("button", name="Start a run").click()
    given = page.get_by_label("Input, as JSON").first
    expect(given).to_have_value(re.compile(r'^\{\s*"city": "",\s*"unit": "C"\s*\}$'))
    given.fill('{"city": 1}')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("city")
    given.fill('{"city": "Bergen"')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    given.fill('{"city": "Bergen", "id": 9007199254740993}')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("would round an integer")
    given.fill('{"city": "Bergen"}')
    page.get_by_role("button", name="Start", exact=True).click()
    visit_to_dev.status("succeeded")
    expect(page.get_by_text('"about": "Bergen"')).to_be_visible()
    run = page.url.rpartition("/")[2]
    page.go_back()
    expect(page.get_by_role("row", name=run)).to_contain_text("succeeded")


def test_a_run_leads_to_the_definition_that_it_was_started_with(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client
) -> None:
    first = apply(api, "name: web-versions\nsteps: [{id: before, sleep: 1ms}]")
    run = api.post("/v1/workflows/web-versions/runs", json={}).raise_for_status().json()["run_id"]
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/workflows/web-versions")
    expect(page.locator(".react-flow__node[data-id=before]")).to_be_visible()
    apply(api, "name: web-versions\nsteps: [{id: after, sleep: 1ms}]")
    expect(page.locator(".react-flow__node[data-id=after]")).to_be_visible()
    expect(page.locator("dl").first).not_to_contain_text(first["digest"])
    page.get_by_role("link", name=run).click()
    page.get_by_role("link", name="web-versions").click()
    expect(page.get_by_text("This is not the current definition.")).to_be_visible()
    expect(page.locator(".react-flow__node[data-id=before]")).to_be_visible()
    expect(page.locator("dl").first).to_contain_text(first["digest"])
    expect(page.get_by_role("button", name="Start a run")).to_have_count(0)
    page.get_by_role("link", name="Show the current one").click()
    expect(page.locator(".react-flow__node[data-id=after]")).to_be_visible()


def test_a_schedule_is_made_changed_triggered_and_deleted(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    apply(api, "name: web-clock\nsteps: [{id: rest, sleep: 1ms}]")
    api.put("/v1/schedules/web-taken", json=TAKEN).raise_for_status()
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/workflows/web-clock")
    page.get_by_role("button", name="New schedule").click()
    page.get_by_label("Name").fill("web-taken")
    page.get_by_label("Cron").fill("0 0 30 2 *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("Input of every run").fill('{"city": "Rome"}')
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("There is a schedule web-taken already")
    page.get_by_label("Name").fill("web-nightly")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("no month that is named has a day 30")
    page.get_by_label("Cron").fill("30 2 1 1 *")
    page.get_by_role("button", name="Create").click()
    row = page.get_by_role("row", name="web-nightly")
    expect(row).to_contain_text("Europe/Berlin")
    assert schedule(api, "web-nightly")["input"] == {"city": "Rome"}

    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Start now: web-nightly").dblclick()
    row.get_by_role("link", name="run-").click()
    visit_to_dev.status("succeeded")
    run = page.url.rpartition("/")[2]
    page.get_by_role("link", name="Schedules").click()
    row.get_by_role("link", name="web-nightly").click()
    expect(page.get_by_label("Schedule")).to_have_value("web-nightly")
    expect(page.get_by_role("row", name=run)).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)

    page.go_back()
    page.once("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert api.get("/v1/schedules/web-nightly").status_code == httpx.codes.NOT_FOUND


def test_an_edited_schedule_keeps_what_the_form_does_not_show(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    apply(api, "name: web-clock\nsteps: [{id: rest, sleep: 1ms}]")
    api.put("/v1/schedules/web-taken", json=TAKEN).raise_for_status()
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Schedules").click()
    changed = page.get_by_role("row", name="web-taken")
    changed.get_by_role("button", name="Edit").click()
    page.get_by_label("Cron").fill("@daily")
    api.put("/v1/schedules/web-taken", json=TAKEN | {"catch_up_limit": 8}).raise_for_status()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody has changed or deleted this schedule since")
    page.get_by_role("button", name="Cancel").click()
    api.post("/v1/schedules/web-taken:pause").raise_for_status()
    expect(changed).to_contain_text("paused")
    page.reload()
    changed.get_by_role("button", name="Edit").click()
    page.get_by_label("Cron").fill("@daily")
    page.get_by_label("Missed times").select_option("start the last of them")
    page.get_by_role("button", name="Save").click()
    expect(changed).to_contain_text("@daily")
    now = schedule(api, "web-taken")
    assert (now["labels"], now["catch_up"], now["catch_up_limit"]) == ({"kept": "yes"}, "last", 8)
    assert now["paused"]


def test_a_key_without_more_scopes_sees_definitions_alone(visit_to_dev: Visit, api: httpx.Client) -> None:
    apply(api, REPORT)
    made = api.post("/v1/keys", json={"name": "reader", "scopes": ["workflows:read"]}).raise_for_status().json()
    page = visit_to_dev.page
    visit_to_dev.give(made["key"])
    expect(page.get_by_role("navigation", name="Pages", exact=True)).to_have_text("Workflows")
    page.get_by_role("link", name="web-report").click()
    expect(page.locator(".react-flow__node[data-id=rest]")).to_be_visible()
    for hidden in ("Latest runs", "Schedules"):
        expect(page.get_by_role("heading", name=hidden)).to_have_count(0)
    expect(page.get_by_role("button", name="Start a run")).to_have_count(0)
    page.goto(f"{visit_to_dev.url}/ui/schedules")
    expect(page.get_by_role("alert")).to_contain_text("schedules:read")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_pages_are_accessible(visit_to_dev: Visit, dev: Dev, api: httpx.Client, width: int) -> None:
    apply(api, REPORT)
    api.put(
        "/v1/schedules/web-yearly", json={"workflow": "web-report", "cron": "@yearly", "input": {"city": "Rome"}}
    ).raise_for_status()
    page = visit_to_dev.page
    page.set_viewport_size({"width": width, "height": 900})
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.get_by_role("link", name="Workflows").click()
    expect(page.get_by_role("link", name="web-report")).to_be_visible()
    check(page)
    page.get_by_role("link", name="web-report").click()
    choose_step(page, "ask")
    page.get_by_role("button", name="Start a run").click()
    expect(page.get_by_role("row", name="web-yearly")).to_be_visible()
    check(page)
    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("row", name="web-yearly").get_by_role("button", name="Edit").click()
    check(page)
