"""The languages that are known: their names, where they are found, and their grammars."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    title: str
    package: str
    """That carries the grammar …"""
    entry: str = "language"
    """… and the function in it that gives it."""
    aliases: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ()

    def grammar(self) -> Grammar:
        from tree_sitter import Language as Grammar

        return Grammar(getattr(importlib.import_module(self.package), self.entry)())


LANGUAGES = (
    Language(
        "python",
        "Python",
        "tree_sitter_python",
        "language",
        ("py", "python3"),
        ("py", "pyi", "pyw"),
        ("python", "pypy"),
    ),
    Language(
        "javascript",
        "JavaScript",
        "tree_sitter_javascript",
        "language",
        ("js", "jsx", "node", "ecmascript", "javascriptreact"),
        ("js", "mjs", "cjs", "jsx"),
        ("node", "bun"),
    ),
    Language(
        "typescript",
        "TypeScript",
        "tree_sitter_typescript",
        "language_typescript",
        ("ts",),
        ("ts", "mts", "cts"),
        ("deno", "ts-node", "tsx"),
    ),
    Language("tsx", "TypeScript", "tree_sitter_typescript", "language_tsx", ("typescriptreact",), ("tsx",)),
    Language("rust", "Rust", "tree_sitter_rust", "language", ("rs",), ("rs",)),
    Language("go", "Go", "tree_sitter_go", "language", ("golang",), ("go",)),
    Language("java", "Java", "tree_sitter_java", "language", (), ("java",)),
    Language("c", "C", "tree_sitter_c", "language", ("ansi c",), ("c", "h")),
    Language(
        "cpp",
        "C++",
        "tree_sitter_cpp",
        "language",
        ("c++", "cxx", "cplusplus"),
        ("cpp", "cc", "cxx", "hpp", "hh", "hxx", "ipp", "inl"),
    ),
    Language("ruby", "Ruby", "tree_sitter_ruby", "language", ("rb",), ("rb", "rake", "gemspec"), ("ruby",)),
    Language(
        "bash",
        "shell",
        "tree_sitter_bash",
        "language",
        ("sh", "shell", "zsh", "ksh", "shellscript", "shell script"),
        ("sh", "bash", "ksh"),
        ("sh", "bash", "dash", "ksh"),
    ),
    Language("csharp", "C#", "tree_sitter_c_sharp", "language", ("c#", "cs", "c-sharp", "c_sharp"), ("cs",)),
    Language("php", "PHP", "tree_sitter_php", "language_php", (), ("php", "phtml", "inc"), ("php",)),
)
BY_NAME = {name: language for language in LANGUAGES for name in (language.name, *language.aliases)}
BY_EXTENSION = {extension: language for language in LANGUAGES for extension in language.extensions}
BY_INTERPRETER = {name: language for language in LANGUAGES for name in language.interpreters}
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?([A-Za-z-]+)")


def detect(said: str | None, path: str, content: str) -> Language | None:
    """What the caller said, else what the file's name says, else its first line. A caller who names a language that is
    not known gets none: they know better than the name of their file."""
    if said is not None:
        found = BY_NAME.get(said.strip().lower())
        if found is not None and found.name == "typescript" and path.lower().endswith(".tsx"):
            return BY_NAME["tsx"]
        return found
    extension = PurePosixPath(path).suffix.lower().lstrip(".")
    if extension:
        return BY_EXTENSION.get(extension)
    shebang = _SHEBANG.match(content)
    return BY_INTERPRETER.get(shebang.group(1)) if shebang else None
