"""Markdown as the tests see it: fenced blocks that are marked to be run, the answers they must give, and links.

A block is run when the line before its fence is `<!-- run -->`. A block after `<!-- answer -->` is what the one before
it must print: `text` to the letter, `json` but for blanks and times.

Some pages tell a story: their blocks need each other, and are one terminal's from the first to the last. There
`<!-- file NAME -->` is saved under that name, `<!-- terminal -->` is typed in, `<!-- python -->` is run by the reader's
Python, and `<!-- prints -->` is what the block before it must print.

`<!-- install -->` is the quickstart of the README, played on its own. A block that no test plays says why:
`<!-- shown: REASON -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^<!-- (run|answer|install) -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_STORY = re.compile(
    r"^<!-- (file|terminal|python|prints)(?: (\S+))? -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_FENCED = re.compile(r"^([^\n]*)\n```\w*\n([^\n]*).*?^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (run|answer|file \S+|terminal|python|prints|install|shown: .+) -->")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@dataclass(frozen=True)
class Block:
    """One fenced block that is marked."""

    page: str
    number: int
    mark: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, number, *found) for number, found in enumerate(_BLOCK.findall(text))]


@dataclass(frozen=True)
class Scene:
    """One block of a story."""

    number: int
    file: str
    """What it is saved as; empty for what is typed in."""
    text: str
    prints: str | None = None
    language: str = "text"
    """Of what it prints."""


def story(page: str) -> list[Scene]:
    text = (ROOT / page).read_text(encoding="utf-8")
    told: list[Scene] = []
    for number, (mark, name, language, body) in enumerate(_STORY.findall(text)):
        if mark == "prints":
            told[-1] = replace(told[-1], prints=body, language=language)
        elif mark == "python":
            told.append(Scene(number, "", f"python3 - <<'END OF BLOCK'\n{body}END OF BLOCK\n"))
        else:
            told.append(Scene(number, name, body))
    return told


def unmarked(page: str) -> list[str]:
    """The first lines of blocks that are neither played nor say why they are not."""
    fenced = _FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    return [first for before, first in fenced if not _MARK.fullmatch(before)]


def pages() -> list[Path]:
    """Every page that people read."""
    folders = (ROOT, ROOT / "contracts", ROOT / "examples")
    return sorted([*(page for folder in folders for page in folder.glob("*.md")), *(ROOT / "docs").rglob("*.md")])


def links(page: Path) -> Iterator[str]:
    """Links to files of this repository, as they are written."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not link.startswith(("http://", "https://", "mailto:", "#")):
            yield link


def named_tests(page: Path) -> Iterator[tuple[str, str]]:
    """Tests that a page names as the guards of what it says: file and, where given, function."""
    yield from _TEST.findall(page.read_text(encoding="utf-8"))
