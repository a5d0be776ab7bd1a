"""What is asked of each side: many runs at once, one after the other, and the processor time of its processes."""

from __future__ import annotations

from typing import Protocol


class Side(Protocol):
    """Set up, and waiting for work. Every run's answer is compared; a wrong one is a `BenchError`."""

    @property
    def name(self) -> str:
        """Of `rows.ROWS`."""

    async def many(self, runs: int, at_once: int) -> float:
        """Seconds for so many of them."""

    async def alone(self, runs: int) -> list[float]:
        """Seconds of each, one after the other."""

    def cpu_seconds(self) -> dict[str, float]:
        """Since they began, by process."""
