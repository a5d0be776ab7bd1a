"""The request's own time: from when its sandbox is there, for unpacking and all commands together."""

from __future__ import annotations

import asyncio

from fumehood.node.jobs.sandbox.refused import TimeIsUpError


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
