"""The documentation cannot go stale unseen: the reference is what the code says, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import generate
from fumehood.settings import NodeSettings
from tests.examples.markdown import ROOT, links, named_tests, pages, unmarked

FIRST_HOUR = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs/tutorial").glob("*.md")))]
PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]


def test_the_reference_is_what_the_code_says() -> None:
    """If this fails: `python docs/generate.py`, and read the difference."""
    files = generate.made()
    assert [str(path.relative_to(ROOT)) for path in generate.stale(files)] == []
    reference = {path for path in files if path.parent == generate.REFERENCE}
    assert set(generate.REFERENCE.glob("*.md")) == reference, "nothing else lies there"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in links(page) if not (page.parent / link.partition("#")[0]).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    """A guard that was renamed or deleted is a promise without one."""
    missing = [(file, name) for file, name in named_tests(page) if not _exists(file, name)]
    assert missing == []


@pytest.mark.parametrize("page", FIRST_HOUR)
def test_every_block_of_the_first_hour_is_played_or_says_why_not(page: str) -> None:
    assert unmarked(page) == []


def _exists(file: str, name: str) -> bool:
    path = ROOT / file
    return path.exists() and (not name or re.search(rf"def {name}\(", path.read_text(encoding="utf-8")) is not None)


def test_every_page_is_reachable_from_an_index() -> None:
    """A page that nobody links to is a page that nobody reads."""
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in pages() for link in links(page)}
    lost = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked]
    assert lost == []


def test_the_configuration_in_the_how_to_is_accepted(tmp_path: Path) -> None:
    """The TOML of run-a-node.md is read by the code that will read it."""
    text = (ROOT / "docs/howto/run-a-node.md").read_text(encoding="utf-8")
    alone, connected = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    file = tmp_path / "node.toml"
    for toml, user in ((alone, None), (alone + connected, "node-1")):
        file.write_text(toml, encoding="utf-8")
        settings = NodeSettings.load(env={}, config_file=file)
        settings.check_policy()
        assert (settings.host, settings.nats_user) == ("0.0.0.0", user)
