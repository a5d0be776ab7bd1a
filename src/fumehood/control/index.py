"""The index: what JetStream cannot do, find runs by what they are. Every server has one, and none is the truth.

It is fed from the runs' lines (`summaries.py`) and may be lost at any time. Nothing is answered from one that does not
know everything yet: whoever asks then waits a little, and is asked to come again. A rebuild makes another one from
nothing while the present one goes on serving, and takes its place when it knows everything.

Lists may lag behind a run by moments. `Index.state` says by how much at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import structlog

from fumehood.broker.ports import Broker
from fumehood.control import index_query, rewriting
from fumehood.control.index_feed import BEAT_SECONDS, Beats, Feed
from fumehood.control.index_files import IndexFolder
from fumehood.control.index_query import AuditFilter, Place, RunFilter
from fumehood.control.index_rows import AuditRow, RunRow
from fumehood.control.index_store import Statistics, Store, TooSlowError
from fumehood.errors import BrokerError, ConflictError, IndexUnavailableError

R = TypeVar("R")

PATIENCE_SECONDS = 5.0
"""For which a question waits for an index that is not there yet: a small one takes less, and callers wait longer."""
RETRY_SECONDS = 2.0
"""Before an index that failed is begun again: a full disk is not emptied by trying."""
_log = structlog.get_logger()


class Source(StrEnum):
    """What an index is made from."""

    SUMMARIES = "summaries"
    """The runs' lines, as they are."""
    JOURNALS = "journals"
    """The runs' lines, after each was written anew from its run's journal."""


class Stage(StrEnum):
    """Where an index stands."""

    BUILDING = "building"
    """It does not know everything yet, and answers nothing."""
    READY = "ready"
    REBUILDING = "rebuilding"
    """Another one is made; this one goes on serving."""


