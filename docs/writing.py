"""What every page of the reference is made with: paragraphs, tables, and what the code says about itself."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "<!-- Made by docs/generate.py from the code; edit that, not this. -->"
_CODE = re.compile(r"(?P<ticks>`+)(?P<text>.+?)(?P=ticks)")
_MARKS = re.compile(r"[|&<>*_\[\\`~]")
"""What Markdown would read as more than a character."""


def page(title: str, *parts: str) -> str:
    return "\n\n".join([NOTICE, f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def prose(text: str) -> str:
    """One paragraph, wrapped as the hand-written pages are."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _CODE.sub(_without_bars, " ".join(text.split())).replace("|", "\\|")


def _without_bars(found: re.Match[str]) -> str:
    """Code with a bar in it, so that every renderer shows the bar alone: some show the backslash before it, too."""
    if "|" not in found["text"]:
        return found[0]
    return f"<code>{_MARKS.sub(lambda mark: f'&#{ord(mark[0])};', found['text'])}</code>"


def code(text: object) -> str:
    return f"`{text}`"


def attribute_docs(kind: type) -> dict[str, str]:
    """The strings that stand below the fields of a class, which Python itself throws away."""
    found: dict[str, str] = {}
    for one in reversed([base for base in kind.__mro__ if base.__module__.startswith("fumehood")]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(tree, ast.ClassDef)
        if typing.is_typeddict(one):  # what it inherits from is only in its source
            bases = [vars(sys.modules[one.__module__]).get(ast.unparse(base)) for base in tree.bases]
            for base in bases:
                found |= attribute_docs(base) if base is not None and typing.is_typeddict(base) else {}
        found |= _documented(tree.body)
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in itertools.pairwise(body):
        target = before.target if isinstance(before, ast.AnnAssign) else None
        if isinstance(before, ast.Assign):
            target = before.targets[0]  # type: ignore[assignment]
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield target.id, _joined(str(after.value.value))


def _joined(text: str) -> str:
    """Lines that were broken inside a hyphenated word grow together again."""
    return " ".join(text.split()).replace("start- up", "start-up")


def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n", 1)[0].split())
