"""Time as a program had it: what the machine took for others is not counted.

Tests run on shared machines, where the host may give the processors to somebody else for seconds (steal), and where
other tests run beside one. A bound on how long something takes is about the code, so that both are taken off: the
kernel counts them. Where nobody disturbs, it is the clock on the wall.
"""

from __future__ import annotations

import time
from pathlib import Path

TICKS_PER_SECOND = 100.0
STAT = Path("/proc/stat")
STOLEN = 7
"""Which of the kinds of time went to somebody else."""


def ticks(stat: Path = STAT) -> list[int]:
    """Of all processors together, the eight kinds of time. Those of guests, behind them, are in the first two."""
    return [int(field) for field in stat.read_text(encoding="ascii").splitlines()[0].split()[1:9]]


class Watch:
    """Started when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stolen, self._waited = _stolen(), _waited()

    @property
    def seconds(self) -> float:
        """Since then, less what was stolen from the processor that lost most, and how long somebody waited for one."""
        wall = time.monotonic() - self._began
        lost = max((now - before for now, before in zip(_stolen(), self._stolen, strict=True)), default=0.0)
        return max(0.0, wall - lost - (_waited() - self._waited))


def _stolen() -> list[float]:
    lines = STAT.read_text(encoding="ascii").splitlines()
    fields = (line.split() for line in lines if line.startswith("cpu") and not line.startswith("cpu "))
    return [int(field[8]) / TICKS_PER_SECOND for field in fields]


def _waited() -> float:
    """Seconds in which somebody who could run had no processor; 0 where the kernel does not count that."""
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0.0
    return int(first.rpartition("total=")[2]) / 1e6
