"""Examples in the docstrings of the SDK's public names: what stands there, as code that can be run.

An example is indented, or the whole of a docstring behind its first words (which the formatter moves to the left).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.sdk_surface import members, public

DOING = (ast.Call, ast.Assert, ast.Assign, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Example:
    """One example, and whose it is."""

    name: str
    code: str

    @property
    def is_async(self) -> bool:
        return any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(_parsed(self.code)))


def examples() -> list[Example]:
    """Of all public names, each once."""
    found: dict[str, Example] = {}
    for name, thing in sorted(public().items()):
        for owner, doc in _docs(name, thing):
            for code in codes(doc):
                found.setdefault(code, Example(owner, code))
    return list(found.values())


def without() -> list[str]:
    """Public names that show nothing of how they are used, neither in their own docstring nor in a part's."""
    return [name for name, thing in sorted(public().items()) if not any(codes(doc) for _, doc in _docs(name, thing))]


def _docs(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    yield name, inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        for member, value in members(thing):
            told = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isroutine(told) or isinstance(told, property):
                yield f"{name}.{member}", inspect.getdoc(told) or ""


def codes(doc: str) -> list[str]:
    """What is code to the end of the docstring; else what is indented."""
    paragraphs = doc.split("\n\n")
    for begin in range(1, len(paragraphs)):
        if _is_code(code := textwrap.dedent("\n\n".join(paragraphs[begin:])).strip("\n")):
            return [code]
    return [code for block in _indented(doc.split("\n")) if _is_code(code := textwrap.dedent(block).strip("\n"))]


def _indented(lines: list[str]) -> Iterator[str]:
    block: list[str] = []
    for line in [*lines, "end"]:
        if line.startswith("    ") or (block and not line.strip()):
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []


def _is_code(text: str) -> bool:
    try:
        tree = _parsed(text)
    except SyntaxError:
        return False
    return any(isinstance(node, DOING) for node in ast.walk(tree))


def _parsed(text: str) -> ast.Module:
    """As the body of a function: `await` may stand in it."""
    return ast.parse("async def example():\n" + textwrap.indent(text, "    "))
