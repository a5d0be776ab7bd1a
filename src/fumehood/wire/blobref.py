"""Values that are too large to travel: a reference in their place.

`{"$blob": "sha256:…", "size": n}`, exactly these two keys, stands for the JSON document with that hash. It may stand
anywhere inside a value. Users never write it themselves: where it could come from outside it is refused
(`mentions_blob`), so that nobody can have content resolved that only its hash was known of.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

KEY = "$blob"
INLINE_BYTES = 128 * 1024
"""Larger JSON goes by reference: the broker's messages stay small and a run's state fits into memory."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def reference(ref: str, size: int) -> dict[str, Any]:
    return {KEY: ref, "size": size}


def ref_of(value: Any) -> str | None:
    """The hash that a reference names; `None` for every other value."""
    if not isinstance(value, dict) or value.keys() != {KEY, "size"}:
        return None
    ref, size = value[KEY], value["size"]
    known = isinstance(ref, str) and _HASH.fullmatch(ref) and isinstance(size, int) and not isinstance(size, bool)
    return ref if known else None


def mentions_blob(value: Any) -> bool:
    """Whether the key stands anywhere in a value, as a reference or as anything like one."""
    return any(isinstance(part, dict) and KEY in part for part in _parts(value))


def is_made_up(value: Any, source: Any) -> bool:
    """Whether there is a reference in a value that was not in what the value was made from."""
    found = [part for part in _parts(value) if isinstance(part, dict) and KEY in part]
    return bool(found) and not {ref_of(part) for part in found} <= set(refs(source))


def refs(value: Any) -> list[str]:
    """All references inside a value, each once, in order."""
    found = [ref for part in _parts(value) if (ref := ref_of(part)) is not None]
    return list(dict.fromkeys(found))


def counted(value: Any) -> dict[str, int]:
    """All references inside a value, and how often each stands there."""
    return dict(Counter(ref for part in _parts(value) if (ref := ref_of(part)) is not None))


def replaced(value: Any, contents: dict[str, Any]) -> Any:
    """The value with the references that `contents` knows replaced by what they stand for."""
    ref = ref_of(value)
    if ref is not None:
        return contents.get(ref, value)
    if isinstance(value, dict):
        return {name: replaced(item, contents) for name, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, contents) for item in value]
    return value


def encode(value: Any) -> bytes:
    """JSON as it is measured and stored: the same value always gives the same bytes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, sort_keys=True).encode()


def _parts(value: Any) -> Iterator[Any]:
    """Every part of a value, without recursion: depth is the caller's, who may be a stranger."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
