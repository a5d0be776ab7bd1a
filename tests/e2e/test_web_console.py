"""The web console as somebody uses it: Chromium, the built page, a real server and a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from fumehood.cli.processes import held_port
from tests.conformance.broker_bench import NatsServer
from tests.http_worker import EVERY_KIND, FRAGILE, HttpWorker
from tests.server_process import ServerProcess
from tests.waiting import wait_until

PATIENCE_MS = 60_000
CHROMIUM = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
INPUT = {"who": "you", "items": ["cup", "plate"]}


@dataclass
class Cell:
    """A server with a worker, and what is asked of it beside the page."""

    server: ServerProcess
    worker: HttpWorker

    def post(self, path: str, body: object = None) -> Any:
        with self.server.client() as client:
            return client.post(path, json=body).raise_for_status().json()

    def start(self, workflow: str, given: object = None) -> str:
        return str(self.post(f"/v1/workflows/{workflow}/runs", {"input": given})["run_id"])

    def until(self, run_id: str, look: Callable[[dict[str, Any]], bool]) -> None:
        with self.server.client() as client:
            wait_until(lambda: look(client.get(f"/v1/runs/{run_id}").raise_for_status().json()))

    def events(self, run_id: str) -> int:
        with self.server.client() as client:
            said = client.get(f"/v1/runs/{run_id}/history", params={"limit": 200}).raise_for_status().json()
        assert said["next"] is None
        return sum(len(record["events"]) for record in said["records"])

    def key(self, *scopes: str) -> dict[str, Any]:
        made: dict[str, Any] = self.post("/v1/keys", {"name": "somebody", "scopes": scopes})
        return made


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("web")
    nats = NatsServer(folder / "nats", 1)
    nats.start()
    try:
        with ServerProcess(folder, nats, port=held_port()) as server, HttpWorker(server) as worker:
            with server.client() as client:
                for text in (EVERY_KIND, FRAGILE):
                    name = re.findall(r"^name: (\w+)", text, re.MULTILINE)[0]
                    headers = {"content-type": "application/yaml"}
                    client.put(f"/v1/workflows/{name}", content=text, headers=headers).raise_for_status()
            yield Cell(server, worker)
    finally:
        nats.kill()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page of the console in a browser of its own, and what went wrong in it."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def give(self, key: str) -> None:
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()

    def sign_in(self, key: str) -> None:
        self.give(key)
        expect(self.page.get_by_role("heading", name="Runs")).to_be_visible()

    def open(self, run_id: str) -> None:
        self.page.goto(f"{self.url}/ui/runs/{run_id}")

    def status(self, text: str) -> None:
        expect(self.page.locator("h1 .status")).to_have_text(text)

    def step(self, name: str, status: str) -> None:
        expect(self.page.locator(f".react-flow__node[data-id={name}] .status")).to_have_text(status)


@pytest.fixture
def visit(chromium: Browser, cell: Cell) -> Iterator[Visit]:
    """Fails where a script fails, the page's policy is broken, or another host is asked for something."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    made = Visit(context.new_page(), cell.server.url)

    def asked(request: Request) -> None:
        if not request.url.startswith((cell.server.url, "data:")):
            made.wrong.append(request.url)

    made.page.on("request", asked)
    made.page.on("pageerror", lambda error: made.wrong.append(str(error)))
    made.page.on("console", lambda said: made.wrong.append(said.text) if "Content Security" in said.text else None)
    yield made
    context.close()
    assert made.wrong == []


def test_signing_in_and_out(visit: Visit, cell: Cell) -> None:
    visit.give("guess")
    expect(visit.page.get_by_role("alert")).to_have_text("This key is wrong, expired or revoked")
    visit.sign_in(cell.server.token)
    visit.page.reload()
    expect(visit.page.get_by_role("heading", name="Runs")).to_be_visible()
    assert visit.page.evaluate("document.cookie") == ""
    visit.page.get_by_role("button", name="Sign out").click()
    expect(visit.page.get_by_label("API key")).to_be_visible()


def test_a_run_is_watched_and_helped_to_its_end(visit: Visit, cell: Cell) -> None:
    """Without a reload: steps, an approval and a signal."""
    run_id = cell.start("order", INPUT)
    visit.sign_in(cell.server.token)
    visit.page.get_by_role("link", name=run_id).click()
    visit.step("ask", "awaiting approval")
    visit.step("paid", "listening")
    visit.page.get_by_label("Comment").fill("fine")
    visit.page.get_by_role("button", name="Approve").click()
    visit.step("ask", "completed")
    visit.page.get_by_role("button", name="paid", exact=True).click()
    visit.page.get_by_label("Data of the signal").fill('{"euros": 3}')
    visit.page.get_by_role("button", name="Send").click()
    visit.status("succeeded")
    expect(visit.page.get_by_text("hello the hello you")).to_be_visible()
    given = visit.page.locator("summary", has_text="approval.given")
    given.click()
    expect(visit.page.locator("details[open]")).to_contain_text('"comment": "fine"')
    visit.page.get_by_role("button", name="pack--1").click()
    expect(visit.page.get_by_role("region", name="Step pack--1")).to_contain_text("completed")


