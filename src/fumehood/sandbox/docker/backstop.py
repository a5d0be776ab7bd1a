"""The backstop behind a command's deadline: a warden that does not answer any more loses its sandbox, and so does one
that answers and never tells the end.

The warden keeps the deadline; its timers and its answers are one loop, so a warden that answers will have
kept the deadline, however late we hear of the end; but not for ever. Our own clock proves nothing: this process may
have stood still for longer than the command had, and the command's end may lie in a socket that we have not read yet.
So the warden is asked, and only seconds in which we were awake count.

A command that waits has no deadline, and so no backstop, until it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator

from fumehood.sandbox.warden.client import WardenClient

BACKSTOP_SECONDS = 2.0
"""How long after a command's deadline the warden is first asked, and how long after each answer again."""

SILENT_SECONDS = 10
"""How long a warden may take to answer. A reader who does not read may be what it waits for."""

ENOUGH_ANSWERS = 30
"""After so many without the command's end it will not come: a minute in which we were awake, as there are
`BACKSTOP_SECONDS` before each. By then no reader is waited for."""


class Clock:
    """A command's time as this process knows it: since when it counts, and how much there is of it."""

    def __init__(self, seconds: float | None = None) -> None:
        """0: no deadline. `None`: it waits, and `begin` will tell."""
        self.since = dt.datetime.now(dt.UTC)
        self._seconds = seconds
        self._begun = asyncio.Event()

    @property
    def unbounded(self) -> bool:
        return self._seconds == 0

    def begin(self, seconds: float) -> None:
        """Only the first one counts."""
        if self._seconds is None:
            self._seconds, self.since = seconds, dt.datetime.now(dt.UTC)
            self._begun.set()

    async def seconds(self) -> float:
        """Known once it has begun."""
        while self._seconds is None:
            await self._begun.wait()
        return self._seconds


@contextlib.asynccontextmanager
async def backstop(client: WardenClient, clock: Clock) -> AsyncIterator[asyncio.Timeout]:
    """Ends what is done within when the deadline is over and the warden is silent, or tells no end; `expired`
    tells whether it did."""
    async with asyncio.timeout(None) as watch:
        if clock.unbounded:
            yield watch
            return
        task = asyncio.create_task(_watch(client, clock, watch), name="docker-backstop")
        try:
            yield watch
        finally:
            task.cancel()


async def _watch(client: WardenClient, clock: Clock, watch: asyncio.Timeout) -> None:
    seconds = await clock.seconds()
    if not seconds:
        return
    await asyncio.sleep(seconds)
    with contextlib.suppress(Exception):  # a broken attachment: whoever waits for the command sees it, too
        for _ in range(ENOUGH_ANSWERS):
            await asyncio.sleep(BACKSTOP_SECONDS)
            if not await _answers(client):
                break
        watch.reschedule(asyncio.get_running_loop().time())


async def _answers(client: WardenClient) -> bool:
    """Each second is waited for by itself: one in which this process stood still is one second, not a hundred, and what
    came in meanwhile is read in the next. `test_an_owner_that_stood_still_hears_how_its_command_ended`"""
    asked = asyncio.create_task(client.round_trip(), name="docker-backstop-ping")
    try:
        for _ in range(SILENT_SECONDS):
            await asyncio.wait({asked}, timeout=1.0)
            if asked.done():
                asked.result()
                return True
        return False
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
