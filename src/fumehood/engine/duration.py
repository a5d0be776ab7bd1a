"""Durations as people write them: `500ms`, `2s`, `5m`, `1h30m`, `7d`. Milliseconds inside."""

from __future__ import annotations

import re

_PARTS = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_MS = 366 * 86_400_000
"""A year. Beyond it a number is nearly always a mistake of units."""


def parse(text: str) -> int:
    """Milliseconds; `ValueError` says what is wrong."""
    total, at = 0, 0
    for part in _PARTS.finditer(text):
        if part.start() != at:
            break
        total += int(part[1]) * _MS[part[2]]
        at = part.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a duration: write it like 500ms, 2s, 5m or 1h30m")
    if not 0 < total <= LONGEST_MS:
        raise ValueError(f"{text!r} is not between 1ms and 366d")
    return total
