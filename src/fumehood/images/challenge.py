"""Reading `WWW-Authenticate`: which schemes a registry offers, with which parameters. Pure.

A registry that is not ours writes this header, so it is bounded and read by one linear pattern; what does not fit the
pattern ends the reading, and what was understood until then counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_HEADER = 4096
"""Real challenges have some 200 characters."""

_PIECE = re.compile(
    r"""[\s,]*(?:
        (?P<key>[A-Za-z0-9_-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,"]+))
        | (?P<scheme>[A-Za-z][A-Za-z0-9_-]*)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One offered scheme, in lower case, and its parameters by lower-case name."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """All challenges of all `WWW-Authenticate` headers, in their order."""
    return [challenge for header in headers for challenge in _parse_header(header[:MAX_HEADER])]


def _parse_header(header: str) -> list[Challenge]:
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while piece := _PIECE.match(header, position):
        position = piece.end()
        if piece["scheme"] is not None:
            found.append((piece["scheme"].lower(), {}))
        elif found:
            value = piece["bare"] if piece["quoted"] is None else _ESCAPE.sub(r"\1", piece["quoted"])
            found[-1][1].setdefault(piece["key"].lower(), value)
    return [Challenge(scheme, parameters) for scheme, parameters in found]
