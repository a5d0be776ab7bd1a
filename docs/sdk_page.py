"""The reference of the Python SDK: every public name with its signature and what its docstring says.

It looks at what is there when it is run, so that a name that was added is on the page by itself. What a public name
leads to (`sandbox.commands`, what `run` gives) is shown as well, public or not.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import itertools
import pkgutil
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import fumehood
import fumehood.sdk
from docs.writing import attribute_docs, code, page, prose, table
from fumehood.errors import FumehoodError

ASYNC = "Async"
"""What the name of the awaited twin begins with."""
MADE = "Made by"
"""How the docstring of a constructor begins that is not for callers."""
WITHIN = ("Transport", "Hands", "TaskPayload")
"""What stands in signatures and is not for callers."""
AS_SAID = "As a server says it."
"""What makes a value of an answer; callers have no use for it."""
_WORD = re.compile(r"\w+")
_ENTERED = {"__enter__": "`with`: what it gives", "__iter__": "iteration: what it gives"}


def make() -> str:
    public = {name: getattr(fumehood, name) for name in sorted(fumehood.__all__) if not name.startswith("__")}
    errors = {name: one for name, one in public.items() if inspect.isclass(one) and issubclass(one, FumehoodError)}
    twins = {name for name in public if name.startswith(ASYNC) and name.removeprefix(ASYNC) in public}
    others = {name: one for name, one in public.items() if name not in errors and name not in twins}
    reached = _reached({one.__name__: one for one in public.values() if inspect.isclass(one)})
    return page(
        "Python SDK",
        prose(
            """
            `import fumehood`. These names are the public ones; everything else may move between releases. How to use
            them: [use the Python SDK](../howto/use-the-python-sdk.md). Whatever goes wrong is a class of
            [errors](#errors), with a `code`, whether it is `retryable`, and a `remedy`.
            """
        ),
        *_twins(sorted(twins)),
        "## Names",
        *(part for name, one in others.items() for part in _shown(name, one)),
        *(["## What they lead to"] if reached else []),
        *(part for name, one in sorted(reached.items()) for part in _shown(name, one)),
        "## Errors",
        *_errors(errors),
    )


def _twins(names: list[str]) -> Iterator[str]:
    if not names:
        return
    pairs = [[f"[{name.removeprefix(ASYNC)}](#{name.removeprefix(ASYNC).lower()})", code(name)] for name in names]
    yield prose(
        """
        Each of these has a twin for `asyncio`, with the same names: there calls are awaited, `with` is `async with`
        and `for` is `async for`. One is derived from the other, and a test fails where they differ.
        """
    )
    yield table(["name", "its twin"], pairs)


def _errors(found: dict[str, type[FumehoodError]]) -> Iterator[str]:
    yield prose("All are a `FumehoodError`. `str()` of one that a call of the SDK raised ends with its remedy.")
    rows = [
        [code(name), code(one.code), "yes" if one.retryable else "no", _first(one), getattr(one, "remedy", "")]
        for name, one in found.items()
    ]
    yield table(["class", "code", "retryable", "meaning", "what to do"], rows)


def _first(one: Any) -> str:
    return " ".join((inspect.getdoc(one) or "").split("\n\n", 1)[0].split())


# --- one name ----------------------------------------------------------------------------------------------


def _shown(name: str, one: Any) -> Iterator[str]:
    yield f"### {name}"
    if not inspect.isclass(one):
        if callable(one):
            yield _signature(name, one)
        yield from _told(one)
        return
    made = (vars(one).get("__init__", object.__init__).__doc__ or "").strip()
    plain = issubclass(one, enum.Enum) or typing.is_typeddict(one) or one.__mro__[1] in _public()
    if not plain and not made.startswith(MADE):
        yield _signature(name, one)
    yield from _told(one)
    if made.startswith(MADE):
        yield made
    yield from _fields(one)
    for base in one.__mro__[1:]:
        if base in _public():
            yield f"It has all that [{base.__name__}](#{base.__name__.lower()}) has, and:"
    for member, what in _members(one):
        yield f"#### {name}.{member}" if not member.startswith("__") else f"#### {name}: {_ENTERED[member]}"
        yield from _member(member, what)


@functools.cache
def _public() -> frozenset[Any]:
    return frozenset(getattr(fumehood, name) for name in fumehood.__all__ if inspect.isclass(getattr(fumehood, name)))


def _members(one: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, as the source has them; those of a base of ours, too."""
    seen: dict[str, Any] = {}
    for base in reversed([base for base in one.__mro__ if base.__module__.startswith("fumehood")]):
        seen |= vars(base) if base is one or base not in _public() else {}
    for name, what in seen.items():
        if name == "of" and _first(getattr(what, "__func__", what)).startswith(AS_SAID):
            continue
        if not name.startswith("_") and isinstance(what, Callable | classmethod | staticmethod | property):  # type: ignore[arg-type]
            yield name, what


def _member(name: str, what: Any) -> Iterator[str]:
    if isinstance(what, property):
        yield f"```python\n{name}: {_annotation(what.fget)}\n```"
        yield from _told(what)
        return
    inner = getattr(what, "__func__", what)
    kind = {classmethod: "@classmethod\n", staticmethod: "@staticmethod\n"}.get(type(what), "")
    yield _signature(name, inner, kind)
    yield from _told(inner)


def _annotation(function: Any) -> str:
    return str(inspect.get_annotations(function).get("return", "Any"))


def _fields(one: type) -> Iterator[str]:
    """What the strings below fields say, of those that are public."""
    docs = attribute_docs(one)
    if issubclass(one, enum.Enum):
        yield table(["value", "meaning"], [[code(item.value), docs.get(item.name, "")] for item in one])
        return
    made = _made_in_init(one)
    if made:
        yield table(
            ["attribute", "type", "what"], [[code(name), kind and code(kind), said] for name, kind, said in made]
        )
        return
    hints = {
        name: _plain(kind) for base in reversed(one.__mro__) for name, kind in inspect.get_annotations(base).items()
    }
    names = [item.name for item in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else list(docs)
    names = list(hints) if typing.is_typeddict(one) else names
    rows = [[code(name), code(hints.get(name, "")), docs.get(name, "")] for name in names if not name.startswith("_")]
    if rows:
        yield table(["field", "type", "what"], rows)


def _made_in_init(one: type) -> list[list[str]]:
    """Public attributes that a constructor sets, with their types and what the strings below them say."""
    if "__init__" not in vars(one) or dataclasses.is_dataclass(one):
        return []
    function = ast.parse(textwrap.dedent(inspect.getsource(one.__init__))).body[0]  # type: ignore[misc]
    assert isinstance(function, ast.FunctionDef)
    typed = {arg.arg: ast.unparse(arg.annotation) for arg in _arguments(function) if arg.annotation is not None}
    found = []
    for statement, after in itertools.zip_longest(function.body, function.body[1:]):
        name, kind = _set(statement, typed)
        below = after.value if isinstance(after, ast.Expr) else None
        if name and not name.startswith("_") and name.capitalize() not in WITHIN:
            found.append([name, kind, " ".join(str(below.value).split()) if isinstance(below, ast.Constant) else ""])
    return found


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.args, *function.args.kwonlyargs]


def _set(statement: ast.stmt, typed: dict[str, str]) -> tuple[str, str]:
    """`self.name = …`: the name, and the type as far as it can be seen."""
    target: ast.expr
    if isinstance(statement, ast.AnnAssign):
        target, kind = statement.target, ast.unparse(statement.annotation)
    elif isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        kind = ast.unparse(value.func) if isinstance(value, ast.Call) else typed.get(ast.unparse(value), "")
    else:
        return "", ""
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return target.attr, kind
    return "", ""


def _signature(name: str, one: Any, before: str = "") -> str:
    """One parameter on each line where they do not fit on one."""
    try:
        found = inspect.signature(one)
    except (ValueError, TypeError):
        return f"```python\n{before}{name}\n```"
    kept = [part for part in found.parameters.values() if part.name not in ("self", "cls")]
    parts = list(_parameters(kept))
    gives = found.return_annotation
    end = "" if gives is inspect.Signature.empty or inspect.isclass(one) else f" -> {_plain(gives)}"
    head = f"{before}{'async def ' if inspect.iscoroutinefunction(one) else ''}{name}"
    line = f"{head}({', '.join(parts)}){end}"
    if len(line.splitlines()[-1]) > 100:
        line = f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```python\n{line}\n```"


def _parameters(found: list[inspect.Parameter]) -> Iterator[str]:
    """As the source has them, with the star before those that are given by name."""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    starred = False
    for one in found:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        typed = "" if one.annotation is inspect.Parameter.empty else f": {_plain(one.annotation)}"
        default = "" if one.default is inspect.Parameter.empty else _default(one.default, spaced=bool(typed))
        yield f"{stars.get(one.kind, '')}{one.name}{typed}{default}"


def _default(value: object, *, spaced: bool) -> str:
    """Without addresses: the page must be the same each time."""
    said = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return f" = {said}" if spaced else f"={said}"


def _plain(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _told(one: Any) -> Iterator[str]:
    """A docstring as Markdown: paragraphs, and what is code as blocks of it."""
    shown: list[str] = []
    for part in [*re.split(r"\n{2,}", inspect.getdoc(one) or ""), ""]:
        lead, example = _split(part)
        if example and not lead:
            shown.append(example)
            continue
        if shown:
            yield _block("\n\n".join(shown))
            shown.clear()
        if lead:
            yield prose(lead)
        if example:
            shown.append(example)


def _split(part: str) -> tuple[str, str]:
    """What is said in a paragraph, and what is shown behind it."""
    lines = part.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            lead = re.sub(r"\s*\bExamples?::?\s*$", "", "\n".join(lines[:number]))
            return lead.strip(), textwrap.dedent("\n".join(lines[number:]))
    dedented = textwrap.dedent(part)
    return ("", dedented) if _is_code(dedented) else (part, "")


def _is_code(text: str) -> bool:
    """A sentence is hardly ever a program."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    return any(not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Name | ast.Constant)) for one in body)


def _block(text: str) -> str:
    return f"```{'pycon' if text.startswith('>>>') else 'python'}\n{text}\n```"


# --- what they lead to -------------------------------------------------------------------------------------


def _reached(public: dict[str, type]) -> dict[str, type]:
    """Classes of the SDK that stand in the signatures of public ones, and of those again."""
    homes = _classes()
    found: dict[str, type] = {}
    waiting = [one for name, one in public.items() if not name.startswith(ASYNC)]
    while waiting:
        for word in _words(waiting.pop()):
            known = word in public or word in found or word in WITHIN
            if word in homes and not known and not word.startswith((ASYNC, "_")):
                found[word] = homes[word]
                waiting.append(homes[word])
    return found


def _words(one: type) -> Iterator[str]:
    """The names in what its members and fields are annotated with."""
    annotated = [*inspect.get_annotations(one).values(), *(kind for _, kind, _ in _made_in_init(one))]
    for _, what in _members(one):
        function: Any = what.fget if isinstance(what, property) else getattr(what, "__func__", what)
        annotated += inspect.get_annotations(function).values()
    for said in annotated:
        yield from _WORD.findall(_plain(said))


def _classes() -> dict[str, type]:
    """Every class that a module of the SDK defines; where both kinds have one, that which is not awaited."""
    found: dict[str, type] = {}
    names = [info.name for info in pkgutil.walk_packages(fumehood.sdk.__path__, "fumehood.sdk.")]
    for name in sorted(names, key=lambda name: ".blocking" in name):
        module = import_module(name)
        found |= {
            key: one for key, one in vars(module).items() if inspect.isclass(one) and one.__module__ == module.__name__
        }
    return found
