"""Jobs in the web console: submitted, followed to their verdict, and their receipts, on a real `fumehood dev`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Download, Page, Route, expect

from tests.dev_process import Dev
from tests.e2e.test_jobs import ANALYSIS
from tests.e2e.web_visit import Visit, check
from tests.typed import typed
from tests.waiting import wait_until

SANDBOX_RUN = "oa.sandbox_run.v1"
MAJORITY = {"redundancy": 3, "adjudication": "majority_vote"}


Payload = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def payload(base_image: str) -> Payload:
    def of(command: str, **more: Any) -> dict[str, Any]:
        return {"sandbox": {"image_digest": base_image.partition("@")[2]}, "commands": [{"cmd": command}], **more}

    return of


def submitted(api: httpx.Client, job_type: str, request: dict[str, Any]) -> str:
    body = {"job_type": job_type, "payload": request}
    return str(api.post("/v1/jobs", json=body).raise_for_status().json()["job_id"])


def ended(api: httpx.Client, job_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = api.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return job if job["status"] not in ("queued", "running") else None

    return wait_until(look)


@pytest.fixture(scope="module")
def agreed(api: httpx.Client, payload: Payload) -> dict[str, Any]:
    return ended(api, submitted(api, SANDBOX_RUN, payload("echo hello", verification=MAJORITY)))


@pytest.fixture(scope="module")
def disputed(api: httpx.Client, payload: Payload) -> dict[str, Any]:
    return ended(api, submitted(api, SANDBOX_RUN, payload("echo same; date +%N", verification=MAJORITY)))


def open_form(page: Page, request: object) -> None:
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("button", name="New job").click()
    page.get_by_label("Type").select_option(SANDBOX_RUN)
    page.get_by_label("Payload").fill(json.dumps(request))


def saved(page: Page, button: str, within: str | None = None) -> Download:
    place = page.get_by_role("region", name=within, exact=True) if within else page
    with page.expect_download() as downloading:
        place.get_by_role("button", name=button).click()
    return downloading.value


def verify(dev: Dev, file: Path) -> None:
    done = typed("verify", str(file), folder=dev.home, env=dev.env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_is_submitted_and_watched_until_its_providers_agree(
    visit_to_dev: Visit, dev: Dev, payload: Payload
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    open_form(page, {"commands": []})
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("payload.commands: must not be empty")
    page.get_by_label("Payload").fill("{'commands'}")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    page.get_by_label("Payload").fill(json.dumps(payload("echo hello", verification=MAJORITY, colour="blue")))
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/job-\w+$"))
    job_id = page.url.rpartition("/")[2]
    visit_to_dev.status("succeeded")
    expect(page.locator("dl").first).to_contain_text("3 providers, majority vote, objective")
    expect(page.locator("dl").first).to_contain_text("Ignored fieldscolour")
    expect(page.get_by_text("3 of 3 providers came to the same")).to_be_visible()
    expect(page.get_by_role("region", name="Result")).to_contain_text(r'"stdout_preview": "hello\n"')
    for execution in range(3):
        expect(page.get_by_role("region", name=f"Execution {execution}")).to_contain_text("A, given by 3 of 3")
    expect(page.locator("mark")).to_have_count(0)

    job = saved(page, "Save the job")
    assert job.suggested_filename == f"{job_id}.json"
    verify(dev, job.path())
    receipt = saved(page, "Save the receipt", "Execution 2")
    assert receipt.suggested_filename == f"{job_id}.2.receipt.json"
    verify(dev, receipt.path())
    page.get_by_role("link", name="steps and input").click()
    visit_to_dev.step("verdict", "completed")


def test_a_job_submitted_again_after_a_lost_answer_is_the_same_job(
    visit_to_dev: Visit, dev: Dev, payload: Payload
) -> None:
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    open_form(page, payload("true"))
    lost: list[str] = []

    def lose_answer(route: Route) -> None:
        if lost:
            route.continue_()
            return
        lost.append(route.fetch().json()["job_id"])
        route.abort()

    page.route("**/v1/jobs", lose_answer)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("h1")).to_contain_text(lost[0])


def test_a_disputed_job_shows_what_differs_and_no_result(
    visit_to_dev: Visit, dev: Dev, disputed: dict[str, Any]
) -> None:
    """In the list, too, though its run has succeeded."""
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    row = page.get_by_role("row", name=disputed["job_id"])
    expect(row).to_contain_text("succeeded")
    page.get_by_role("link", name="Jobs").click()
    expect(row).to_contain_text("disputed")
    row.get_by_role("link").click()
    visit_to_dev.status("disputed")
    expect(page.get_by_text("No majority among 3 providers")).to_be_visible()
    expect(page.get_by_role("region", name="Result")).to_have_count(0)
    for candidate, letter in zip(disputed["verdict"]["candidates"], "ABC", strict=True):
        shown = page.get_by_role("region", name=f"Execution {candidate['execution']}")
        expect(shown).to_contain_text(f"{letter}, given by 1 of 3")
        nanoseconds = candidate["response"]["runs"][0]["stdout_preview"].split()[1]
        expect(shown.locator("mark", has_text=nanoseconds)).to_have_count(1)
        expect(shown.locator("mark", has_text="same")).to_have_count(0)
    verify(dev, saved(page, "Save the receipt", "Execution 0").path())


def test_an_answer_that_does_not_count_is_compared_with_the_chosen_one(
    visit_to_dev: Visit, dev: Dev, agreed: dict[str, Any]
) -> None:
    """The server's answer is changed: no provider of `dev` gives a wrong one."""
    job = json.loads(json.dumps(agreed))
    liar = job["verdict"]["candidates"][2]
    liar["response"]["runs"][0]["stdout_preview"] = "good\u202ebye\n"
    why = {"code": "output_mismatch", "message": "the answer is not the one that was signed"}
    liar |= {"accepted": False, "rejected": "output_mismatch", "error": why, "declared_sha256": "0" * 64}
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.route(f"**/v1/jobs/{job['job_id']}", lambda route: route.fulfill(json=job))
    page.goto(f"{visit_to_dev.url}/ui/jobs/{job['job_id']}")
    shown = page.get_by_role("region", name="Execution 2")
    expect(shown.locator("h3")).to_contain_text("rejected")
    expect(shown).to_contain_text("the answer is not the one that was signed")
    expect(shown.locator("mark", has_text=r"good\u{202e}bye")).to_have_count(1)
    expect(shown.locator("mark", has_text="echo hello")).to_have_count(0)
    for execution in range(2):
        others = page.get_by_role("region", name=f"Execution {execution}")
        expect(others).to_contain_text("A, given by 2 of 3")
        expect(others.locator("mark")).to_have_count(0)


