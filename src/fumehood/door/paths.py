"""Paths by their templates: so a path is called in metrics and spans, where a raw one would be a series for each id."""

from __future__ import annotations

import re
from collections.abc import Iterable

OTHER = "other"
_PARAMETER = re.compile(r"\{[a-z_]+\}")


class Templates:
    """The paths of a door, `/v1/runs/{run_id}` and the like."""

    def __init__(self, templates: Iterable[str]) -> None:
        known = sorted(set(templates), key=_literal, reverse=True)  # `{id}:cancel` before `{id}`, which fits it too
        self._plain = frozenset(text for text in known if "{" not in text)
        self._patterns = [(_pattern(text), text) for text in known if "{" in text]

    def of(self, path: str) -> str | None:
        """The template that a path fits; None for a path that is no door's."""
        if path in self._plain:
            return path
        return next((text for pattern, text in self._patterns if pattern.fullmatch(path)), None)


def _literal(template: str) -> int:
    return len(_PARAMETER.sub("", template))


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("[^/]+".join(re.escape(part) for part in _PARAMETER.split(template)))
