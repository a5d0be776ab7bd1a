"""Questions about code that every check asks: who is called with what, is this text fixed or made of data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from fumehood.jobs.analysis.shapes import SHAPES, Shape
from fumehood.jobs.analysis.syntax import Syntax, line_of, walk

MAX_WALK = 2000
"""Nodes of one expression that are looked at: what is larger is data, not code that somebody wrote by hand."""


@dataclass(frozen=True, slots=True)
class Call:
    node: Node
    callee: str
    """As written, without spaces: `os.system`, `Cipher.getInstance`, `$db->query`."""
    arguments: tuple[Node, ...]
    text: str
    """Of all arguments."""

    @property
    def line(self) -> int:
        return line_of(self.node)


class Code:
    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.shape: Shape = SHAPES[syntax.language.name]
        self.calls = tuple(self._calls())
        self._formatting = re.compile(self.shape.formatting) if self.shape.formatting else None

    def text(self, node: Node) -> str:
        return self.syntax.text(node)

    def walk(self, node: Node) -> Iterator[Node]:
        for count, found in enumerate(walk(node)):
            if count == MAX_WALK:
                return
            yield found

    def field(self, node: Node, name: str) -> Node | None:
        """By its name; the empty name is the last child."""
        if name:
            return node.child_by_field_name(name)
        return node.named_children[-1] if node.named_child_count else None

    def assigned(self) -> Iterator[tuple[Node, str, Node]]:
        """Where something is given a value: the place, what is set, and the value."""
        for node in self.syntax.of(*self.shape.assigns):
            left, right = self.shape.assigns[node.type]
            target = self.field(node, left) if left else next(iter(node.named_children), None)
            value = self.field(node, right)
            if target is not None and value is not None and target != value:
                yield node, self.text(target)[:400], value

    # --- strings -------------------------------------------------------------------------------------------------

    def is_plain(self, node: Node) -> bool:
        """A literal, with nothing put into it."""
        node = _inner(node)
        return node.type in self.shape.strings and not any(one.type in self.shape.holes for one in self.walk(node))

    def literal(self, node: Node) -> str | None:
        node = _inner(node)
        if not self.is_plain(node):
            return None
        return re.sub(r"^[A-Za-z@$]*[\"'`#]+|[\"'`#]+$", "", self.text(node))

    def is_built(self, node: Node) -> bool:
        """A string that is put together of a literal and something else."""
        for one in self.walk(_inner(node)):
            if one.type in self.shape.strings and any(part.type in self.shape.holes for part in self.walk(one)):
                return True
            if self._joins_data(one) or self._formats_data(one):
                return True
        return False

    def _joins_data(self, node: Node) -> bool:
        if node.type not in self.shape.joins:
            return False
        sign = node.child_by_field_name("operator")
        if (self.text(sign) if sign is not None else "") not in self.shape.join_signs:
            return False
        sides = [side for side in (self.field(node, "left"), self.field(node, "right")) if side is not None]
        return any(self._has_string(side) for side in sides) and not all(self.is_fixed(side) for side in sides)

    def _formats_data(self, node: Node) -> bool:
        if self._formatting is None or node.type not in self.shape.calls:
            return False
        found = self._call(node)
        if not self._formatting.search(found.callee):
            return False
        return "{" in found.text or "%" in found.text or len(found.arguments) > 1 or "{" in self.text(node)

    def _has_string(self, node: Node) -> bool:
        return any(one.type in self.shape.strings for one in self.walk(node))

    def is_fixed(self, node: Node) -> bool:
        """Literals and constants in capitals only: no data of others."""
        for one in self.walk(_inner(node)):
            if one.type in self.shape.holes or one.type in self.shape.calls:
                return False
            if one.type in self.shape.names and not re.fullmatch(r"\$?_*[A-Z][A-Z0-9_]*", self.text(one)):
                return False
        return True

    # --- calls ---------------------------------------------------------------------------------------------------

    def _calls(self) -> Iterator[Call]:
        for node in self.syntax.of(*self.shape.calls):
            yield self._call(node)

    def _call(self, node: Node) -> Call:
        fields, arguments = self.shape.calls[node.type]
        parts = [self.text(part) for name in fields if (part := node.child_by_field_name(name)) is not None]
        if not parts and node.named_child_count:
            parts = [self.text(node.named_children[0])]
        callee = re.sub(r"\s+", "", ".".join(parts))[-200:]
        held = self._held(node, arguments)
        return Call(node, callee, held, " ".join(self.text(one)[:2000] for one in held[:20]))

    def _held(self, node: Node, name: str) -> tuple[Node, ...]:
        if node.type == "command":
            return tuple(node.children_by_field_name(name))
        found = node.child_by_field_name(name) or next((one for one in node.children if one.type == name), None)
        if found is None or not found.named_child_count:
            return (found,) if found is not None and found.type == "template_string" else ()
        return tuple(_inner(one) for one in found.named_children if one.type != "comment")


def _inner(node: Node) -> Node:
    """Without what only wraps it."""
    while node.type in {"argument", "parenthesized_expression", "expression_list", "await_expression"}:
        if node.named_child_count != 1:
            return node
        node = node.named_children[0]
    return node
