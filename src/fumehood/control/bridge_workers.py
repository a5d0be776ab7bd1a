"""Which workers are connected over HTTP: one stream for each, over all bridges.

A worker's registration in the directory bears the id of the connection that wrote it, and lives a minute unless it is
written again. Whoever finds another id there has been replaced; whoever finds none there and a drain mark has been sent
home; none without a mark means that it expired while the broker was away, and is written anew. A watch over the
directory only makes streams look sooner than their next heartbeat.

The mark of a drain lies beside the leases, under a name that no lease can have, because keys there may have a time
of their own. It ends when the worker connects again, or after an hour.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, cast

from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvChange, KvEntry
from fumehood.errors import BrokerError, ConflictError, KeyConflictError, NotFoundError, OverloadedError
from fumehood.wire.bridge import ConnectRequest, StreamEvent
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.times import rfc3339

CONNECTION_ID = "connection_id"
"""Where a registration's metadata names the connection that wrote it."""
DRAIN_SECONDS = 3600
"""How long a worker that was sent home and does not connect again gets nothing: longer than any rolling restart."""


class _Standing(Enum):
    HERE = "here"
    REPLACED = "replaced"
    DRAINED = "drain"


@dataclass(eq=False, slots=True)
class Connection:
    """One worker's stream at this bridge."""

    workers: Workers = field(repr=False)
    worker_id: str
    connection_id: str
    value: bytes
    revision: int = 0
    began: float = field(default_factory=time.monotonic)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Something about this worker has changed; or the bridge is closing."""

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """A heartbeat at once and then at every interval; what ends the stream is the last event."""
        yield self._event("heartbeat")
        while True:
            told = await self.workers.wait(self)
            if self.workers.is_over(self):
                return
            standing = await self.workers.refresh(self)
            if standing is not _Standing.HERE:
                yield self._event(cast("Literal['replaced', 'drain']", standing.value))
                return
            if not told:
                yield self._event("heartbeat")

    async def close(self) -> None:
        """The worker is gone: take its registration away, unless it is another connection's by now."""
        await self.workers.leave(self)

    def _event(self, name: Literal["heartbeat", "replaced", "drain"]) -> StreamEvent:
        return StreamEvent(event=name, worker_id=self.worker_id, timestamp=rfc3339(datetime.now(UTC)))


