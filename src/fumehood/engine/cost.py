"""What an expression costs, before it is evaluated: a bound from its form and from the sizes of what it sees.

The binding has no bound of its own and copies freely: every `.name` copies what it selects, every item that `map` or
`filter` adds copies all that were added before, every `+` copies its left side. So cost is counted in *copies of a
part*, where a part is a number, a text, a list, an object or one of its keys; one copy takes about 0.15 µs. Handing a
value over to the binding is a copy, too, and 15 times as dear. docs/decisions/0011-expressions.md has the measurements.

Everything here is arithmetic on sizes: the same expression over the same values is allowed, or not, on any machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine import grammar
from fumehood.engine.grammar import At, Call, Chain, Field, Group, Literal, Macro, Name, Node, Operation, Postfix

MOST = 2_000_000
"""Copies that one expression may take: some 0.3 s."""
HANDED = 15
RETURNED = 5
ONCE = 100
"""What any evaluation takes, however small."""
PART_BYTES = 32
"""Bytes of a text that are copied like one more part."""
HANDED_BYTES = 128
PATTERN = 700_000
"""To compile a regular expression of which nothing is known; the library gives up after 0.1 s."""

_TEXT, _LIST, _OBJECT = 2, 2, 3
_STATE = 20
_CLASSES = (
    (re.compile(r"\\[wWpPbB]"), 6000),
    (re.compile(r"\\[DS]"), 1600),
    (re.compile(r"\\d"), 650),
    (re.compile(r"\\s|\["), 100),
    (re.compile(r"\.|[^\x00-\x7f]"), 60),
)
"""Classes of characters cost as much as the ranges of Unicode that they have."""
_REPEATED = re.compile(r"\{(\d*),?(\d*)\}")
_INT64 = 2**63


class NotCountableError(ValueError):
    """A value that the binding would take for another."""


class TooMuchError(ValueError):
    """More than `MOST`: what it would look at, and what to do about it."""


@dataclass(slots=True)
class Weights:
    """How much there is of what an expression sees; of every list and object by its identity."""

    nodes: int = 0
    text: int = 0
    inside: dict[int, int] = field(default_factory=dict)

    @property
    def handed(self) -> int:
        return self.nodes * HANDED + self.text // HANDED_BYTES

    def of(self, value: Any) -> int:
        return self.inside.get(id(value)) or _small(value)

    def add(self, value: Any) -> int:
        """Weigh a value and all inside; `TooMuchError` as soon as handing it over would be too much."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind is dict:
            self._count(2 * len(value))
            weight = _OBJECT + sum(map(self._text, value)) + sum(map(self.add, value.values()))
        elif kind is list:
            self._count(len(value))
            weight = _LIST + sum(map(self.add, value))
        else:
            if kind is int and not -_INT64 <= value < _INT64:
                raise NotCountableError("a number has more than 64 bits; give it as text, or let a task look at it")
            return 1
        self.inside[id(value)] = weight
        return weight

    def _text(self, text: str) -> int:
        self.text += _bytes(text)
        return _small(text)

    def _count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.handed > MOST:
            raise TooMuchError(f"this expression would look at {self.nodes} values or more; let a task do it")


def _small(value: Any) -> int:
    return _TEXT + _bytes(value) // PART_BYTES if isinstance(value, str) else 1


