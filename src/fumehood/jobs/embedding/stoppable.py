"""Long work in a thread that ends soon after nobody wants it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

Found = TypeVar("Found")


async def in_thread(work: Callable[[Callable[[], None]], Found]) -> Found:
    """`work` is given a function to call between its parts; it raises once whoever waits here was cancelled."""
    unwanted = threading.Event()

    def between() -> None:
        if unwanted.is_set():
            raise CancelledError

    try:
        return await asyncio.to_thread(work, between)
    finally:
        unwanted.set()
