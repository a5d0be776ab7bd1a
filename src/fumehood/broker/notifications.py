"""Notifications that a stream has stored something, for readers that would otherwise have to poll.

The broker sends them (`republish` in `topology.py`), without the content: that is read from the stream. So one that is
lost, or comes before every replica has the message, costs its reader time, and never a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.subscription import Subscription

from fumehood.broker.connection import Connection

SECOND_LOOK_SECONDS = 1.0
"""After which a new follower is notified once more: servers take a moment to tell each other that somebody listens."""


@dataclass(eq=False, slots=True)
class _Watch:
    """One subscription for all that follow a subject."""

    followers: list[Callable[[], None]] = field(default_factory=list)
    subscription: Subscription | None = None
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)
    forget: Callable[[], None] = field(default=lambda: None)

    def notify(self, _message: object = None) -> None:
        for notify in tuple(self.followers):
            notify()


class Notifications:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.watches: dict[str, _Watch] = {}

    @asynccontextmanager
    async def follow(self, subject: str, notify: Callable[[], None]) -> AsyncIterator[None]:
        """While it is open, `notify` is called for each message, after each reconnection, and once soon after the
        start."""
        watch = self.watches.setdefault(subject, _Watch())
        watch.followers.append(notify)
        again = asyncio.get_running_loop().call_later(SECOND_LOOK_SECONDS, notify)
        try:
            async with watch.ready:
                if watch.subscription is None:
                    watch.subscription = await self._connection.subscribe(subject, watch.notify)
                    watch.forget = self._connection.on_reconnect(watch.notify)
            yield
        finally:
            again.cancel()
            watch.followers.remove(notify)
            await self._leave(subject, watch)

    async def _leave(self, subject: str, watch: _Watch) -> None:
        if watch.followers or self.watches.get(subject) is not watch:
            return
        del self.watches[subject]
        watch.forget()
        if watch.subscription is not None:
            await self._connection.unsubscribe(watch.subscription, drain=False)
