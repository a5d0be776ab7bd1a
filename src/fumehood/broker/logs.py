"""What sandboxes print, on JetStream: one subject for each attempt of a step, one message for each record.

What a record is stands in a header, and its bytes are the message. A message whose header cannot be read is no record:
what is missing then shows by the places of the others. The server's short-term memory knows a record by everything that
it says, not by its place alone: two writers that cut the same output into other pieces store some of it twice, which
readers skip, where a place alone would make the server swallow one of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fumehood.broker.connection import Connection
from fumehood.broker.notifications import Notifications
from fumehood.broker.ports import LogEntry, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.reading import BATCH, Record, direct_last, direct_page
from fumehood.broker.runs import MESSAGE_ID
from fumehood.broker.topology import LOG_PAGE, LOG_PIECE, LOG_STREAM, log_filter, log_news, log_subject
from fumehood.errors import PayloadTooLargeError

HEADER = "Fumehood-Log"
_HEADER = re.compile(rf"({'|'.join(LogKind)}) ([0-9]{{1,16}}) ([0-9]{{1,16}})")


def check_piece(record: LogRecord) -> None:
    if len(record.data) > LOG_PIECE:
        raise PayloadTooLargeError(f"a record of a sandbox's output has at most {LOG_PIECE} bytes")


class NatsRunLogs:
    """Read from whoever answers: the stream has one replica."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.notifications = Notifications(connection)

    async def append(self, name: LogName, record: LogRecord) -> None:
        check_piece(record)
        subject, said = log_subject(name), f"{record.kind} {record.at.stdout} {record.at.stderr}"
        known_by = f"{subject} {said} {hashlib.sha256(record.data).hexdigest()}"
        headers = {HEADER: said, MESSAGE_ID: known_by.replace(" ", "/")}
        await self._connection.retrying(lambda: self._connection.store(subject, record.data, headers))

    async def last(self, name: LogName) -> LogEntry | None:
        record = await direct_last(self._connection, LOG_STREAM, log_subject(name))
        if record is None:
            return None
        found = _entry(record)
        return found if found is not None else await self._last_readable(name)

    async def _last_readable(self, name: LogName) -> LogEntry | None:
        newest: LogEntry | None = None
        while page := await self.read(name, after=newest.seq if newest else 0, limit=BATCH):
            newest = page[-1]
        return newest

    async def read(self, name: LogName, *, after: int = 0, limit: int = 256) -> list[LogEntry]:
        subject, more = log_subject(name), True
        while more:
            records, more = await direct_page(
                self._connection, LOG_STREAM, subject, after=after, limit=limit, max_bytes=LOG_PAGE
            )
            found = [entry for record in records if (entry := _entry(record)) is not None]
            if found or not records:
                return found
            after = records[-1].seq
        return []

    async def attempt(self, run_id: str, step_id: str) -> int | None:
        query = {"subjects_filter": log_filter(run_id, step_id)}
        info = await self._connection.retrying(lambda: self._connection.api(f"STREAM.INFO.{LOG_STREAM}", query))
        subjects = info["state"].get("subjects") or {}
        numbers = [subject.rpartition(".")[2] for subject in subjects]  # any node may write there
        return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=None)

    def follow(self, run_id: str, step_id: str, notify: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self.notifications.follow(log_news(run_id, step_id), notify)


def _entry(record: Record) -> LogEntry | None:
    said = _HEADER.fullmatch(record.headers.get(HEADER, ""))
    if said is None:
        return None
    place = LogPlace(int(said[2]), int(said[3]))
    return LogEntry(record.seq, LogRecord(LogKind(said[1]), place, record.data))
