"""Finding a worker that takes a command: who could, who has room, and how long to wait for either.

A command goes out once. It is offered to one worker after the other, and to the next only when the one before has
refused it for certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fumehood.control.console.exchange import Asked, Exchange
from fumehood.control.console.presence import Entry, Presence, able
from fumehood.control.console.record import LOST_SECONDS, Fate, fate
from fumehood.control.console.streams import ENDED
from fumehood.errors import CommandFailedError
from fumehood.wire.console.codes import SESSION_CALL, Reason
from fumehood.wire.console.relay_pb2 import Freed

MOST_WAITERS = 1024
"""Commands that wait for room at one server. Beyond, there is none at once."""
AGAIN_SECONDS = 1.0
"""After which a call that nobody confirmed is said again."""
LOOK_SECONDS = 0.25
"""Between two rounds while all are full, if nobody says that there is room."""
FULL_SECONDS = 1.0
"""That a worker which was full is not asked again, unless it says that there is room."""
OFFER_SECONDS = 5.0
"""For a server that holds a stream to confirm a call, or to refuse it."""

Offers = Iterable[Entry] | AsyncIterable[Entry]
Choose = Callable[[], Awaitable[Offers]]
"""Whom to offer it to, in this order, now. The next one is asked for when the one before has refused."""


@dataclass(slots=True)
class Placing:
    presence: Presence
    exchange: Exchange
    _load: Counter[str] = field(default_factory=Counter)
    """What this server alone has given to each worker: enough to spread it."""
    _full: dict[tuple[str, str], float] = field(default_factory=dict)
    """Who had no room for what, and until when nobody asks again."""
    _waiting: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.exchange.freed.append(self._freed)
        self.presence.listen(lambda _: self._room.set())

    # --- whom to ask ---------------------------------------------------------------------------------------

    def anyone(self, capability: str) -> Choose:
        """All who declare it: first two of them, the one with less of ours first, which spreads them well and costs
        nothing with many workers; then all others."""

        async def choose() -> Offers:
            return self.spread(capability)

        return choose

    def able_workers(self, capability: str) -> Sequence[Entry]:
        if capability.startswith(SESSION_CALL):
            return [one for one in self.presence.workers.values() if one.session_calls and not one.draining]
        return able(self.presence.workers, capability)

    def spread(self, capability: str) -> Iterator[Entry]:
        found = self.able_workers(capability)
        first = random.sample(found, min(2, len(found)))
        yield from sorted(first, key=lambda one: self._load[one.worker_id])
        yield from random.sample(rest := [one for one in found if one not in first], len(rest))

    def only(self, worker_id: str) -> Choose:
        """The one that has what it is about."""

        async def choose() -> Offers:
            found = self.presence.of(worker_id)
            return [found] if found is not None else []

        return choose

    def occupied(self, worker_id: str, more: int) -> None:
        self._load[worker_id] += more
        if not self._load[worker_id]:
            del self._load[worker_id]

    # --- offering ------------------------------------------------------------------------------------------

    async def place(self, asked: Asked, choose: Choose, seconds: float) -> Entry:
        """The worker that took it. Raises `no_worker` or `no_capacity` when nobody did in time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._room.clear()
            any_there = False
            async for entry in _each(await choose()):
                any_there = True
                if self.may_have_room(entry, _kind(asked)) and await self._offer(asked, entry):
                    return entry
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise _nobody(asked.dispatch.capability, any_there=any_there)
            await self._wait(min(left, LOOK_SECONDS))

    def may_have_room(self, entry: Entry, capability: str) -> bool:
        """Whether it did not say just now that it is full."""
        return self._full.get((entry.worker_id, capability), 0.0) <= asyncio.get_running_loop().time()

    def _note_full(self, entry: Entry, asked: Asked) -> None:
        """Whoever is freed says so, mostly; what nobody heard of is asked again after a while."""
        now = asyncio.get_running_loop().time()
        if len(self._full) > MOST_WAITERS:
            self._full = {key: until for key, until in self._full.items() if until > now}
        self._full[entry.worker_id, _kind(asked)] = now + FULL_SECONDS

    async def _wait(self, seconds: float) -> None:
        if self._waiting >= MOST_WAITERS:
            raise CommandFailedError(Reason.NO_CAPACITY, "too many commands wait for a worker: try again later")
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._room.wait()
        finally:
            self._waiting -= 1

    def _freed(self, freed: Freed) -> None:
        self._full.pop((freed.worker_id, freed.capability), None)
        self._room.set()

    async def _offer(self, asked: Asked, entry: Entry) -> bool:
        """Whether this worker has it. It is said until it was heard, or cannot be heard any more; and where nobody
        answers at all, it counts as taken: it may well be."""
        give_up = asyncio.get_running_loop().time() + OFFER_SECONDS
        while asyncio.get_running_loop().time() < give_up:
            await self.exchange.call(entry.server, entry.worker_id, entry.epoch, asked)
            await self._heard(asked)
            if asked.taken or asked.answer.done() or asked.refused == ENDED:
                return True
            if asked.refused == Reason.UNSUPPORTED_CAPABILITY:
                raise CommandFailedError(asked.refused, f"the worker cannot do {asked.dispatch.capability}")
            if asked.refused == Reason.NO_CAPACITY:
                self._note_full(entry, asked)
                return False
            if _is_call(asked) and (asked.refused or self._moved(asked)):  # it may have gone out over the stream
                raise CommandFailedError(Reason.WORKER_LOST, "the worker's connection broke")
            if asked.refused and asked.said[entry.epoch] == 1:
                return False
            if asked.refused or self._moved(asked):  # what was said before may have gone out over the stream
                return await self._settled(asked, entry)
        if _is_call(asked):
            raise CommandFailedError(Reason.WORKER_LOST, "the server that holds the worker's stream does not answer")
        return True

    async def say_again(self, asked: Asked) -> None:
        """Of one that counts as taken and was not confirmed: if it is out, it is not sent again."""
        entry = self.presence.of(asked.worker_id)
        if entry is not None and entry.epoch == asked.epoch:
            await self.exchange.call(entry.server, entry.worker_id, entry.epoch, asked)

    async def _settled(self, asked: Asked, entry: Entry) -> bool:
        """Whether a worker whose stream is gone has it all the same: it says so when it is back."""
        while not asked.answer.done():
            now = self.presence.of(entry.worker_id)
            away = self.presence.away_seconds(entry.worker_id)
            if away >= LOST_SECONDS:
                return True  # it may be running somewhere: what becomes of it is told when that is certain
            if fate(asked.dispatch.command_id, entry.epoch, now, away, overdue=False) is not Fate.WAIT:
                return False
            if now is not None and now.epoch != entry.epoch:
                return True
            asked.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await asked.news.wait()
        return True

    async def _heard(self, asked: Asked) -> None:
        """Wait until it was confirmed or refused, or for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_SECONDS):
                while not (asked.taken or asked.refused or asked.answer.done() or self._moved(asked)):
                    asked.news.clear()
                    await asked.news.wait()

    def _moved(self, asked: Asked) -> bool:
        entry = self.presence.of(asked.worker_id)
        return entry is None or entry.epoch != asked.epoch


def _kind(asked: Asked) -> str:
    """What shares a bound."""
    return SESSION_CALL if _is_call(asked) else asked.dispatch.capability


async def _each(offers: Offers) -> AsyncIterator[Entry]:
    if isinstance(offers, AsyncIterable):
        async for entry in offers:
            yield entry
    else:
        for entry in offers:
            yield entry


def _is_call(asked: Asked) -> bool:
    return asked.dispatch.capability.startswith(SESSION_CALL)


def _nobody(capability: str, *, any_there: bool) -> CommandFailedError:
    if any_there:
        return CommandFailedError(Reason.NO_CAPACITY, f"every worker that does {capability} is busy: try again")
    return CommandFailedError(
        Reason.NO_WORKER, f"no worker that does {capability} is connected: start one (`fumehood worker docker`)"
    )
