"""Buckets of keys on JetStream, spoken to directly.

The client's own key-value store hands out entries without a value after an expiry, cannot create a key over what an
expiry left behind and drops the TTL on an update; none of that here. A deletion leaves a marker (other clients and
watches see it), which goes by itself after `MARKER_TTL`. Expiry leaves nothing: watches keep the time themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import heapq
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from fumehood.broker import names
from fumehood.broker.connection import (
    WRITE_IN_FLIGHT,
    WRONG_LAST_SEQUENCE,
    ApiRefusalError,
    Backoff,
    Connection,
    header,
    nanoseconds,
)
from fumehood.broker.ports import KEEP, ChangeKind, Keep, KvChange, KvEntry
from fumehood.broker.pulling import Pulled, PullLoop
from fumehood.broker.reading import Record, direct_all, direct_last, from_leader
from fumehood.broker.runs import EXPECTED, purge
from fumehood.broker.topology import BucketSpec
from fumehood.errors import BrokerError, BrokerUnavailableError, KeyConflictError

TTL = "Nats-TTL"
OPERATION = "KV-Operation"
MARKER_TTL = 300
"""Seconds that the marker of a deletion stays, for whoever reads without watching."""
_WATCH_BATCH = 256
_WATCH_IDLE = 30.0
"""Seconds after which the server forgets a watch whose process died: leaked consumers end clusters."""
_EXPIRY_SLACK = 1.0
"""Seconds that a watch waits beyond a TTL before it looks whether the key is gone: the server is late, never early."""


def _is_marker(headers: Mapping[str, str] | None) -> bool:
    return bool(headers) and headers is not None and (OPERATION in headers or "Nats-Marker-Reason" in headers)


def _seconds(text: str | None) -> int | None:
    return int(text.removesuffix("s")) if text and text.removesuffix("s").isdecimal() else None


class NatsKeyValue:
    """`direct`: read from any replica, which is all that a worker may do."""

    def __init__(self, connection: Connection, spec: BucketSpec, *, direct: bool = False) -> None:
        self._connection = connection
        self._spec = spec
        self._direct = direct

    def _subject(self, key: str) -> str:
        return f"$KV.{self._spec.bucket}.{key}"

    def _key(self, subject: str) -> str:
        return subject.removeprefix(f"$KV.{self._spec.bucket}.")

    # --- reading ---------------------------------------------------------------------------------------

    async def _record(self, key: str) -> Record | None:
        subject = self._subject(names.key(key))
        if self._direct:
            return await direct_last(self._connection, self._spec.stream, subject)
        return await from_leader(self._connection, self._spec.stream, {"last_by_subj": subject})

    def _entry(self, record: Record | None) -> KvEntry | None:
        if record is None or _is_marker(record.headers):
            return None
        return KvEntry(self._key(record.subject), record.data, record.seq, _seconds(record.headers.get(TTL)))

    async def get(self, key: str) -> KvEntry | None:
        return self._entry(await self._record(key))

    async def keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in await self.entries(prefix)]

    async def entries(self, prefix: str = "") -> list[KvEntry]:
        found: dict[str, KvEntry | None] = {}
        for subject in self._filters(prefix):
            for record in await direct_all(self._connection, self._spec.stream, subject):
                found[record.subject] = self._entry(record)
        return [entry for _, entry in sorted(found.items()) if entry is not None]

    def _filters(self, prefix: str) -> list[str]:
        if not names.key_prefix(prefix):
            return [self._subject(">")]
        return [self._subject(prefix), self._subject(f"{prefix}.>")]

    # --- writing ---------------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes, *, ttl: int | None = None) -> int:
        self._spec.check(value, ttl)
        return await self._compare_and_set(key, value, ttl, None)

    async def update(self, key: str, value: bytes, *, revision: int, ttl: int | Keep | None = KEEP) -> int:
        if isinstance(ttl, Keep):
            ttl = await self._kept(key, revision) if self._spec.key_ttl else None
        self._spec.check(value, ttl)
        return await self._compare_and_set(key, value, ttl, revision)

    async def _kept(self, key: str, revision: int) -> int | None:
        entry = await self.get(key)
        if entry is None or entry.revision != revision:
            raise KeyConflictError("the key has another revision")
        return entry.ttl

    async def put(self, key: str, value: bytes, *, ttl: int | None = None) -> int:
        self._spec.check(value, ttl)
        subject, headers = self._subject(names.key(key)), _ttl_header(ttl)
        return (await self._connection.retrying(lambda: self._connection.store(subject, value, headers))).seq

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        headers = {OPERATION: "DEL", TTL: f"{MARKER_TTL}s"}
        if revision is not None:
            await self._compare_and_set(key, b"", None, revision, headers)
        elif self._direct or await self.get(key) is not None:
            subject = self._subject(names.key(key))
            await self._connection.retrying(lambda: self._connection.store(subject, b"", headers))

    async def purge(self, prefix: str) -> None:
        subject = self._subject(names.key(prefix))
        await purge(self._connection, self._spec.stream, subject)
        await purge(self._connection, self._spec.stream, f"{subject}.>")

    async def _compare_and_set(
        self, key: str, value: bytes, ttl: int | None, revision: int | None, extra: Mapping[str, str] | None = None
    ) -> int:
        """Write if the key has this revision; None: if it does not exist. After an answer that was lost, a value equal
        to ours that lies behind is taken for ours."""
        subject, at, lost = self._subject(names.key(key)), revision or 0, False
        until, backoff = time.monotonic() + self._connection.options.retry_seconds, Backoff(first=0.01)
        while True:
            headers = {**_ttl_header(ttl), **(extra or {}), EXPECTED: str(at)}
            try:
                return (await self._connection.store(subject, value, headers)).seq
            except ApiRefusalError as refusal:
                if refusal.number == WRONG_LAST_SEQUENCE:
                    record = await self._record(key)
                    if record is not None and lost and self._is_ours(record, value, at, headers):
                        return record.seq
                    at = self._next_try(record, revision)
                elif refusal.number != WRITE_IN_FLIGHT or time.monotonic() > until:
                    raise
            except BrokerUnavailableError:
                lost = True
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(backoff.step())

    def _is_ours(self, record: Record, value: bytes, at: int, headers: Mapping[str, str]) -> bool:
        same = record.data == value and record.headers.get(OPERATION) == headers.get(OPERATION)
        return same and record.seq > at

    def _next_try(self, record: Record | None, revision: int | None) -> int:
        """Only what a deletion or an expiry left behind may be written over, and only by a create."""
        if revision is not None or (record is not None and not _is_marker(record.headers)):
            raise KeyConflictError("the key exists already, or has another revision")
        return record.seq if record is not None else 0

    # --- watching --------------------------------------------------------------------------------------

    async def watch(self, prefix: str = "") -> AsyncIterator[KvChange]:
        watch = _Watch(self._connection, self._spec, self._filters(prefix), self)
        told = False
        while True:
            with contextlib.suppress(BrokerError):
                async for change in watch.session():
                    if change.kind is not ChangeKind.CAUGHT_UP:
                        yield change
                    elif not told:
                        told = True
                        yield change
            await asyncio.sleep(watch.backoff.step())


def _ttl_header(ttl: int | None) -> dict[str, str]:
    return {TTL: f"{ttl}s"} if ttl is not None else {}


@dataclass(slots=True)
class _Known:
    revision: int
    expires: float | None


class _Watch:
    """What a watcher has told so far; survives the consumers that it is told by.

    A session is one consumer of the server's. It begins with the last value of every key, so that after any gap the
    difference to what was told before is what happened meanwhile: no resumption by sequence, no case of its own. It
    ends with its consumer, and when that has sent what never came in.
    `test_a_watch_tells_what_was_lost_with_a_connection`
    """

    def __init__(self, connection: Connection, spec: BucketSpec, filters: list[str], bucket: NatsKeyValue) -> None:
        self._connection = connection
        self._spec = spec
        self._filters = filters
        self._bucket = bucket
        self._known: dict[str, _Known] = {}
        self._due: list[tuple[float, str]] = []
        self.backoff = Backoff()

    async def session(self) -> AsyncIterator[KvChange]:
        name, first = await self._make()
        news, lost = asyncio.Event(), asyncio.Event()

        def missed() -> None:
            lost.set()
            news.set()

        async def repair() -> None:
            missed()

        loop = PullLoop(
            self._connection, self._spec.stream, name, batch=_WATCH_BATCH, news=news, repair=repair, missed=missed
        )
        await loop.start()
        seen: set[str] = set()
        try:
            while not lost.is_set():
                news.clear()
                for one in loop.take(_WATCH_BATCH, younger_than=86_400.0):
                    first -= 1
                    seen.add(self._key(one))
                    for change in self._changes(one):
                        yield change
                if first <= 0 and seen is not None:
                    for key in [key for key in self._known if key not in seen]:
                        del self._known[key]
                        yield KvChange(ChangeKind.DELETE, key)
                    yield KvChange(ChangeKind.CAUGHT_UP)
                    first, self.backoff = 1 << 62, Backoff()
                for change in await self._expired():
                    yield change
                await self._wait(news)
        finally:
            await asyncio.shield(self._end(loop, name))

    async def _make(self) -> tuple[str, int]:
        """A consumer that forgets itself, and how many messages it begins with."""
        name = f"watch-{secrets.token_hex(8)}"
        config: dict[str, Any] = {
            "name": name,
            "filter_subjects": self._filters,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": nanoseconds(_WATCH_IDLE),
        }
        body = {"stream_name": self._spec.stream, "config": config, "action": "create"}
        made = await self._connection.api(f"CONSUMER.CREATE.{self._spec.stream}.{name}", body)
        return name, int(made.get("num_pending", 0))

    async def _end(self, loop: PullLoop, name: str) -> None:
        await loop.close(give_back=False)
        try:
            await self._connection.api(f"CONSUMER.DELETE.{self._spec.stream}.{name}")
        except BrokerError:
            return  # the server forgets it by itself

    def _key(self, one: Pulled) -> str:
        return one.message.subject.removeprefix(f"$KV.{self._spec.bucket}.")

    def _changes(self, one: Pulled) -> list[KvChange]:
        key, message = self._key(one), one.message
        known = self._known.get(key)
        if known is not None and one.seq <= known.revision:
            return []
        if _is_marker(message.headers):
            kind = ChangeKind.DELETE if header(message, OPERATION) else ChangeKind.EXPIRE
            return [KvChange(kind, key, revision=one.seq)] if self._known.pop(key, None) else []
        self._known[key] = _Known(one.seq, self._expiry(key, message))
        return [KvChange(ChangeKind.PUT, key, message.data, one.seq)]

    def _expiry(self, key: str, message: Msg) -> float | None:
        seconds = _seconds(header(message, TTL)) or self._spec.max_age
        if seconds is None:
            return None
        stored = int(message.reply.split(".")[-2]) / 1_000_000_000
        due = stored + seconds
        heapq.heappush(self._due, (due + _EXPIRY_SLACK, key))
        return due

    async def _expired(self) -> list[KvChange]:
        """Keys whose time is over and that are really gone."""
        gone: list[KvChange] = []
        now = dt.datetime.now(dt.UTC).timestamp()
        while self._due and self._due[0][0] <= now:
            _, key = heapq.heappop(self._due)
            known = self._known.get(key)
            if known is None or known.expires is None or known.expires > now:
                continue
            entry = await self._bucket.get(key)
            if entry is None:
                gone.append(KvChange(ChangeKind.EXPIRE, key, revision=known.revision))
                del self._known[key]
            elif entry.revision == known.revision:  # the clocks differ, or the server is slow
                heapq.heappush(self._due, (now + _EXPIRY_SLACK, key))
        return gone

    async def _wait(self, news: asyncio.Event) -> None:
        until = self._due[0][0] - dt.datetime.now(dt.UTC).timestamp() if self._due else None
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until)):
                await news.wait()
        except TimeoutError:
            return
