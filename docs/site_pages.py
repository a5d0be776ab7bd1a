"""The hooks of the static site: `mkdocs.yml` names this file.

The pages are written for whoever reads the repository: they link to the README, to contracts, to source. A site has
only what is in `docs/`. So everything that a page links to becomes a page, too, and every link leads there; the texts
stay as they are. `tests/examples/test_site.py` builds it and looks at what came out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

OWN_PLACES = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "contracts/wire-protocol.md": "reference/wire-protocol.md",
    "contracts/warden-protocol.md": "reference/warden-protocol.md",
}
"""Pages that stand elsewhere in the site than in the repository."""
SOURCES = "source"
"""The folder of the site with everything else that a page links to."""
HIDDEN = ("__pycache__",)
AS_THEY_ARE = (".json", ".png", ".svg")
"""Data and pictures: shown by the browser, not as a page."""
LANGUAGES = {".py": "python", ".sh": "bash", ".mjs": "javascript", ".yaml": "yaml", ".proto": "protobuf"}

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]*)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"^<!-- (?:run|answer|terminal|prints|python) -->\n(?=```)", re.MULTILINE)
_FILE = re.compile(r"^<!-- file (\S+) -->\n```(\w+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Everything that is linked to, under the name that it has in the site."""
    taken = files.get_file_from_path("README.md")
    if taken is not None:
        files.remove(taken)
    for source in OWN_PLACES:
        files.append(_page(config, source, (ROOT / source).read_text(encoding="utf-8")))
    known = {source_of(file) for file in files}
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for source in linked(page):
            if source not in known and (ROOT / source).exists():  # what is not there, mkdocs tells
                known.add(source)
                made = _made(config, source)
                files.append(made)
                waiting += [made] if made.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they are in the site. Marks for the tests become titles, or nothing."""
    source, here = source_of(page.file), posixpath.dirname(page.file.src_uri)

    def there(link: re.Match[str]) -> str:
        target = posixpath.relpath(place_of(_resolved(source, link[1])), here or ".")
        return target + (link[2] or "")

    said = _outside_code(markdown, lambda text: _LINK.sub(lambda link: there(link) if link[1] else link[0], text))
    return _MARK.sub("", _FILE.sub(r'```\2 title="\1"', said))


def source_of(file: File) -> str:
    """Where a file of the site stands in the repository."""
    for source, place in OWN_PLACES.items():
        if file.src_uri == place:
            return source
    if file.src_uri.startswith(f"{SOURCES}/"):
        return _without_page(file.src_uri.removeprefix(f"{SOURCES}/"))
    return f"docs/{file.src_uri}"


def place_of(source: str) -> str:
    """Where something of the repository stands in the site."""
    if source in OWN_PLACES:
        return OWN_PLACES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    path = ROOT / source
    if path.is_dir():
        return f"{SOURCES}/{source}/index.md"
    return f"{SOURCES}/{source}" if path.suffix in (".md", *AS_THEY_ARE) else f"{SOURCES}/{source}.md"


def linked(file: File) -> Iterator[str]:
    """What a page links to, as paths of the repository."""
    source = source_of(file)
    for link in _LINK.findall(_CODE.sub("", file.content_string)):
        if link[0]:
            yield _resolved(source, link[0])


def _resolved(source: str, link: str) -> str:
    folder = source if (ROOT / source).is_dir() else posixpath.dirname(source)
    return posixpath.normpath(posixpath.join(folder, link))


def _without_page(place: str) -> str:
    """A file that is shown as a page has one ending more; a folder is shown as its index."""
    if place.endswith("/index.md") and (ROOT / posixpath.dirname(place)).is_dir():
        return posixpath.dirname(place)
    return place if (ROOT / place).exists() else place.removesuffix(".md")


def _made(config: MkDocsConfig, source: str) -> File:
    """A folder as a list, a text as a page, data as it is."""
    path = ROOT / source
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if one.name not in HIDDEN)
        entries = "\n".join(f"- [{name}]({name})" for name in names)
        return _page(config, source, f"# {source}\n\n{entries}\n")
    if path.suffix in AS_THEY_ARE:
        return File.generated(config, place_of(source), abs_src_path=str(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _page(config, source, text)
    return _page(config, source, f"# {source}\n\n~~~~~{LANGUAGES.get(path.suffix, 'text')}\n{text}~~~~~\n")


def _page(config: MkDocsConfig, source: str, text: str) -> File:
    return File.generated(config, place_of(source), content=text)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Links are changed in what is said, never in what is shown."""
    parts, at = [], 0
    for block in _CODE.finditer(text):
        parts += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])
