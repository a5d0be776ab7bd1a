"""YAML that people write for us, without its surprises, and with the line of everything in it. Pure.

No aliases (they multiply), no merges, no key that is there twice, no dates out of nowhere. Every problem names the line
that it is on, also those that are found later, in what the document says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import yaml

_MERGE: Final = "tag:yaml.org,2002:merge"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"

MAX_DEPTH: Final = 64

Location = Sequence[int | str]
"""The way from the root to a part: names of keys and numbers of items."""

Problem = tuple[Location, str]
"""Where something is wrong with what a document says, and what."""


class YamlError(ValueError):
    """Not YAML, or more of it than we take."""

    def __init__(self, problem: str, line: int = 1) -> None:
        super().__init__(f"line {line}: {problem}")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # ten times quicker, where it is built
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@final
class YamlDocument:
    """One document: what it says, and where."""

    def __init__(self, text: str) -> None:
        """`YamlError` where it is not one."""
        try:
            _check_events(text)
            loader = _Loader(text)
            self._root = loader.get_single_node()
            _check_keys(self._root)
            self.value: Any = loader.construct_document(self._root) if self._root is not None else None
        except yaml.MarkedYAMLError as error:
            raise YamlError(str(error.problem), error.problem_mark.line + 1 if error.problem_mark else 1) from None
        except (yaml.YAMLError, ValueError) as error:  # such as a number that Python does not bear
            raise error if isinstance(error, YamlError) else YamlError("not YAML") from None

    def problem(self, location: Location, message: str) -> str:
        """`line 7: rules[2].match: …`; the line is that of the innermost part that exists."""
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
        return f"line {self.line(location)}: {path}: {message}" if path else f"line {self.line(location)}: {message}"

    def line(self, location: Location) -> int:
        """From 1. Of a key, where the part stands under one."""
        node, line = self._root, 1
        for part in location:
            found = _child(node, part)
            if found is None:
                break
            line, node = found[0] + 1, found[1]
        return line


def _check_events(text: str) -> None:
    """Before anything is built: an alias can stand for a thousand others, and depth is what recursion dies of."""
    unreadable = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if unreadable is not None:
        raise YamlError("a character that YAML does not allow", text.count("\n", 0, unreadable.start()) + 1)
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlError("aliases are not allowed; a text that begins with a star needs quotes", line)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise YamlError("it is nested too deeply", line)


def _check_keys(node: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                raise YamlError("a key is a text, and nothing is merged", line)
            if key.value in seen:
                raise YamlError(f"the key {key.value[:64]!r} is there twice", line)
            seen.add(key.value)
            _check_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item)


def _child(node: Any, part: int | str) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key.start_mark.line, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line, node.value[part]
    return None
