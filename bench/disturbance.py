"""How much of the machine others had while something was measured.

A host may give the processors to somebody else for minutes (steal): then a ratio of two times says who was running when
they were taken away. A bound that was missed in such minutes was not judged, and that is said; it was not held either.
"""

from __future__ import annotations

from pathlib import Path

from tests.noise import STAT, STOLEN, ticks

MOST_STOLEN = 0.2
"""Of the processors' time. Ratios of interleaved pairs bear less than this."""


class Disturbance:
    """Counts from when it is made."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._before = ticks(stat)

    @property
    def share(self) -> float:
        """Of the time of all processors since then: what was stolen."""
        passed = [now - before for now, before in zip(ticks(self._stat), self._before, strict=True)]
        return passed[STOLEN] / max(1, sum(passed))


def verdict(code: int, share: float, *, quick: bool) -> int:
    """What a bench exits with. Only the quick one, which runs beside whatever else there is, may go unjudged."""
    if code != 1 or not quick or share <= MOST_STOLEN:
        return code
    print(f"bench: not judged: {share:.0%} of the processors' time went to others while this was measured")
    return 0
