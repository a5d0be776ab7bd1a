"""Reading what strangers signed, or say they did: JSON and base64, bounded, with one way to say what is wrong. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any, NoReturn

MAX_DEPTH = 32
"""Real documents of this kind have some 8 levels."""
MAX_PARTS = 16_384
"""Objects and lists in one document: more than a list of a thousand referrers has."""


class FlawError(Exception):
    """What is wrong with one signature; the text is for people, and holds nothing of what the stranger wrote."""


def parse_object(body: bytes, what: str) -> dict[str, Any]:
    """A JSON object, not too deep and with every name once; `what` is what it should have been."""
    if body.count(b"[") + body.count(b"{") > MAX_PARTS:  # in strings too, which only is stricter with odd documents
        raise FlawError(f"{what} has too many parts")
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise FlawError(f"{what} is not good JSON") from None
    if not isinstance(document, dict):
        raise FlawError(f"{what} is not a JSON object")
    if _too_deep(document):
        raise FlawError(f"{what} is nested too deep")
    return document


def unbase64(text: object, what: str) -> bytes:
    """Of several spellings of the same bytes only the canonical one counts."""
    if isinstance(text, str) and text:
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            data = b""
        if data and base64.b64encode(data).decode() == text:
            return data
    raise FlawError(f"{what} is missing, or not good base64")


def part(document: dict[str, Any], *names: str) -> Any:
    """What lies under these names, or `None` where one of them leads nowhere."""
    found: Any = document
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list: what else is in it, or is no list, says nothing that anybody could believe."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _too_deep(document: dict[str, Any]) -> bool:
    """Level by level, since there are not many parts; what is far too deep the parser has refused already."""
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
    return bool(level)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers may disagree about which of two equal names counts, and one of them may be the signer."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
