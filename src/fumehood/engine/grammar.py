"""How an expression is built: as much of CEL's grammar as it takes to say what it looks at and what that costs.

The binding keeps its syntax tree to itself, so an expression is read here a second time, before the binding sees it.
Precedence between comparisons does not matter for a bound and is not kept. What is not understood here is refused:
better an odd expression less than one whose cost nobody knows. Nothing recurses deeper than `DEEPEST`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

DEEPEST = 32
"""Brackets inside brackets: the binding's own parser ends between 50 and 100."""
MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})

SMALL = frozenset(
    {"contains", "double", "endsWith", "has", "int", "matches", "size", "startsWith", "timestamp", "type", "uint"}
)
"""What these functions give is small, whatever they are given."""

_SKIPPED = re.compile(r"(?:[ \t\r\n\f]|//[^\n]*)*")
_TOKEN = re.compile(
    r"(?P<text>(?P<prefix>[bB]?[rR]?)(?P<quote>'''|\"\"\"|'|\"))"
    r"|(?P<number>0x[0-9a-fA-F]+u?|(?:\d+\.\d+|\.\d+|\d+)(?:[eE][+-]?\d+)?[uU]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])"
)
_UNESCAPED = re.compile(r"\\([\\'\"])")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\[^\\'\"]")
"""Escapes other than of a quote or a backslash: what the text says is not worked out here."""
_JOINING = frozenset({"+", "-", "*", "/", "%"})
_COMPARING = frozenset({"||", "&&", "==", "!=", "<", "<=", ">", ">=", "in"})
_CONSTANTS = frozenset({"true", "false", "null"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class GrammarError(ValueError):
    """Not an expression, or none that we take."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `text` where it is a text that stands there as it is meant. The length is that of a text."""

    length: int = 0
    text: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Values joined by `+` and its like, from left to right."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Values looked at one beside the other. `compared`: what comes out is small, whatever goes in. `listed`: what
    comes out has them as its items."""

    parts: tuple[Node, ...]
    compared: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """`.name`, `["name"]` or `[0]`."""

    key: str | int


@dataclass(frozen=True, slots=True)
class At:
    """`[…]` with anything else in it."""

    key: Node


@dataclass(frozen=True, slots=True)
class Call:
    """`.name(…)`"""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Macro:
    """`.map(variable, body)` and its like."""

    name: str
    variable: str
    bodies: tuple[Node, ...]


Operation = Field | At | Call | Macro


@dataclass(frozen=True, slots=True)
class Postfix:
    """A value and what is done to it, one after the other."""

    base: Node
    operations: tuple[Operation, ...]


Node = Literal | Name | Chain | Group | Postfix


def parse(text: str) -> Node:
    """The tree of an expression; `GrammarError` when it has none."""
    reader = _Reader(_tokens(text))
    node = reader.expression()
    reader.expect("")
    return node


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    value: str


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while (at := _end_of(_SKIPPED.match(text, at), at)) < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise GrammarError(f"{text[at]!r} is not understood")
        if match["quote"]:
            token, at = _quoted(text, match)
        else:
            token, at = _Token(match.lastgroup or "", match[0]), match.end()
        found.append(token)
    return [*found, _Token("end", "")]


def _end_of(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match is not None else otherwise


def _quoted(text: str, opening: re.Match[str]) -> tuple[_Token, int]:
    quote, raw = opening["quote"], "r" in opening["prefix"].lower()
    at = start = opening.end()
    while not text.startswith(quote, at):
        at += 2 if not raw and text[at : at + 1] == "\\" else 1
        if at >= len(text):
            raise GrammarError("a text has no end")
    inside = text[start:at] if raw else _UNESCAPED.sub(r"\1", text[start:at])
    known = "b" not in opening["prefix"].lower() and (raw or not _ESCAPED.search(text[start:at]))
    return _Token("text" if known else "bytes", inside), at + len(quote)


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise GrammarError(f"more than {DEEPEST} brackets inside each other")
        node = self._joined()
        if self._take("?"):
            first = self._joined()
            self.expect(":")
            node = Group((node, first, self.expression()))
        self._depth -= 1
        return node

    def expect(self, sign: str) -> None:
        token = self._next()
        if token.value != sign or token.kind in ("text", "bytes"):
            raise GrammarError(f"{token.value[:40]!r} where {sign or 'the end'!r} should be")

    def _joined(self) -> Node:
        """Operands between operators: those of arithmetic bind tighter than the others."""
        chains = [[self._unary()]]
        while (operator := self._operator()) is not None:
            if operator in _JOINING:
                chains[-1].append(self._unary())
            else:
                chains.append([self._unary()])
        parts = tuple(chain[0] if len(chain) == 1 else Chain(tuple(chain)) for chain in chains)
        return parts[0] if len(parts) == 1 else Group(parts, compared=True)

    def _operator(self) -> str | None:
        token = self._tokens[self._at]
        if token.kind in ("sign", "name") and token.value in _JOINING | _COMPARING:
            return self._next().value
        return None

    def _unary(self) -> Node:
        """Behind a sign is a value of its own: `!input.a` is no bare path. `test_a_sign_is_no_part_of_a_path`"""
        signed = False
        while self._take("!") or self._take("-"):
            signed = True
        base, operations = self._primary(), list[Operation]()
        while (operation := self._operation()) is not None:
            operations.append(operation)
        node = Postfix(base, tuple(operations)) if operations else base
        return Group((node,), compared=True) if signed else node

    def _primary(self) -> Node:
        token = self._next()
        if token.kind in _LITERALS:
            return _LITERALS[token.kind](token)
        if token.value in _CONSTANTS and token.kind == "name":
            return Literal()
        if token.kind == "name" and token.value not in _COMPARING:
            return self._function(token.value) if self._take("(") else Name(token.value)
        if token.value == "(":
            node = self.expression()
            self.expect(")")
            return node
        if token.value in ("[", "{"):
            return Group(self._list(_CLOSING[token.value], pairs=token.value == "{"), listed=True)
        raise GrammarError(f"{token.value[:40] or 'the end'!r} is not understood")

    def _operation(self) -> Operation | None:
        if self._take("."):
            token = self._next()
            if token.kind != "name":
                raise GrammarError(f"{token.value[:40]!r} is no name")
            return self._called(token.value) if self._take("(") else Field(token.value)
        if self._take("["):
            key = self.expression()
            self.expect("]")
            known = isinstance(key, Literal) and (key.text if key.text is not None else key.number)
            return Field(known) if isinstance(known, str | int) and known is not False else At(key)
        return None

    def _called(self, name: str) -> Operation:
        arguments = self._arguments()
        if name in MACROS and len(arguments) in ((2, 3) if name == "map" else (2,)):
            variable, *bodies = arguments
            if not isinstance(variable, Name):
                raise GrammarError(f"{name} begins with a name")
            return Macro(name, variable.name, tuple(bodies))
        return Call(name, arguments)

    def _function(self, name: str) -> Node:
        return Group(self._arguments(), compared=name in SMALL)

    def _arguments(self) -> tuple[Node, ...]:
        return self._list(")")

    def _list(self, closing: str, *, pairs: bool = False) -> tuple[Node, ...]:
        parts: list[Node] = []
        while not self._take(closing):
            if parts:
                self.expect(",")
                if self._take(closing):
                    break
            parts.append(self.expression())
            if pairs:
                self.expect(":")
                parts.append(self.expression())
        return tuple(parts)

    def _take(self, sign: str) -> bool:
        token = self._tokens[self._at]
        found = token.kind == "sign" and token.value == sign
        self._at += found
        return found

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token


def _number(token: _Token) -> Literal:
    return Literal(number=int(token.value) if token.value.isascii() and token.value.isdigit() else None)


_LITERALS: dict[str, Callable[[_Token], Literal]] = {
    "text": lambda token: Literal(max(1, len(token.value)), text=token.value),
    "bytes": lambda token: Literal(max(1, len(token.value))),
    "number": _number,
}
