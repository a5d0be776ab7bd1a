"""Which worker is connected where. Every server knows all of it, from one bucket that it watches.

An entry belongs to one stream, its *epoch*. Whoever connects last has the worker: the newest entry stands, and a server
that holds an older stream of the same worker closes it when it is told. A server that dies takes its entries with it
after `TTL_SECONDS`; mostly the worker is back at another one by then, and has a new entry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

import structlog
from pydantic import ConfigDict, ValidationError

from fumehood.broker.ports import Broker, Bucket, ChangeKind, KeyValue, KvChange, KvEntry
from fumehood.errors import BrokerError, BrokerUnavailableError, ConflictError, KeyConflictError
from fumehood.wire.base import WireModel

TTL_SECONDS = 15
REFRESH_SECONDS = 5.0
ANSWER_SECONDS = 5.0
AT_ONCE = 64
PAUSE_SECONDS = 1.0
TRIES = 8
_PREFIX = "stream"


class Entry(WireModel):
    """A connected worker. A later version may say more of it."""

    model_config = ConfigDict(extra="ignore", strict=False, frozen=True)

    worker_id: str
    epoch: str
    """Of its stream; another one for each connection."""
    server: str
    """Who holds it."""
    capabilities: dict[str, int]
    """By name, how many commands at once."""
    session_calls: int
    holding: list[str]
    """Commands that it brought along from an earlier stream."""
    labels: dict[str, str]
    software: str
    hello_ms: int = 0
    """When its worker said hello, by that one's clock: the later one counts, whichever is written first."""
    draining: bool = False


Ended = Callable[[str], None]
"""Why a stream must go: `worker_replaced`, or `draining` where another server should be asked."""
REPLACED, ELSEWHERE = "worker_replaced", "draining"


@dataclass(slots=True)
class _Own:
    """An entry of a stream that this server holds."""

    entry: Entry
    revision: int
    ended: Ended
    heard: float
    """When the broker last had it from us."""


