"""A parsed chunk: its nodes by type, in the order of the text. Walks are loops, never recursion: the nesting of what
others write has no bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tree_sitter import Node, Parser, Query
from tree_sitter import Tree as Parsed

from fumehood.jobs.analysis.languages import Language


@dataclass(frozen=True, slots=True)
class Syntax:
    language: Language
    tree: Parsed
    source: bytes
    nodes: dict[str, list[Node]] = field(repr=False)

    @property
    def root(self) -> Node:
        return self.tree.root_node

    def of(self, *types: str) -> list[Node]:
        if len(types) == 1:
            return self.nodes.get(types[0], [])
        found = [node for kind in types for node in self.nodes.get(kind, [])]
        return sorted(found, key=lambda node: (node.start_byte, -node.end_byte))

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def error_share(self) -> float:
        """Of the code, by bytes of what the grammar could not read; what is missing counts as one byte."""
        broken, end = 0, 0
        for node in self.of("ERROR", "MISSING"):
            begin = max(node.start_byte, end)
            broken += max(0, node.end_byte - begin) or 1
            end = max(end, node.end_byte)
        return min(1.0, broken / max(1, len(self.source.strip())))


def parse(language: Language, content: str) -> Syntax:
    source = content.encode(errors="replace")
    tree = Parser(language.grammar()).parse(source)
    nodes: dict[str, list[Node]] = {}
    for node in walk(tree.root_node):
        nodes.setdefault("MISSING" if node.is_missing else node.type, []).append(node)
    return Syntax(language, tree, source, nodes)


def walk(root: Node) -> Iterator[Node]:
    """All nodes below and including `root`, parents first."""
    cursor = root.walk()
    while True:
        node = cursor.node
        if node is not None:
            yield node
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def line_of(node: Node) -> int:
    row: int = node.start_point[0]  # not `.row`: reading it in tree-sitter 0.26.0 drops a reference that is not its own
    return row + 1


@lru_cache(maxsize=64)
def compiled(language: Language, text: str) -> Query:
    """The larger ones take a third of a second."""
    return Query(language.grammar(), text)


def inside(node: Node, types: frozenset[str]) -> Node | None:
    """The nearest node above of one of these types."""
    above = node.parent
    while above is not None and above.type not in types:
        above = above.parent
    return above
