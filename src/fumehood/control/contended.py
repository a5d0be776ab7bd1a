"""Keys that several servers change at once, each change decided on what is there and written by compare-and-set.

Within one process the changes of a key go one after the other, so that only processes contend; of those that do, each
refusal is somebody else's success, and a pause of random length lets the next ones miss each other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from fumehood.broker.ports import KeyValue, KvEntry
from fumehood.errors import BrokerUnavailableError, KeyConflictError

T = TypeVar("T")

Decide = Callable[[bytes | None], tuple[bytes | None, T]]
"""From what is stored, None where nothing is, to what should be, and an answer. May be asked several times."""

TRIES = 40
"""Refusals in a row that one change bears: with the pauses below that is about five seconds, less than a decider may
hold a message."""
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25


class Contended:
    """The keys of one bucket."""

    def __init__(
        self,
        bucket: KeyValue,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._bucket = bucket
        self._sleep = sleep
        self._draw = draw
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.refusals = 0
        """How often another process was quicker."""

    async def change(self, key: str, decide: Decide[T]) -> T:
        """Decide and store; nothing is written where nothing changes. After `BrokerUnavailableError` the change may
        have been stored, as ever: `decide` must answer well when it meets its own work."""
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            pause = FIRST_PAUSE
            for _ in range(TRIES):
                entry = await self._bucket.get(key)
                before = entry.value if entry is not None else None
                after, answer = decide(before)
                if after == before or await self._stored(key, entry, after):
                    return answer
                self.refusals += 1
                await self._sleep(pause * self._draw())
                pause = min(LONGEST_PAUSE, pause * 2)
        raise BrokerUnavailableError("too many others change the same at once")

    async def _stored(self, key: str, entry: KvEntry | None, after: bytes | None) -> bool:
        revision = entry.revision if entry is not None else None
        try:
            if after is None:
                await self._bucket.delete(key, revision=revision)
            elif revision is None:
                await self._bucket.create(key, after)
            else:
                await self._bucket.update(key, after, revision=revision)
        except KeyConflictError:
            return False
        return True
