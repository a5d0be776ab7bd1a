"""The static site: it builds without a warning, has every page in its navigation, and asks no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.examples.markdown import ROOT

SECONDS = 300
TELLS = re.compile(r"^(?:WARNING|ERROR|CRITICAL)", re.MULTILINE)
OTHER_HOST = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
LOADED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "use": ("href", "xlink:href"),
}
"""What a browser fetches without being asked by its reader."""
MARKUP = re.compile(r"<p>(?:(?!</p>).)*?^(?:[-*] |\d+\. |\||```|<!-- )", re.DOTALL | re.MULTILINE)
"""A list, a table or a block that became a paragraph: the site's Markdown wants a blank line or deeper indentation."""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(
        [*command, "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert TELLS.search(done.stderr) is None, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_the_documentation_is_in_it(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix("")
        folder = place.parent if place.name == "README" and place.parent.name else place
        made = "contents" if str(place) == "README" else str(folder)
        assert (site / made / "index.html").exists(), page


def test_a_page_that_is_not_in_the_navigation_fails_the_build(tmp_path: Path) -> None:
    """Else a page that nobody finds would go unseen. The settings are ours, the pages two small ones."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    config, pages = tmp_path / "mkdocs.yml", tmp_path / "docs"
    pages.mkdir()
    for name in ("index", "lost"):
        (pages / f"{name}.md").write_text(f"# {name}\n", encoding="utf-8")
    config.write_text(re.sub("^hooks: .*$", "nav: [index.md]", text, flags=re.MULTILINE), encoding="utf-8")
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert "lost.md" in done.stderr


class Fetches(HTMLParser):
    """Everything that a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "link" and said.get("rel") in ("canonical", "next", "prev"):
            return
        self.found += [said[name] or "" for name in LOADED.get(tag, ()) if name in said]


def fetched(page: Path) -> Iterator[str]:
    parser = Fetches()
    text = page.read_text(encoding="utf-8")
    parser.feed(text)
    yield from parser.found
    yield from re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", text)


def test_a_page_asks_no_other_host(site: Path) -> None:
    asked = {(page.name, one) for page in pages(site) for one in fetched(page) if OTHER_HOST.match(one)}
    assert asked == set()


def test_no_style_asks_another_host(site: Path) -> None:
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", style.read_text(encoding="utf-8"))
        assert [one for one in found if OTHER_HOST.match(one)] == [], style


def test_no_diagram_makes_the_theme_fetch_its_painter(site: Path) -> None:
    """The theme's script knows one address of another host, which it asks where a page has a diagram of that kind."""
    assert [page for page in pages(site) if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []


def test_no_list_or_table_became_a_paragraph(site: Path) -> None:
    broken = [
        (str(page.relative_to(site)), found[0][-80:])
        for page in pages(site)
        if (found := MARKUP.search(page.read_text(encoding="utf-8")))
    ]
    assert broken == []


def test_no_table_shows_the_backslash_before_a_bar(site: Path) -> None:
    """Other renderers take it away, inside code as well; this one does not. `<code>a &#124; b</code>` is for all."""
    shown = [
        (str(page.relative_to(site)), line.strip())
        for page in pages(site)
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith(("<td", "<th")) and r"\|" in line
    ]
    assert shown == []
