"""New records of all runs as they come: one loop for each partition that somebody follows, and none for the others.

The loop says who has something to read, and keeps the last few records so that those who are up to date need not ask
the broker for what it has just been asked for. It keeps nothing for anybody: whoever is slower than these few records
reads the journal from where he stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field

import structlog

from fumehood.broker.ports import Blobs, Entry, Journal
from fumehood.control import records
from fumehood.engine.events import Event, Record, UnknownFormatError
from fumehood.errors import BlobCorruptError, BlobNotFoundError, FumehoodError
from fumehood.wire.event_api import event_data
from fumehood.wire.times import rfc3339

QUICK_TURNS = 16
TURNS_PER_SECOND = 20
"""For each reader, after the quick ones: an eye does not see the difference, and it is little for a broker."""
AGAIN_SECONDS = 0.01
"""Before the first read after a notification that brought nothing."""
SLOWEST_SECONDS = 0.5
"""Between two reads where no notification comes: one may have been lost."""
PAUSE_SECONDS = 1.0
"""After the broker failed."""
PAGE_RECORDS = 64
"""Of one question: so many are in the hands of each reader at most, eight megabytes in all."""
RING_RECORDS = 256
RING_BYTES = 1024 * 1024
"""Of the last records, for each partition."""
KEPT_GROWTH = 4
"""Times a record's own size that its events may have, as they are sent, to be kept with it. Those of a record that
lies elsewhere as a whole have more."""


@dataclass(frozen=True, slots=True)
class Told:
    """One event as it is sent."""

    type: str
    data: bytes


def told(run_id: str, seq: int, record: Record) -> list[Told]:
    """The events of a record as the journal holds them."""
    at = rfc3339(record.at)
    events = json.loads(record.encode())["events"]
    return [Told(fields["type"], event_data(seq, at, run_id, fields)) for fields in events]


@dataclass(eq=False, slots=True)
class Line:
    """A record of some run. It is read once for all who follow."""

    run_id: str
    entry: Entry
    _shown: list[Told] | None = None

    @property
    def seq(self) -> int:
        return self.entry.seq

    @property
    def events(self) -> tuple[Event, ...]:
        """Those that can be had without fetching anything."""
        if records.is_stub(self.entry) or not records.is_genuine(self.run_id, self.entry):
            return ()
        try:
            return Record.decode(self.entry.data).events
        except UnknownFormatError:
            return ()

    async def shown(self, blobs: Blobs) -> list[Told]:
        """Its events as they are sent. None where it cannot be read, or is not this run's own: nobody could go on
        behind a record that ends every stream it comes to."""
        if self._shown is not None:
            return self._shown
        if not records.is_genuine(self.run_id, self.entry):
            return []
        try:
            record = await records.decode(self.entry, blobs)
        except (BlobNotFoundError, BlobCorruptError, UnknownFormatError) as error:
            structlog.get_logger(run_id=self.run_id).warning("events.unreadable", seq=self.seq, exc_info=error)
            return []
        shown = told(self.run_id, self.seq, record)
        if sum(len(one.data) for one in shown) <= KEPT_GROWTH * len(self.entry.data):
            self._shown = shown
        return shown


@dataclass(eq=False, slots=True)
class Follower:
    """Somebody who waits for records of one run, or of all."""

    run_id: str | None = None
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class Pace:
    """The first turns come at once, so that a single record is told without delay. Under load, turns are spaced out,
    and each reads all that came since the last."""

    def __init__(self) -> None:
        self._credit = float(QUICK_TURNS)
        self._at = asyncio.get_running_loop().time()

    async def turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._credit = min(QUICK_TURNS, self._credit + (now - self._at) * TURNS_PER_SECOND) - 1
        self._at = now
        if self._credit < 0:
            await asyncio.sleep(-self._credit / TURNS_PER_SECOND)


class Pulse:
    """One partition."""

    def __init__(self, journal: Journal, partition: int) -> None:
        self._journal = journal
        self._partition = partition
        self._followers: set[Follower] = set()
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._ring: deque[Line] = deque()
        self._ring_bytes = 0
        self._notified = asyncio.Event()
        self._since = 0
        """What is stored behind this is in the ring, up to `seen`."""
        self.seen = 0

    @property
    def is_beating(self) -> bool:
        return self._following is not None

    async def join(self, follower: Follower) -> None:
        """From now on, the follower is told. What was stored before is his own to read."""
        async with self._starting:
            if self._following is None:
                self.seen = self._since = await self._journal.tip(self._partition)
                self._following = asyncio.create_task(self._follow())
            self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        if not self._followers and self._following is not None:
            self._following.cancel()
            self._following = None
            self._ring.clear()
            self._ring_bytes = 0

    async def read(self, after: int) -> list[Line]:
        """The next records behind a number."""
        if after >= self._since and self.is_beating:
            return [line for line in self._ring if line.seq > after][:PAGE_RECORDS]
        return await self._tail(after)

    async def _tail(self, after: int) -> list[Line]:
        found = await self._journal.tail(self._partition, after=after, limit=PAGE_RECORDS)
        return [Line(run_id, entry) for run_id, entry in found]

    async def _follow(self) -> None:
        """For as long as there are followers, whatever the broker does meanwhile."""
        log = structlog.get_logger(partition=self._partition)
        while self._following is asyncio.current_task():  # an error in the clean-up hides that it was cancelled
            try:
                async with self._journal.follow(self._partition, self._notified.set):
                    await self._read_news()
            except FumehoodError as error:
                log.warning("events.interrupted", code=error.code, detail=error.detail)
            except Exception:
                log.exception("events.failed")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_news(self) -> None:
        """On each notification, and now and then without one. A record can often be read only a moment after its
        notification, so the reads that follow one come soon, and then less and less often."""
        pace, pause = Pace(), AGAIN_SECONDS
        while True:
            notified = self._notified.is_set()
            self._notified.clear()
            news = await self._tail(self.seen)
            self._take(news)
            pause = AGAIN_SECONDS if news or notified else min(SLOWEST_SECONDS, 2 * pause)
            if len(news) == PAGE_RECORDS:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._notified.wait()
            await pace.turn()

    def _take(self, news: list[Line]) -> None:
        for line in news:
            self._ring.append(line)
            self._ring_bytes += len(line.entry.data)
            self.seen = line.seq
        while len(self._ring) > RING_RECORDS or self._ring_bytes > RING_BYTES:
            gone = self._ring.popleft()
            self._ring_bytes -= len(gone.entry.data)
            self._since = gone.seq
        runs = {line.run_id for line in news}
        for follower in self._followers:
            if runs and (follower.run_id is None or follower.run_id in runs):
                follower.bell.set()
