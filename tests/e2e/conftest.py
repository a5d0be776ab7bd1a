"""What the installed package is here: a wheel in an environment of its own, and one `fumehood dev` of it for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.dev_process import Dev, running_dev
from tests.e2e.web_visit import CHROMIUM, Visit, visiting
from tests.examples import installed

LONGEST_TEST_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of them waits until the package is built and installed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))


@pytest.fixture(scope="session")
def dev(docker_socket: Path, images: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Whoever uses it has sessions, workflows and labels with names of their own."""
    with running_dev(tmp_path_factory.mktemp("dev"), python=installed.python()) as made:
        yield made


@pytest.fixture(scope="module")
def api(dev: Dev) -> Iterator[httpx.Client]:
    with dev.client() as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit_to_dev(chromium: Browser, dev: Dev) -> Iterator[Visit]:
    with visiting(chromium, dev.server_url) as made:
        yield made
