"""How long to wait before something is tried again."""

from __future__ import annotations

RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 2.0
"""Shorter than a sandbox lives without its owner: each try attaches again, and so keeps it alive."""


def pause_seconds(attempt: int, first: float = RETRY_SECONDS, longest: float = LONGEST_RETRY_SECONDS) -> float:
    """Before the next try. A disk may stay full for days: the exponent is bounded, or the power would overflow."""
    return min(first * 2.0 ** min(attempt, 16), longest)
