"""Work that goes to its end whoever stops waiting for it: giving back, letting go, telling the last word."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(call: Coroutine[Any, Any, T]) -> T:
    """To its end, even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    work = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not work.cancelled() and work.exception() is None:
        raise cancelled
    return work.result()
