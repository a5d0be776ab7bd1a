"""Finds definitions in code of any language by the look of their lines. Not a parser: a second opinion on one.

Each line is looked at on its own, and only as far as a person would read it, so that no text takes long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MAX_LINES = 20_000
MAX_LINE = 300
_BEFORE = (
    r"(?:export|default|pub|pub\(\w+\)|public|private|protected|internal|static|final|abstract|async|unsafe|inline)"
)
_KEYWORD = re.compile(
    rf"[ \t]*(?:{_BEFORE}[ \t]+){{0,5}}"
    r"(?:def|class|fn|func|function|struct|enum|trait|interface|module|record)[ \t]+(?:\([^()]{0,80}\)[ \t]*)?"
    r"(?:self\.)?([A-Za-z_]\w{0,100})"
)
_CALLABLE = re.compile(
    r"[A-Za-z_][\w<>\[\], \t*&:]{0,120}?[ \t*&]([A-Za-z_]\w{0,100})[ \t]?\([^(){};]{0,160}\)[^;=]{0,60}\{$"
)
_NOT_NAMES = frozenset(("if", "for", "while", "switch", "catch", "return", "else", "match", "with", "new", "do"))


def definitions(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The place of the line, from 0, and the name that it defines."""
    for at, line in enumerate(lines[:MAX_LINES]):
        name = _defined(line[:MAX_LINE].rstrip())
        if name is not None and name not in _NOT_NAMES:
            yield at, name


def _defined(line: str) -> str | None:
    found = _KEYWORD.match(line)
    if found is None and line.endswith("{"):
        found = _CALLABLE.match(line.lstrip())
        if found is not None and line.split(maxsplit=1)[0] in _NOT_NAMES:
            return None
    return None if found is None else found.group(1)
