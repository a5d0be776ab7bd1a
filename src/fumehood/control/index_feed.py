"""What fills a store: a watch of the run's lines, and the tail of the audit log.

The watch tells what exists, then that it has told all, then every change, through reconnects. How far a store may lag
is not guessed but seen: servers write a beat into the watched bucket now and then, and everything that was written
before a beat has been told when the beat comes through.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvChange
from fumehood.broker.topology import AUDIT_AGE
from fumehood.control.index_store import Store, Told
from fumehood.errors import BrokerError

BATCH = 500
"""Changes of one transaction: more would be hardly quicker, and lists of this moment would wait for them."""
AHEAD = 4 * BATCH
"""Changes that wait to be written: beyond them the broker waits."""
AUDIT_SECONDS = 1.0
"""Between two looks at the audit log's end."""
BEAT_SECONDS = 5.0
BEAT_KEY = "index.beat"
"""Not a run's: those have no dots."""
BEATS = 64
"""Beats of ours that are remembered: one that is not there by then was overtaken by those of others."""


class Beats:
    """When this process wrote which beat."""

    def __init__(self) -> None:
        self._written: OrderedDict[bytes, float] = OrderedDict()

    async def write(self, broker: Broker) -> None:
        value = secrets.token_hex(8).encode()
        self._written[value] = time.monotonic()
        if len(self._written) > BEATS:
            self._written.popitem(last=False)
        await broker.bucket(Bucket.SUMMARIES).put(BEAT_KEY, value)

    def when(self, value: bytes) -> float | None:
        """`None` for those of others."""
        return self._written.get(value)


class Feed:
    """A store that is being filled. Use `await Feed.begin(…)`, and `close()` at the end."""

    def __init__(
        self,
        broker: Broker,
        store: Store,
        beats: Beats,
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self.store = store
        self._beats = beats
        self._now_ms = now_ms
        self._sleep = sleep
        self.known_until = time.monotonic()
        """What was written before this moment, on this process's clock, is in the store once it has caught up."""
        self.runs_told = asyncio.Event()
        """Set once all runs are known that there were when this began."""
        self.audit_told = asyncio.Event()
        """The same for lines of the audit log."""
        self.task = asyncio.create_task(self._run())

    @classmethod
    async def begin(
        cls,
        broker: Broker,
        path: Path,
        beats: Beats,
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Feed:
        return cls(broker, await Store.open(path), beats, now_ms=now_ms, sleep=sleep)

    async def until(self, *told: asyncio.Event) -> None:
        """Until these are set; raises what keeps them from that."""
        all_told = asyncio.gather(*(event.wait() for event in told))
        either: set[asyncio.Future[Any]] = {all_told, self.task}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_told.cancel()
        if self.task.done():
            await self.task

    def give_up(self) -> None:
        """The store cannot be trusted any more."""
        self.task.cancel()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.store.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            waiting: asyncio.Queue[KvChange] = asyncio.Queue(AHEAD)
            group.create_task(self._listen(waiting))
            group.create_task(self._write(waiting))
            group.create_task(self._follow_audit())

    # --- runs ----------------------------------------------------------------------------------------------

    async def _listen(self, waiting: asyncio.Queue[KvChange]) -> None:
        watch = self._broker.bucket(Bucket.SUMMARIES).watch()
        async with aclosing(cast("AsyncGenerator[KvChange, None]", watch)) as changes:
            async for change in changes:
                await waiting.put(change)

    async def _write(self, waiting: asyncio.Queue[KvChange]) -> None:
        while True:
            batch = [await waiting.get()]
            while len(batch) < BATCH and not waiting.empty():
                batch.append(waiting.get_nowait())
            await self._take(batch)

    async def _take(self, batch: Sequence[KvChange]) -> None:
        await self.store.apply([_told(change) for change in batch if _is_run(change)])
        for change in batch:
            if change.kind is ChangeKind.CAUGHT_UP:
                self.runs_told.set()
            elif change.key == BEAT_KEY:
                self.known_until = max(self.known_until, self._beats.when(change.value) or 0.0)

    # --- audit ---------------------------------------------------------------------------------------------

    async def _follow_audit(self) -> None:
        after = 0
        while True:
            try:
                lines = await self._broker.audit.tail(after=after, limit=BATCH)
            except BrokerError:
                await self._sleep(AUDIT_SECONDS)
                continue
            if lines:
                await self.store.add_audit(lines, since=self._now_ms() - AUDIT_AGE * 1000)
                after = lines[-1].seq
            else:
                self.audit_told.set()
                await self._sleep(AUDIT_SECONDS)


def _is_run(change: KvChange) -> bool:
    return change.kind is not ChangeKind.CAUGHT_UP and "." not in change.key


def _told(change: KvChange) -> Told:
    return Told(change.key, change.revision, change.value if change.kind is ChangeKind.PUT else None)
