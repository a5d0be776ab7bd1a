"""Where to look next: what a chunk imports, as paths beside or above its own; who may call what is suspected."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from fumehood.jobs.analysis.process import FoundImport

MAX_PROBES = 64


def paths(language: str, path: str, imports: Sequence[FoundImport]) -> list[tuple[str, FoundImport]]:
    """Likely files of the same repository, each once, in the order of the text. Packages of others are no path."""
    resolve = _RESOLVE.get(language)
    if resolve is None:
        return []
    found: dict[str, FoundImport] = {}
    for one in imports:
        for candidate in resolve(PurePosixPath(path), one):
            clean = posixpath.normpath(candidate)
            if not clean.startswith(("..", "/")) and clean not in (".", path):
                found.setdefault(clean, one)
    return list(found.items())[:MAX_PROBES]


def test_of(language: str, path: str) -> str | None:
    """Only where the language itself says what it is called."""
    if language == "go" and path.endswith(".go") and not path.endswith("_test.go"):
        return path[: -len(".go")] + "_test.go"
    if language == "java" and "src/main/java/" in path and path.endswith(".java"):
        return path.replace("src/main/java/", "src/test/java/")[: -len(".java")] + "Test.java"
    return None


def folder_of(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _beside(path: PurePosixPath, name: str) -> str:
    return posixpath.join(str(path.parent), name)


def _plain(text: str) -> str:
    return text.strip("\"'`<> ")


def _python(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    if one.what.startswith("."):
        dots = len(one.what) - len(one.what.lstrip("."))
        rest = one.what.lstrip(".").replace(".", "/")
        base = posixpath.join(str(path.parent), *[".."] * (dots - 1))
        yield posixpath.join(base, f"{rest}.py" if rest else "__init__.py")
        return
    yield from _from_shared_root(path, one.what.split("."), ".py")


def _from_shared_root(path: PurePosixPath, parts: Sequence[str], ending: str) -> Iterator[str]:
    """`a.b.c` seen from `src/a/x.py` is `src/a/b/c`: the name that both share tells where the root is."""
    folders = path.parts[:-1]
    if parts and parts[0] in folders and len(parts) > 1:
        yield posixpath.join(*folders[: folders.index(parts[0])], *parts[:-1], parts[-1] + ending)


def _javascript(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    name = _plain(one.what)
    if name.startswith("."):
        ending = "" if re.search(r"\.(m|c)?[jt]sx?$|\.(json|css|vue|svelte)$", name) else path.suffix or ".js"
        yield _beside(path, name + ending)


def _rust(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    here = path.parent if path.stem in ("mod", "lib", "main") else path.parent / path.stem
    if one.kind == "mod":
        yield f"{here}/{one.what}.rs"
        return
    parts = [part for part in re.split(r"::", re.sub(r"\{.*|\bas\b.*|\s", "", one.what)) if part]
    names = [part for part in parts[1:] if re.fullmatch(r"[a-z_][a-z0-9_]*", part)]
    if not parts or not names:
        return
    if parts[0] == "crate" and "src" in path.parts:
        root = posixpath.join(*path.parts[: path.parts.index("src") + 1])
        yield f"{root}/{names[0]}.rs"
    elif parts[0] == "super":
        yield f"{here.parent}/{names[0]}.rs"
    elif parts[0] == "self":
        yield f"{here}/{names[0]}.rs"


def _go(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    parts = _plain(one.what).split("/")
    folders = path.parts[:-1]
    if folders and folders[0] in parts[1:]:
        yield "/".join(parts[parts.index(folders[0], 1) :])


def _java(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    parts = [part for part in one.what.split(".") if part != "*"]
    kept = [place for place, part in enumerate(parts) if part[:1].isupper()]
    yield from _from_shared_root(path, parts[: kept[0] + 1] if kept else [], ".java")


def _c(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    if one.kind == "near":
        yield _beside(path, _plain(one.what))


def _ruby(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    name = _plain(one.what)
    if one.kind == "near":
        yield _beside(path, name if name.endswith(".rb") else f"{name}.rb")


def _shell(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    name = re.sub(r"^\"?(\$\(dirname[^)]*\)|\$\{?\w+\}?|\$\{BASH_SOURCE[^}]*\})\"?/", "", one.what)
    if "$" not in name and not name.startswith("/"):
        yield _beside(path, _plain(name))


def _php(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    if one.kind == "near":
        literal = re.findall(r"[\"']([^\"'$]+)[\"']", one.what)
        if len(literal) == 1 and "$" not in one.what:
            yield _beside(path, literal[0].lstrip("/"))
        return
    parts = one.what.strip("\\").split("\\")
    folders = [folder.lower() for folder in path.parts[:-1]]
    if len(parts) > 1 and parts[0].lower() in folders:
        root = path.parts[: folders.index(parts[0].lower()) + 1]
        yield posixpath.join(*root, *parts[1:-1], parts[-1] + ".php")


def _csharp(path: PurePosixPath, one: FoundImport) -> Iterator[str]:
    parts = one.what.split(".")
    folders = path.parts[:-1]
    if len(parts) > 1 and parts[0] in folders:
        yield posixpath.join(*folders[: folders.index(parts[0])], *parts)


_RESOLVE: dict[str, Callable[[PurePosixPath, FoundImport], Iterator[str]]] = {
    "python": _python,
    "javascript": _javascript,
    "typescript": _javascript,
    "tsx": _javascript,
    "rust": _rust,
    "go": _go,
    "java": _java,
    "c": _c,
    "cpp": _c,
    "ruby": _ruby,
    "bash": _shell,
    "php": _php,
    "csharp": _csharp,
}