def test_the_choice_of_a_judge_is_shown_with_its_reason(visit_to_dev: Visit, dev: Dev, api: httpx.Client) -> None:
    job = ended(api, submitted(api, "oa.code_chunk_analysis.v1", ANALYSIS))
    judge = job["verdict"]["judge"]
    page = visit_to_dev.page
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/jobs/{job['job_id']}")
    shown = page.get_by_role("region", name="Judge")
    expect(shown).to_contain_text(judge["reason"])
    workers = {one["execution"]: one["worker"] for one in job["verdict"]["candidates"]}
    expect(shown).to_contain_text(", then ".join(workers[execution] for execution in judge["order"]))
    chosen = page.get_by_role("region", name=f"Execution {job['verdict']['chosen']}")
    expect(chosen.locator("h3")).to_contain_text("chosen")
    verify(dev, saved(page, "Save the receipt", "Judge").path())
    verify(dev, saved(page, "Save the job").path())


def test_only_a_key_that_may_write_submits_and_cancels(
    visit_to_dev: Visit, dev: Dev, api: httpx.Client, payload: Payload
) -> None:
    job_id = submitted(api, SANDBOX_RUN, payload("sleep 600"))
    made = api.post("/v1/keys", json={"name": "job-reader", "scopes": ["runs:read"]}).raise_for_status().json()
    page = visit_to_dev.page
    visit_to_dev.sign_in(made["key"])
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name=job_id).click()
    visit_to_dev.status("running")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name=job_id)).to_be_visible()
    expect(page.get_by_role("button", name="New job")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/jobs/{job_id}")
    page.get_by_role("button", name="Cancel").click()
    visit_to_dev.status("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everyone_can_use_it(
    visit_to_dev: Visit, dev: Dev, agreed: dict[str, Any], disputed: dict[str, Any], scheme: Any, width: int
) -> None:
    """No serious finding of axe, and nothing wider than the screen."""
    page = visit_to_dev.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    visit_to_dev.sign_in(dev.facts["tokens"]["admin"])
    page.goto(f"{visit_to_dev.url}/ui/jobs")
    expect(page.get_by_role("row", name=agreed["job_id"])).to_contain_text("succeeded")
    page.locator("summary", has_text="Job types").click()
    expect(page.get_by_text("Runs commands in a sandbox")).to_be_visible()
    page.get_by_role("button", name="New job").press("Enter")
    expect(page.get_by_label("Type")).to_be_focused()
    check(page)
    for job, status in ((agreed, "succeeded"), (disputed, "disputed")):
        page.goto(f"{visit_to_dev.url}/ui/jobs/{job['job_id']}")
        visit_to_dev.status(status)
        check(page)