@dataclass(slots=True)
class Presence:
    """The table. `watch` keeps it true."""

    broker: Broker
    clock: Callable[[], float] = time.monotonic
    _workers: dict[str, Entry] = field(default_factory=dict)
    _left: dict[str, float] = field(default_factory=dict)
    """When a worker was seen to go."""
    _own: dict[str, _Own] = field(default_factory=dict)
    _listeners: list[Callable[[str], None]] = field(default_factory=list)
    _since: float | None = None
    """From when on the table is whole."""
    _refreshing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    @property
    def whole(self) -> bool:
        """Whether it knows of everybody who was there when it began to look."""
        return self._since is not None

    @property
    def workers(self) -> Mapping[str, Entry]:
        return self._workers

    def of(self, worker_id: str) -> Entry | None:
        return self._workers.get(worker_id)

    def away_seconds(self, worker_id: str) -> float:
        """How long a worker has been away for certain, as far as this server could see; 0 while it is there."""
        if worker_id in self._workers or self._since is None:
            return 0.0
        return self.clock() - self._left.get(worker_id, self._since)

    def listen(self, heard: Callable[[str], None]) -> None:
        """`heard` is called with the id of each worker of whom something changed."""
        self._listeners.append(heard)

    # --- streams of this server ----------------------------------------------------------------------------

    async def claim(self, entry: Entry, ended: Ended) -> None:
        """From now on the worker is here. `ended` is called, once, when it is somewhere else instead. Raises
        `ConflictError` where it said a later hello somewhere else."""
        for _ in range(TRIES):
            stored = await self._bucket.get(_key(entry.worker_id))
            found = _read(stored.value) if stored is not None else None
            if found is not None and found.hello_ms > entry.hello_ms:
                raise ConflictError("this worker has connected somewhere else since")
            try:
                revision = await self._write(entry, stored)
            except KeyConflictError:
                continue
            self._claimed(_Own(entry, revision, ended, self.clock()))
            return
        raise BrokerUnavailableError("too many connections of this worker at once")

    async def _write(self, entry: Entry, stored: KvEntry | None) -> int:
        key, value = _key(entry.worker_id), _bytes(entry)
        if stored is None:
            return await self._bucket.create(key, value, ttl=TTL_SECONDS)
        return await self._bucket.update(key, value, revision=stored.revision, ttl=TTL_SECONDS)

    def _claimed(self, own: _Own) -> None:
        other = self._own.get(own.entry.worker_id)
        if other is not None and other.revision > own.revision:  # came in while this one was written
            own.ended(REPLACED)
            return
        self._own[own.entry.worker_id] = own
        if other is not None:
            other.ended(REPLACED)
        self._told(own.entry.worker_id, own.entry)

    async def fresh(self, worker_id: str) -> Entry | None:
        """As the broker's leader knows it: the table may lag behind."""
        stored = await self._bucket.get(_key(worker_id))
        return _read(stored.value) if stored is not None else None

    async def change(self, worker_id: str, epoch: str, **changes: object) -> None:
        """Say something else about a stream of this server."""
        own = self._own.get(worker_id)
        if own is not None and own.entry.epoch == epoch:
            own.entry = own.entry.model_copy(update=changes)
            await self._refresh(worker_id, own)

    async def release(self, worker_id: str, epoch: str) -> None:
        """The stream is gone, whether or not its claim came to an end. Another one of the same worker is none of
        ours."""
        own = self._own.get(worker_id)
        if own is not None and own.entry.epoch == epoch:
            del self._own[worker_id]
        for _ in range(TRIES):
            stored = await self._bucket.get(_key(worker_id))
            found = _read(stored.value) if stored is not None else None
            if stored is None or found is None or found.epoch != epoch:
                return
            try:
                await self._bucket.delete(_key(worker_id), revision=stored.revision)
            except KeyConflictError:
                continue
            self._told(worker_id, None)
            return

    async def keep(self) -> None:
        """Refresh what this server holds, for ever: side by side, so that a broker that does not answer holds up
        none of them for all others' time."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await asyncio.gather(*(self._keep_one(*one) for one in list(self._own.items())))

    async def _keep_one(self, worker_id: str, own: _Own) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._refreshing:
                await self._refresh(worker_id, own)
        except (BrokerError, TimeoutError) as error:
            code = error.code if isinstance(error, BrokerError) else "timeout"
            _log().warning("presence.not_refreshed", worker_id=worker_id, code=code)
            self._give_up_unheard(worker_id, own)

    def _give_up_unheard(self, worker_id: str, own: _Own) -> None:
        """Others take a worker for gone whose entry has run out: then it must not be here, either."""
        if self.clock() - own.heard > TTL_SECONDS:
            self._give_up(worker_id, own, ELSEWHERE)

    async def _refresh(self, worker_id: str, own: _Own) -> None:
        began = self.clock()
        try:
            own.revision = await self._bucket.update(
                _key(worker_id), _bytes(own.entry), revision=own.revision, ttl=TTL_SECONDS
            )
        except KeyConflictError:
            await self._contested(worker_id, own)
        own.heard = began

    async def _contested(self, worker_id: str, own: _Own) -> None:
        """Somebody else's entry, our own from a write that seemed to fail, or none: the broker was away for long."""
        stored = await self._bucket.get(_key(worker_id))
        if self._own.get(worker_id) is not own:
            return
        if stored is None:
            own.revision = await self._bucket.create(_key(worker_id), _bytes(own.entry), ttl=TTL_SECONDS)
            return
        read = _read(stored.value)
        if read is not None and read.epoch == own.entry.epoch:
            own.revision = stored.revision
        else:
            self._give_up(worker_id, own, REPLACED)

    def _give_up(self, worker_id: str, own: _Own, why: str) -> None:
        if self._own.get(worker_id) is own:
            del self._own[worker_id]
            own.ended(why)

    # --- the table -----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Follow the bucket, for ever."""
        while True:
            try:
                await self._follow()
            except BrokerError as error:
                _log().warning("presence.interrupted", code=error.code)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        seen: set[str] = set()
        changes = cast(AsyncGenerator[KvChange, None], self._bucket.watch(_PREFIX))
        async with aclosing(changes):
            async for change in changes:
                if change.kind is ChangeKind.CAUGHT_UP:
                    self._caught_up(seen)
                else:
                    seen.add(self._take(change))

    def _caught_up(self, seen: set[str]) -> None:
        for worker_id in set(self._workers) - seen:
            self._told(worker_id, None)
        if self._since is None:
            self._since = self.clock()

    def _take(self, change: KvChange) -> str:
        worker_id = change.key.partition(".")[2]
        entry = _read(change.value) if change.kind is ChangeKind.PUT else None
        own = self._own.get(worker_id)
        if own is not None and change.revision > own.revision and entry is not None:
            if entry.epoch != own.entry.epoch:
                self._give_up(worker_id, own, REPLACED)
        elif own is not None and change.revision < own.revision:
            return worker_id  # older than what we wrote ourselves
        self._told(worker_id, entry)
        return worker_id

    def _told(self, worker_id: str, entry: Entry | None) -> None:
        if entry is not None:
            self._workers[worker_id] = entry
            self._left.pop(worker_id, None)
        elif self._workers.pop(worker_id, None) is not None:
            self._left[worker_id] = self.clock()
            self._forget_old()
        for heard in self._listeners:
            heard(worker_id)

    def _forget_old(self) -> None:
        """Nobody asks about a worker that left an hour ago."""
        horizon = self.clock() - 3600
        for worker_id in [one for one, at in self._left.items() if at < horizon]:
            del self._left[worker_id]

    @property
    def _bucket(self) -> KeyValue:
        return self.broker.bucket(Bucket.CONSOLE)


def able(workers: Mapping[str, Entry], capability: str) -> Sequence[Entry]:
    """Who could do it, full or not."""
    return [one for one in workers.values() if capability in one.capabilities and not one.draining]


def _key(worker_id: str) -> str:
    return f"{_PREFIX}.{worker_id}"


def _bytes(entry: Entry) -> bytes:
    return entry.model_dump_json().encode()


def _read(data: bytes) -> Entry | None:
    try:
        return Entry.model_validate_json(data)
    except ValidationError:
        return None


def _log() -> structlog.stdlib.BoundLogger:
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger())
