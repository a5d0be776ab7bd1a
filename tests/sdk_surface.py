"""The SDK's public surface as text: every name, with its signature. `python -m tests.sdk_surface` writes it down.

`tests/unit/test_sdk_surface.py` compares: a change of the surface is a change of `contracts/sdk-surface.txt`, and so is
seen by whoever reviews it.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fumehood
from fumehood.errors import FumehoodError

FILE = Path(__file__).parents[1] / "contracts" / "sdk-surface.txt"
PARTS = {
    "client": ("Sandboxes",),
    "commands": ("Commands",),
    "files": ("Files",),
    "jobs": ("Jobs",),
    "pty": ("Pty",),
    "python": ("Python",),
    "receipts": ("Receipts",),
    "run_lists": ("Runs",),
    "workflows": ("Workflows",),
}
"""Classes that nobody names, since they are found at others: `sandbox.files`. By module; both flavours have them."""
HEAD = "The SDK's public surface, made by `python -m tests.sdk_surface`; a change of it is a change of the contract.\n"


def public() -> dict[str, Any]:
    """Everything that a caller may rely on, by name."""
    found = {name: getattr(fumehood, name) for name in fumehood.__all__ if name != "__version__"}
    for flavour, prefix in (("aio", "Async"), ("blocking", "")):
        for module, names in PARTS.items():
            home = import_module(f"fumehood.sdk.{flavour}.{module}")
            found |= {prefix + name: getattr(home, prefix + name) for name in names}
    return found


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class of ours has under public names, inherited from other classes of ours included."""
    seen: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fumehood"):
            seen |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    yield from sorted(seen.items())


def undocumented() -> list[str]:
    """Public names that say nothing about themselves. Fields of dataclasses and enums are told by their class."""
    found = []
    for name, kind in public().items():
        if not inspect.getdoc(kind):
            found.append(name)
        if inspect.isroutine(kind):
            continue
        for member, value in members(kind if inspect.isclass(kind) else type(kind)):
            told = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if (inspect.isroutine(told) or isinstance(told, property)) and not inspect.getdoc(told):
                found.append(f"{name}.{member}")
    return found


def keywords() -> dict[str, dict[str, str]]:
    """What calls take as `**options: Unpack[Name]`, by that name. One name stands for the same in both flavours."""
    found: dict[str, dict[str, str]] = {}
    for function in _functions():
        for parameter in inspect.signature(function).parameters.values():
            name = re.fullmatch(r"Unpack\[(?:Async)?(\w+)\]", str(parameter.annotation).strip("'"))
            if name is None:
                continue
            kind = function.__globals__[str(parameter.annotation).strip("'")[len("Unpack[") : -1]]
            told = {key: getattr(of, "__forward_arg__", str(of)) for key, of in kind.__annotations__.items()}
            plain = {key: of.replace("Async", "") for key, of in told.items()}
            assert found.setdefault(name[1], plain) == plain, f"there are two {name[1]}"
    return found


def _functions() -> Iterator[Any]:
    for thing in public().values():
        if inspect.isroutine(thing):
            yield thing
            continue
        kind = thing if inspect.isclass(thing) else type(thing)
        for value in [vars(kind).get("__init__"), *(value for _, value in members(kind))]:
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function):
                yield function


def surface() -> str:
    blocks = [HEAD, f"names: {len(fumehood.__all__)}\n"]
    for name, kind in sorted(public().items()):
        blocks.append("\n".join(_told(name, kind)) + "\n")
    for name, told in sorted(keywords().items()):
        blocks.append("\n".join([f"keywords {name}", *(f"    {key}: {of}" for key, of in sorted(told.items()))]) + "\n")
    return "\n".join(blocks)


def _told(name: str, thing: Any) -> list[str]:
    if inspect.isroutine(thing):
        return [f"function {_kind(thing)}{name}{_signature(thing)}"]
    if not inspect.isclass(thing):
        return [f"value {name}: {type(thing).__name__}", *_class(name, type(thing))[1:]]
    return _error(thing) if issubclass(thing, FumehoodError) else _class(name, thing)


def _error(kind: type[FumehoodError]) -> list[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__)
    again = " retryable" if kind.retryable else ""
    return [f"error {kind.__name__}({bases}) {kind.code}{again}"]


def _class(name: str, kind: type) -> list[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    lines = [f"class {name}({bases})" if bases else f"class {name}"]
    if issubclass(kind, enum.Enum):
        return lines + [f"    {one.name} = {one.value!r}" for one in kind]
    if "__init__" in vars(kind):
        lines.append(f"    {name}{_signature(kind.__init__)}")
    if not dataclasses.is_dataclass(kind):
        lines += [f"    {field}: {told}" for field, told in sorted(_fields(kind).items())]
    lines += [line for member, value in members(kind) if (line := _member(member, value))]
    return lines


def _fields(kind: type) -> dict[str, str]:
    """What is said of attributes that every one has."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fumehood"):
            found |= {name: str(told) for name, told in inspect.get_annotations(base).items() if name[0] != "_"}
    return found


def _member(name: str, value: Any) -> str:
    match value:
        case classmethod() | staticmethod():
            return f"    {type(value).__name__} {_kind(value.__func__)}{name}{_signature(value.__func__)}"
        case property():
            return f"    property {name}: {_returned(value.fget)}"
    if inspect.isroutine(value):
        return f"    {_kind(value)}{name}{_signature(value)}"
    return ""


def _kind(function: Any) -> str:
    return "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function)).replace("'", "")
    except (TypeError, ValueError):
        return "(…)"


def _returned(function: Any) -> str:
    return str(inspect.signature(function).return_annotation).replace("'", "")


if __name__ == "__main__":
    FILE.write_text(surface(), encoding="utf-8")
    print(f"written: {FILE}")