class Workers:
    """The streams of one bridge."""

    def __init__(
        self, broker: Broker, *, heartbeat_seconds: float, stream_seconds: float | None = None, most: int
    ) -> None:
        self._directory = broker.bucket(Bucket.WORKERS)
        self._marks = broker.bucket(Bucket.LEASES)
        self._heartbeat_seconds = heartbeat_seconds
        self._stream_seconds = stream_seconds
        self._most = most
        self._connections: dict[str, set[Connection]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.closing = False
        self.counts: Counter[str] = Counter()
        """`connected`, `replaced`, `drain`."""

    def __len__(self) -> int:
        return sum(map(len, self._connections.values()))

    async def close(self) -> None:
        self.closing = True
        for connections in self._connections.values():
            _wake(connections)
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})

    # --- coming and going ----------------------------------------------------------------------------------

    async def connect(self, request: ConnectRequest) -> Connection:
        if len(self) >= self._most:
            raise OverloadedError("too many workers are connected here", retry_after_seconds=5)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        made = self._connection(request)
        made.revision = await self._directory.put(made.worker_id, made.value)
        await self._marks.delete(_mark(made.worker_id))
        _wake(self._connections.setdefault(made.worker_id, set()))
        self._connections[made.worker_id].add(made)
        self.counts["connected"] += 1
        return made

    def _connection(self, request: ConnectRequest) -> Connection:
        connection_id = secrets.token_hex(16)
        registration = WorkerRegistration(
            worker_id=request.worker_id,
            task_types=request.task_types,
            language=request.language or "",
            transport="bridge",
            max_tasks=request.max_tasks,
            metadata={**request.metadata, CONNECTION_ID: connection_id},
        )
        return Connection(self, request.worker_id, connection_id, registration.model_dump_json().encode())

    async def leave(self, connection: Connection) -> None:
        known = self._connections.get(connection.worker_id, set())
        known.discard(connection)
        if not known:
            self._connections.pop(connection.worker_id, None)
        try:
            entry = await self._directory.get(connection.worker_id)
            if entry is not None and _writer(entry.value) == connection.connection_id:
                await self._directory.delete(connection.worker_id, revision=entry.revision)
        except BrokerError:
            return  # another connection's by now, or it expires

    async def drain(self, worker_id: str) -> None:
        """The mark first: whoever sees the registration gone must find the reason."""
        entry = await self._directory.get(worker_id)
        if entry is None and not await self.is_drained(worker_id):
            raise NotFoundError("no such worker is connected")
        if entry is not None and _writer(entry.value) is None:
            raise ConflictError("this worker came over NATS, where no bridge can send it home: stop it where it runs")
        await self._marks.put(_mark(worker_id), b"{}", ttl=DRAIN_SECONDS)
        await self._directory.delete(worker_id)

    async def is_drained(self, worker_id: str | None) -> bool:
        return worker_id is not None and await self._marks.get(_mark(worker_id)) is not None

    # --- staying -------------------------------------------------------------------------------------------

    def is_over(self, connection: Connection) -> bool:
        return self.closing or self._left(connection) <= 0

    def _left(self, connection: Connection) -> float:
        if self._stream_seconds is None:
            return math.inf
        return connection.began + self._stream_seconds - time.monotonic()

    async def wait(self, connection: Connection) -> bool:
        """Until the next heartbeat is due or the stream is over, or (true) there is news."""
        try:
            async with asyncio.timeout(min(self._heartbeat_seconds, self._left(connection))):
                await connection.news.wait()
        except TimeoutError:
            return False
        connection.news.clear()
        return True

    async def refresh(self, connection: Connection) -> _Standing:
        """Write the registration again, if it is still this connection's. A broker that is away changes nothing."""
        try:
            connection.revision = await self._directory.update(
                connection.worker_id, connection.value, revision=connection.revision
            )
            return _Standing.HERE
        except KeyConflictError:
            standing = await self._look(connection)
        except BrokerError:
            return _Standing.HERE
        if standing is not _Standing.HERE:
            self.counts[standing.value] += 1
        return standing

    async def _look(self, connection: Connection) -> _Standing:
        try:
            entry = await self._directory.get(connection.worker_id)
            if entry is not None:
                return self._compare(connection, entry)
            if await self.is_drained(connection.worker_id):
                return _Standing.DRAINED
            connection.revision = await self._directory.create(connection.worker_id, connection.value)
        except BrokerError:
            pass  # the next heartbeat looks again
        return _Standing.HERE

    def _compare(self, connection: Connection, entry: KvEntry) -> _Standing:
        """An answer that got lost leaves our own registration under a revision that we do not know."""
        if _writer(entry.value) != connection.connection_id:
            return _Standing.REPLACED
        connection.revision = entry.revision
        return _Standing.HERE

    async def _watch(self) -> None:
        async with aclosing(cast("AsyncGenerator[KvChange, None]", self._directory.watch())) as changes:
            async for change in changes:
                self._tell(change)

    def _tell(self, change: KvChange) -> None:
        """Wake whoever this concerns; the echo of one's own heartbeat does not."""
        for connection in self._connections.get(change.key, ()):
            if change.kind is not ChangeKind.PUT or _writer(change.value) != connection.connection_id:
                connection.news.set()


def _wake(connections: set[Connection]) -> None:
    for connection in connections:
        connection.news.set()


def _mark(worker_id: str) -> str:
    """`=` is in no run id, so that this is no lease's key."""
    return f"=drained.{worker_id}"


def _writer(value: bytes) -> str | None:
    """Which connection wrote a registration; workers over NATS write theirs without."""
    try:
        found = json.loads(value)["metadata"][CONNECTION_ID]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if isinstance(found, str) else None
