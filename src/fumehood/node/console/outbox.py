"""Results on their way to one stream. Whoever writes takes them one by one, so that what waits is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from fumehood.wire.console.console_pb2 import Result

MOST_WAITING: Final = 1024
"""Beyond it nothing more is read of the stream until some of it was written."""
Fetch: TypeAlias = Callable[[str], Awaitable[Result | None]]


@dataclass(frozen=True, slots=True)
class _Item:
    what: str | Result
    """A command whose result is kept elsewhere, or the only copy of a result."""
    taken: Callable[[], None] | None


class Outbox:
    """Of one stream. Once it is closed it takes nothing and gives nothing."""

    def __init__(self, fetch: Fetch) -> None:
        """`fetch` gives the kept result of a command; None when nobody wants it any more."""
        self._fetch = fetch
        self._items: deque[_Item] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.closed = False

    def tell(self, what: str | Result, taken: Callable[[], None] | None = None) -> None:
        """`taken` is called just before it is written, or when it never will be."""
        item = _Item(what, taken)
        if self.closed:
            _done(item)
            return
        self._items.append(item)
        self._news.set()
        if len(self._items) >= MOST_WAITING:
            self._room.clear()

    async def next(self) -> Result:
        """The next one to be written; waits for it, for ever once this is closed."""
        while True:
            while not self._items:
                self._news.clear()
                await self._news.wait()
            item = self._items.popleft()
            if len(self._items) < MOST_WAITING:
                self._room.set()
            _done(item)
            result = item.what if isinstance(item.what, Result) else await self._fetch(item.what)
            if result is not None and not self.closed:
                return result

    async def room(self) -> None:
        await self._room.wait()

    def close(self) -> None:
        self.closed = True
        self._room.set()
        with contextlib.suppress(IndexError):
            while True:
                _done(self._items.popleft())


def _done(item: _Item) -> None:
    if item.taken is not None:
        item.taken()
