"""House rules that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fumehood"
READERS = {"environ", "environb", "getenv", "getenvb"}


def reads_of_the_environment(tree: ast.AST) -> Iterator[int]:
    """Lines that touch the process's environment: `os.environ` and its kin, however imported, and Typer's `envvar`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name, lineno=line) if name in READERS:
                yield line
            case ast.ImportFrom(module="os", names=names, lineno=line) if READERS & {alias.name for alias in names}:
                yield line
            case ast.keyword(arg="envvar", lineno=line):
                yield line


def test_only_settings_reads_the_environment() -> None:
    """Every setting is found in one module, with its unit, its default and its reason."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != SOURCE / "settings" / "base.py"
        for line in reads_of_the_environment(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['A']",
        "import os\nos.getenv('A')",
        "from os import environ",
        "from os import environb as e",
        "option(envvar='A')",
    ],
)
def test_the_rule_sees_every_way_to_read_it(code: str) -> None:
    """The check above is worth something only if it would notice."""
    assert list(reads_of_the_environment(ast.parse(code)))