def _ceil(whole: int, count: int) -> int:
    return max(1, -(-whole // count))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text) * 4


@dataclass(frozen=True, slots=True)
class Size:
    """A bound on a value: its parts, and how many items it has where it is a list or an object. `real` is the value
    itself where it is one that the expression was given, or has all of its items; `among` are the values that a macro's
    variable goes through, and the parts are then those of an average one."""

    parts: int
    items: int
    real: Any = None
    among: list[Any] | None = None


_SMALL = Size(1, 1)


@dataclass(slots=True)
class Bound:
    """Adds up what evaluating a tree over these values takes, at most. `scope` has the variables of macros."""

    values: Mapping[str, Any]
    weights: Weights
    copies: int = ONCE
    scope: dict[str, Size] = field(default_factory=dict)
    times: int = 1

    def spend(self, copies: int) -> None:
        self.copies += copies * self.times
        if self.copies > MOST:
            raise TooMuchError(
                f"this expression would look at {self.weights.nodes} values with {self.weights.text} bytes of text"
                " too many times; let a task do it"
            )

    def size(self, node: Node) -> Size:
        """What comes out; what it takes is added to `copies`."""
        if isinstance(node, Postfix):
            size = self.size(node.base)
            for operation in node.operations:
                size = self._after(size, operation)
            return size
        if isinstance(node, Literal):
            return Size(_TEXT + node.length * 4 // PART_BYTES if node.length else 1, 1)
        if isinstance(node, Name):
            return self._named(node.name)
        return self._chain(node) if isinstance(node, Chain) else self._group(node)

    def _named(self, name: str) -> Size:
        if name in self.scope:
            self.spend(self.scope[name].parts)
            return self.scope[name]
        return self._real(self.values[name]) if name in self.values else _SMALL

    def _real(self, value: Any) -> Size:
        return Size(self.weights.of(value), len(value) if isinstance(value, dict | list) else 1, value)

    def _selected(self, value: Any) -> Size:
        size = self._real(value)
        self.spend(size.parts)
        return size

    def _chain(self, node: Chain) -> Size:
        parts = items = 0
        for part in node.parts:
            size = self.size(part)
            parts, items = parts + size.parts, items + size.items
            self.spend(parts)
        return Size(parts, items)

    def _group(self, node: Group) -> Size:
        sizes = [self.size(part) for part in node.parts]
        parts = sum(size.parts for size in sizes) + _OBJECT
        self.spend(parts)
        if node.compared:
            return _SMALL
        return Size(parts, len(sizes) if node.listed else max([1, *(size.items for size in sizes)]))

    def _after(self, size: Size, operation: Operation) -> Size:
        if isinstance(operation, Field):
            return self._field(size, operation.key)
        if isinstance(operation, Macro):
            return self._macro(size, operation)
        if isinstance(operation, At):
            self.spend(self.size(operation.key).parts + size.parts)
            return Size(size.parts, size.parts)
        return self._call(size, operation)

    def _field(self, size: Size, key: str | int) -> Size:
        real = size.real
        if isinstance(real, dict) and key in real:
            return self._selected(real[key])
        if isinstance(real, list) and isinstance(key, int) and key < len(real):
            return self._selected(real[key])
        if size.among is not None:
            return self._average([item[key] for item in size.among if isinstance(item, dict) and key in item])
        self.spend(size.parts)
        return Size(size.parts, size.parts)

    def _average(self, among: list[Any]) -> Size:
        whole = sum(map(self.weights.of, among))
        parts = _ceil(whole, max(1, len(among)))
        self.spend(parts)
        return Size(parts, whole, among=among)

    def _call(self, size: Size, call: Call) -> Size:
        if call.name == "matches":
            self.spend(_pattern(call.arguments[0] if call.arguments else None, size.parts))
        parts = size.parts + sum(self.size(argument).parts for argument in call.arguments)
        self.spend(parts)
        return _SMALL if call.name in grammar.SMALL else Size(parts, parts)

    def _macro(self, size: Size, macro: Macro) -> Size:
        """The body is counted once for an average item: what it takes grows with an item no faster than the item."""
        count = max(1, size.items)
        outer = self.scope, self.times
        among = size.real if isinstance(size.real, list) else None
        inside = size.parts - (_LIST if among else 0)
        self.scope = {**self.scope, macro.variable: Size(_ceil(inside, count), size.parts, among=among)}
        self.times *= count
        bodies = [self.size(body) for body in macro.bodies]
        self.spend(ONCE // 10)
        self.scope, self.times = outer
        if macro.name not in ("map", "filter"):
            return _SMALL
        kept = macro.name == "filter"
        parts = size.parts if kept else bodies[-1].parts * count + _LIST
        self.spend(count * parts // 2)
        return Size(parts, count, among if kept else None)


def _pattern(pattern: Node | None, parts: int) -> int:
    """To compile a regular expression, which is done again for every item, and to look for it."""
    if not isinstance(pattern, Literal) or pattern.text is None:
        return PATTERN + parts * 1000
    text = pattern.text
    classes = [copies for kind, copies in _CLASSES for _ in kind.finditer(text)]
    repeats = [max(int(number or 1) for number in found.groups()) for found in _REPEATED.finditer(text)]
    once, states = len(text) * _STATE + sum(classes), max(1, len(text))
    if "){" in text or "}{" in text:  # repeats inside repeats multiply, others add up
        times = math.prod(repeats)
        return times * (once + states * 2 * parts)
    return once + sum(repeats) * max([_STATE, *classes]) + (states + sum(repeats)) * 2 * parts


def bound(tree: grammar.Node, values: Mapping[str, Any]) -> int:
    """Copies that evaluating a tree over these values takes, at most; `TooMuchError` above `MOST`."""
    weights = Weights(nodes=len(values))
    for value in values.values():
        weights.add(value)
    counted = Bound(values, weights)
    counted.spend(weights.handed)
    size = counted.size(tree)
    counted.spend(size.parts * RETURNED)
    return counted.copies