@dataclass(frozen=True, slots=True)
class IndexState:
    stage: Stage
    runs: int
    age_seconds: float | None
    """Everything that was written longer ago than this is in the lists; `None` while there are none."""
    built_at: int | None
    """When the index that serves was complete (ms)."""
    unreadable: int
    """Lines of runs that could not be read, and are in no list."""


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: tuple[RunRow, ...]
    next: str | None
    """The cursor of the next page; `None` where this is the last."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    lines: tuple[AuditRow, ...]
    next: str | None


class Index:
    def __init__(
        self,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        base: Path | None = None,
        patience: float = PATIENCE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._base = base
        self._patience = patience
        self._sleep = sleep
        self._beats = Beats()
        self._feed: Feed | None = None
        self._built_at: int | None = None
        self._serving = asyncio.Event()
        self._wanted = asyncio.Event()
        """Set when the present feed may not be what should serve: it ended, or another one was asked for."""
        self._source: Source | None = None
        self.failed = 0
        """Feeds that ended by themselves."""

    # --- asking --------------------------------------------------------------------------------------------

    async def runs(self, tenant: str, wanted: RunFilter, *, cursor: str | None = None, limit: int = 50) -> RunPage:
        """A tenant's runs, newest first."""
        place = Place.decode(cursor) if cursor is not None else None
        found = await self._ask(lambda store: store.runs(tenant, wanted, place, limit + 1))
        page = found[:limit]
        more = Place(page[-1].started_at, page[-1].run_id).encode() if len(found) > limit else None
        return RunPage(tuple(page), more)

    async def audit(
        self, tenant: str, wanted: AuditFilter | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> AuditPage:
        """What was done in a tenant's name, newest first."""
        before = index_query.decode_number(cursor) if cursor is not None else None
        feed = await self._within_patience(self._serving_audit())
        found = await self._asked(feed, lambda store: store.audit(tenant, wanted or AuditFilter(), before, limit + 1))
        page = found[:limit]
        return AuditPage(tuple(page), index_query.encode_number(page[-1].number) if len(found) > limit else None)

    async def statistics(self, tenant: str, width: int, intervals: int) -> Statistics:
        """A tenant's runs in the last intervals of a width (ms), with the present one."""
        since = (self._now_ms() // width - intervals + 1) * width
        return await self._ask(lambda store: store.statistics(tenant, since, width))

    async def running(self, tenant: str) -> int:
        """How many runs of a tenant are under way, as far as is known: good for a quota, not for a lock."""
        return await self._ask(lambda store: store.running(tenant))

    async def archivable(self, before: int, behind: tuple[int, str], limit: int) -> list[tuple[int, str]]:
        """Runs of all tenants that ended before a moment (ms) and are not archived, oldest first; when each ended."""
        return await self._ask(lambda store: store.archivable(before, behind, limit))

    async def state(self) -> IndexState:
        """Without waiting."""
        feed = self._feed
        if feed is None:
            return IndexState(Stage.BUILDING, 0, None, None, 0)
        runs = await self._asked(feed, lambda store: store.count())
        age = max(0.0, time.monotonic() - feed.known_until)
        stage = Stage.REBUILDING if self._source is not None else Stage.READY
        return IndexState(stage, runs, age, self._built_at, feed.store.unreadable)

    async def _ask(self, question: Callable[[Store], Awaitable[R]]) -> R:
        return await self._asked(await self._within_patience(self._serving_runs()), question)

    async def _within_patience(self, feed: Awaitable[Feed]) -> Feed:
        try:
            async with asyncio.timeout(self._patience):
                return await feed
        except TimeoutError:
            raise IndexUnavailableError("the index is being built; ask again in a moment") from None

    async def _serving_runs(self) -> Feed:
        while self._feed is None:
            await self._serving.wait()
        return self._feed

    async def _serving_audit(self) -> Feed:
        """Runs are listed before this: theirs is the list that people wait for."""
        feed = await self._serving_runs()
        await feed.audit_told.wait()
        return feed

    async def _asked(self, feed: Feed, question: Callable[[Store], Awaitable[R]]) -> R:
        try:
            return await question(feed.store)
        except TooSlowError:
            raise
        except IndexUnavailableError:
            now = self._feed
            if now is None or now is feed:
                feed.give_up()
                raise
        return await question(now.store)  # it was replaced while it was asked

    # --- building ------------------------------------------------------------------------------------------

    def rebuild(self, source: Source = Source.SUMMARIES) -> None:
        """Make another one from nothing. `ConflictError` while that is being done already."""
        if self._source is not None or self._feed is None:
            raise ConflictError("the index is being built already")
        self._source = source
        self._wanted.set()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Keep an index while the block lasts."""
        folder = await asyncio.to_thread(IndexFolder.make, self._base)
        tasks = [asyncio.create_task(self._keep(folder)), asyncio.create_task(self._beat())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._retire()
            await asyncio.to_thread(folder.remove)

    async def _keep(self, folder: IndexFolder) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._renew(folder)
            except Exception:  # noqa: BLE001 - whatever is wrong with an index, another one may be better
                self.failed += 1
                _log.exception("index.failed")
                await self._sleep(RETRY_SECONDS)
            finally:
                self._source = None
            while self._is_fine():
                self._wanted.clear()
                await self._wanted.wait()
            if self._feed is not None and self._feed.task.done():
                await self._lose(self._feed.task)

    def _is_fine(self) -> bool:
        return self._feed is not None and not self._feed.task.done() and self._source is None

    async def _lose(self, ended: asyncio.Task[None]) -> None:
        self.failed += 1
        _log.error("index.lost", exc_info=None if ended.cancelled() else ended.exception())
        await self._retire()
        await self._sleep(RETRY_SECONDS)

    async def _renew(self, folder: IndexFolder) -> None:
        """Another feed in the place of the present one, once it knows what that knows."""
        if self._source is Source.JOURNALS:
            await rewriting.rewrite(self._broker)
        feed = await Feed.begin(self._broker, folder.new_file(), self._beats, now_ms=self._now_ms, sleep=self._sleep)
        try:
            await feed.until(feed.runs_told, *([feed.audit_told] if self._feed is not None else []))
        except BaseException:
            await feed.close()
            raise
        old, self._feed = self._feed, feed
        self._built_at = self._now_ms()
        feed.task.add_done_callback(lambda _: self._wanted.set())
        self._serving.set()
        if old is not None:
            await old.close()

    async def _retire(self) -> None:
        feed, self._feed = self._feed, None
        self._serving.clear()
        if feed is not None:
            await feed.close()

    async def _beat(self) -> None:
        while True:
            try:
                await self._beats.write(self._broker)
            except BrokerError as error:
                _log.debug("index.no_beat", code=error.code)
            await self._sleep(BEAT_SECONDS)