def test_failed_runs_are_found_and_retried(visit: Visit, cell: Cell) -> None:
    cell.worker.is_bad.set()
    run_id = cell.start("fragile")
    cell.until(run_id, lambda run: run["status"] == "failed")
    visit.sign_in(cell.server.token)
    visit.page.get_by_label("Status").select_option("failed")
    expect(visit.page).to_have_url(re.compile(r"\?status=failed$"))
    row = visit.page.get_by_role("row", name=run_id)
    expect(row).to_contain_text("not today")
    visit.page.reload()
    row.get_by_role("checkbox").check()
    expect(visit.page.get_by_role("button", name="Stop")).to_be_disabled()
    cell.worker.is_bad.clear()
    visit.page.get_by_role("button", name="Retry").click()
    expect(row).to_have_count(0)
    visit.open(run_id)
    visit.status("succeeded")
    expect(visit.page.get_by_text("run.retried")).to_be_visible()
    expect(visit.page.locator(".history li")).to_have_count(cell.events(run_id))


def test_the_list_changes_by_itself(visit: Visit, cell: Cell) -> None:
    visit.sign_in(cell.server.token)
    run_id = cell.start("order", INPUT)
    row = visit.page.get_by_role("row", name=run_id)
    expect(row).to_contain_text("running")
    row.get_by_role("checkbox").check()
    visit.page.get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("cancelled")


def test_the_page_goes_on_after_the_server_was_killed(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    visit.sign_in(cell.server.token)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    cell.server.kill()
    cell.server.launch()
    cell.server.wait()
    cell.post(f"/v1/runs/{run_id}/steps/ask:approve", {})
    visit.step("ask", "completed")
    cell.post(f"/v1/runs/{run_id}/signals/paid", {"data": 1})
    visit.status("succeeded")
    expect(visit.page.locator(".history li")).to_have_count(cell.events(run_id))


def test_what_a_key_may_not_do_is_not_offered(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    made = cell.key("runs:read")
    visit.sign_in(made["key"])
    expect(visit.page.get_by_role("row", name=run_id)).to_be_visible()
    expect(visit.page.get_by_role("checkbox")).to_have_count(0)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    expect(visit.page.get_by_text("Your key cannot decide")).to_be_visible()
    for name in ("Stop", "Approve", "Reject"):
        expect(visit.page.get_by_role("button", name=name)).to_have_count(0)
    with cell.server.client() as client:
        client.delete(f"/v1/keys/{made['id']}").raise_for_status()
    expect(visit.page.get_by_label("API key")).to_be_visible()
    cell.post(f"/v1/runs/{run_id}:cancel", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everyone_can_use_it(visit: Visit, cell: Cell, scheme: Any, width: int) -> None:
    """No serious finding of axe, and nothing is wider than the screen."""
    run_id = cell.start("order", INPUT)
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.goto(f"{visit.url}/")
    expect(visit.page.get_by_label("API key")).to_be_visible()
    check(visit.page)
    visit.sign_in(cell.server.token)
    expect(visit.page.get_by_role("link", name=run_id)).to_be_visible()
    check(visit.page)
    visit.open(run_id)
    visit.step("ask", "awaiting approval")
    expect(visit.page.get_by_role("button", name="Approve")).to_be_visible()
    check(visit.page)
    cell.post(f"/v1/runs/{run_id}:cancel", {})


def check(page: Page) -> None:
    said = Axe().run(page).response
    found = [one for one in said["violations"] if one["impact"] in ("serious", "critical")]
    assert said["passes"]
    assert not found, json.dumps(found, indent=1)[:4000]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_keyboard_is_enough(visit: Visit, cell: Cell) -> None:
    run_id = cell.start("order", INPUT)
    visit.page.goto(f"{visit.url}/")
    expect(visit.page.get_by_label("API key")).to_be_focused()
    visit.page.keyboard.type(cell.server.token)
    visit.page.keyboard.press("Enter")
    link = visit.page.get_by_role("link", name=run_id)
    expect(link).to_be_visible()
    link.press("Enter")
    visit.step("ask", "awaiting approval")
    node = visit.page.locator(".react-flow__node[data-id=paid]")
    node.press("Enter")
    expect(visit.page.get_by_role("region", name="Step paid")).to_be_visible()
    cell.post(f"/v1/runs/{run_id}:cancel", {})
