"""A page of the web console in Chromium, for tests of what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect

PATIENCE_MS = 60_000
CHROMIUM = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP elsewhere.test 127.0.0.1",
)


@dataclass
class Visit:
    """A page of the console in its own browser context, and the errors in it."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def give(self, key: str) -> None:
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()

    def sign_in(self, key: str) -> None:
        """With a key that may see runs: opens their list."""
        self.give(key)
        self.page.get_by_role("link", name="Runs", exact=True).click()
        expect(self.page.get_by_role("heading", name="Runs")).to_be_visible()

    def open(self, run_id: str) -> None:
        self.page.goto(f"{self.url}/ui/runs/{run_id}")

    def status(self, text: str) -> None:
        expect(self.page.locator("h1 .status")).to_have_text(text)

    def step(self, name: str, status: str) -> None:
        expect(self.page.locator(f".react-flow__node[data-id={name}] .status")).to_have_text(status)


@contextmanager
def visiting(chromium: Browser, url: str) -> Iterator[Visit]:
    """Fails if a script fails, the content security policy is violated, or a request goes to another host."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    made = Visit(context.new_page(), url)

    def asked(request: Request) -> None:
        if not request.url.startswith((url, "data:")):
            made.wrong.append(request.url)

    made.page.on("request", asked)
    made.page.on("pageerror", lambda error: made.wrong.append(str(error)))
    made.page.on("console", lambda said: made.wrong.append(said.text) if "Content Security" in said.text else None)
    yield made
    context.close()
    assert made.wrong == []


def check(page: Page) -> None:
    said = Axe().run(page).response
    found = [one for one in said["violations"] if one["impact"] in ("serious", "critical")]
    assert said["passes"]
    assert not found, json.dumps(found, indent=1)[:4000]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
