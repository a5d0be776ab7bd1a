"""A run's own subjects on JetStream: journal, inbox, history, timers.

Our ids travel in a header of ours. `Nats-Msg-Id` beside it is only the server's short-term memory: it is made unique
by the run, since a duplicate window spans a whole stream. The journal does without: the compare-and-set is its memory,
and a message id would make a replicated stream answer otherwise than a single one.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from fumehood.broker import names
from fumehood.broker.connection import (
    WRITE_IN_FLIGHT,
    WRONG_LAST_SEQUENCE,
    ApiRefusalError,
    Backoff,
    Connection,
    user_headers,
)
from fumehood.broker.notifications import Notifications
from fumehood.broker.ports import Entry, PendingTimer, Published
from fumehood.broker.reading import BATCH, Record, direct_all, from_leader, read_all
from fumehood.broker.sealed import ID, SEAL, SealedTail, is_sealed, seal
from fumehood.broker.topology import (
    Shape,
    history_subject,
    inbox_subject,
    journal_filter,
    journal_news,
    journal_subject,
    run_stream,
    timer_subject,
)
from fumehood.errors import BrokerUnavailableError, JournalConflictError
from fumehood.wire.times import rfc3339

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
MESSAGE_ID = "Nats-Msg-Id"
FORGOTTEN_AT_ONCE = 32
GONE = (10037, 10043, 10057)
"""No such message (any more), in the words of several versions of the server."""


async def purge(connection: Connection, stream: str, subject: str, *, upto: int | None = None) -> None:
    """Remove all messages on a subject, or those up to one of them."""
    query: dict[str, object] = {"filter": subject}
    if upto is not None:
        query["seq"] = upto + 1  # the server stops before it
    await connection.retrying(lambda: connection.api(f"STREAM.PURGE.{stream}", query))


async def forget(connection: Connection, stream: str, subject: str, *, upto: int | None = None) -> None:
    """As `purge`, message by message, where a consumer reads the subject. A purge moves such a consumer's ack floor
    past messages of others that are in flight, which then never come again although they are stored
    (`test_what_is_in_flight_comes_again_whatever_is_taken_off_beside_it`)."""
    found = await direct_all(connection, stream, subject)
    waiting = iter([record.seq for record in found if upto is None or record.seq <= upto])

    async def lane() -> None:
        for seq in waiting:
            await connection.retrying(partial(_delete, connection, stream, seq))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(found), FORGOTTEN_AT_ONCE)):
            group.create_task(lane())


async def _delete(connection: Connection, stream: str, seq: int) -> None:
    try:
        await connection.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
    except ApiRefusalError as refusal:
        if refusal.number not in GONE:
            raise


async def store_once(connection: Connection, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
    """Write the first message of a subject; one that is there already is success. "In flight" is neither: the write
    that was met may still be lost, so it is asked again until it is stored or refused."""
    until, backoff = time.monotonic() + connection.options.retry_seconds, Backoff(first=0.01)
    while True:
        try:
            await connection.store(subject, data, {**headers, EXPECTED: "0"})
            return
        except ApiRefusalError as refusal:
            if refusal.number == WRONG_LAST_SEQUENCE:
                return
            if refusal.number != WRITE_IN_FLIGHT:
                raise
            if time.monotonic() > until:
                raise BrokerUnavailableError("another write of the same is not decided yet") from None
        except BrokerUnavailableError:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(backoff.step())


class NatsJournal:
    def __init__(self, connection: Connection, shape: Shape) -> None:
        self._connection = connection
        self._partitions = shape.partitions
        self._replicated = shape.replicas > 1
        self.secret = b""
        """The cell's, by which servers know each other's records; workers cannot read it."""
        self.counts: Counter[str] = Counter()
        """`conflict`, `in_flight`, `ambiguous`, `recovered`, `foreign`."""
        self._tail = SealedTail(connection)
        self.notifications = Notifications(connection)

    def _place(self, run_id: str) -> tuple[str, str]:
        p = names.partition_of(run_id, self._partitions)
        return run_stream(p), journal_subject(p, run_id)

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        stream, subject = self._place(run_id)
        entries: list[Entry] = []
        asked = limit
        while True:
            records = await read_all(
                self._connection, stream, subject, after=after, limit=asked, replicated=self._replicated
            )
            entries += [entry for record in records if (entry := self._entry(record)) is not None]
            if limit is None or len(entries) >= limit or len(records) != asked:
                return entries[:limit]
            after, asked = records[-1].seq, BATCH  # what is not ours took the place of records

    def _is_ours(self, record: Record) -> bool:
        return is_sealed(self.secret, record)

    def _entry(self, record: Record) -> Entry | None:
        """A record of ours. Anything else on the subject is counted and passed over."""
        if not self._is_ours(record):
            self.counts["foreign"] += 1
            return None
        return Entry(record.seq, record.headers[ID], record.data)

    async def last(self, run_id: str) -> Entry | None:
        stream, subject = self._place(run_id)
        record = await from_leader(self._connection, stream, {"last_by_subj": subject})
        if record is None:
            return None
        entry = self._entry(record)
        if entry is None:
            entries = await self.read(run_id)
            return entries[-1] if entries else None
        return entry

    async def append(self, run_id: str, record_id: str, data: bytes, *, expected: int) -> int:
        names.message_id(record_id)
        stream, subject = self._place(run_id)
        until = time.monotonic() + self._connection.options.retry_seconds
        backoff, at, sealed = Backoff(first=0.01), expected, seal(self.secret, record_id, data)
        while True:
            headers = {ID: record_id, SEAL: sealed, EXPECTED: str(at)}
            try:
                return (await self._connection.store(subject, data, headers)).seq
            except ApiRefusalError as refusal:
                if refusal.number == WRONG_LAST_SEQUENCE:
                    found = await self._behind(stream, subject, expected, record_id, data)
                    if isinstance(found, int):
                        return found
                    at = found.seq  # only what is not ours lies there
                    continue
                if refusal.number != WRITE_IN_FLIGHT or time.monotonic() > until:
                    raise
                self.counts["in_flight"] += 1
            except BrokerUnavailableError:
                self.counts["ambiguous"] += 1
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(backoff.step())

    async def _behind(self, stream: str, subject: str, expected: int, record_id: str, data: bytes) -> int | Record:
        """What refused our append: our own earlier try (its seq), something foreign (the last of it), or a conflict."""
        records = await read_all(self._connection, stream, subject, after=expected, replicated=True)
        for record in records:
            if record.headers.get(ID) == record_id and record.data == data:
                self.counts["recovered"] += 1
                return record.seq
        if records and not any(map(self._is_ours, records)):
            return records[-1]
        self.counts["conflict"] += 1
        raise JournalConflictError("another record was appended to this run's journal first")

    async def purge(self, run_id: str, *, upto: int) -> None:
        """The journal goes last: while it is there, a purge that was interrupted is repeated. All three are in one
        stream; what workers claim is in another, which forgets what was taken by itself."""
        p = names.partition_of(run_id, self._partitions)
        await purge(self._connection, run_stream(p), f"timer.{p}.{run_id}.*", upto=upto)
        await forget(self._connection, run_stream(p), inbox_subject(p, run_id), upto=upto)
        await purge(self._connection, run_stream(p), journal_subject(p, run_id), upto=upto)

    async def tail(self, partition: int, *, after: int, limit: int) -> list[tuple[str, Entry]]:
        stream, subject = run_stream(partition), journal_filter(partition)
        records = await self._tail.page(stream, subject, after=after, limit=limit, secret=self.secret)
        return [(r.subject.rpartition(".")[2], Entry(r.seq, r.headers[ID], r.data)) for r in records]

    async def tip(self, partition: int) -> int:
        """Of the whole stream: what lies there beside the journals only makes it larger."""
        call = f"STREAM.INFO.{run_stream(partition)}"
        info = await self._connection.retrying(lambda: self._connection.api(call))
        return int(info["state"]["last_seq"])

    def follow(self, partition: int, notify: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self.notifications.follow(journal_news(partition), notify)


class NatsMailboxes:
    def __init__(self, connection: Connection, shape: Shape) -> None:
        self._connection = connection
        self._partitions = shape.partitions

    async def send(
        self, run_id: str, message_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(message_id)
        subject = inbox_subject(names.partition_of(run_id, self._partitions), run_id)
        sent = {**user_headers(headers), ID: message_id, MESSAGE_ID: f"{run_id}/{message_id}"}
        stored = await self._connection.retrying(lambda: self._connection.store(subject, data, sent))
        return Published(stored.seq, stored.duplicate)

    async def last(self, run_id: str) -> bytes | None:
        partition = names.partition_of(run_id, self._partitions)
        query = {"last_by_subj": inbox_subject(partition, run_id)}
        record = await from_leader(self._connection, run_stream(partition), query)
        return None if record is None else record.data

    async def first(self, run_id: str) -> bytes | None:
        partition = names.partition_of(run_id, self._partitions)
        query = {"seq": 1, "next_by_subj": inbox_subject(partition, run_id)}
        record = await from_leader(self._connection, run_stream(partition), query)
        return None if record is None else record.data


class NatsHistories:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def publish(
        self, run_id: str, event_id: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Published:
        names.message_id(event_id)
        subject = history_subject(run_id)
        sent = {**user_headers(headers), ID: event_id, MESSAGE_ID: event_id}
        stored = await self._connection.retrying(lambda: self._connection.store(subject, data, sent))
        if not stored.duplicate:
            return Published(stored.seq, duplicate=False)
        again = {**sent, MESSAGE_ID: f"{event_id}~{secrets.token_hex(8)}"}
        stored = await self._connection.retrying(lambda: self._connection.store(subject, data, again))
        return Published(stored.seq, duplicate=True)


class NatsTimers:
    def __init__(self, connection: Connection, shape: Shape) -> None:
        self._connection = connection
        self._partitions = shape.partitions

    async def set(self, run_id: str, timer_id: str, at_ms: int, message_id: str, data: bytes) -> None:
        p = names.partition_of(run_id, self._partitions)
        subject = timer_subject(p, run_id, timer_id)
        headers = {
            ID: names.message_id(message_id),
            "Nats-Schedule": f"@at {rfc3339(at_ms)}",
            "Nats-Schedule-Target": inbox_subject(p, run_id),
        }
        await store_once(self._connection, subject, data, headers)  # while it is pending, once is enough

    async def cancel(self, run_id: str, timer_id: str) -> None:
        p = names.partition_of(run_id, self._partitions)
        await purge(self._connection, run_stream(p), timer_subject(p, run_id, timer_id))

    async def pending(self, run_id: str) -> list[PendingTimer]:
        p = names.partition_of(run_id, self._partitions)
        records = await direct_all(self._connection, run_stream(p), f"timer.{p}.{run_id}.*")
        found = [
            PendingTimer(record.subject.rpartition(".")[2], _milliseconds(record), record.headers.get(ID, ""))
            for record in records
        ]
        return sorted(found, key=lambda timer: timer.timer_id)


def _milliseconds(record: Record) -> int:
    text = record.headers.get("Nats-Schedule", "").removeprefix("@at ")
    at = dt.datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 1000 + at.microsecond // 1000
