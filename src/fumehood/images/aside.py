"""Work that would hold up everybody on the loop, done beside it: what strangers wrote is read and judged on threads.

There are few threads, and a fixed number: whoever cancels his question frees no place before its thread is done with
it, so that no crowd of askers makes more work at once than these can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 4

Given = ParamSpec("Given")
Value = TypeVar("Value")


class Aside:
    """One for each process. Threads begin with the first work, and end with their owner."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="signatures")

    async def run(self, work: Callable[Given, Value], *args: Given.args, **kwargs: Given.kwargs) -> Value:
        """What the work gives, or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))
