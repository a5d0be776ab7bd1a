"""The request's own time: from when its sandbox is there, for unpacking and all commands together."""

from __future__ import annotations

import asyncio


class TimeIsUpError(Exception):
    """The request's own time is over. The sentence says when that was."""

    def __init__(self, sentence: str = "the time was over before all commands had begun") -> None:
        super().__init__(sentence)


class TimeLeft:
    def __init__(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    @property
    def seconds(self) -> float:
        """More than nothing; `TimeIsUpError` once it is over."""
        left = self._until - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimeIsUpError
        return left

    @property
    def ms(self) -> int:
        """As a command's deadline, for which 0 would be none."""
        return max(1, int(self.seconds * 1000))
