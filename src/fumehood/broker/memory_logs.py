"""What sandboxes print, in the in-memory broker."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from fumehood.broker.clock import Clock
from fumehood.broker.memory_faults import Faults, Port
from fumehood.broker.ports import LogEntry, LogName, LogRecord
from fumehood.broker.topology import (
    LOG_AGE,
    LOG_PAGE,
    LOG_PIECE,
    LOG_RECORDS,
    LOG_WINDOW,
    log_filter,
    log_subject,
)
from fumehood.errors import PayloadTooLargeError


@dataclass(frozen=True, slots=True)
class _Line:
    entry: LogEntry
    identity: bytes
    at: float


class LogLines:
    """The stream: outlives every connection. `drop` lets a test take the oldest records away, as a full one does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._logs: defaultdict[LogName, list[_Line]] = defaultdict(list)
        self.followers: dict[tuple[str, str], list[Callable[[], None]]] = {}

    def add(self, name: LogName, record: LogRecord) -> None:
        lines, now, identity = self._logs[name], self._clock.now(), _identity(record)
        for line in reversed(lines):
            if line.at <= now - LOG_WINDOW:
                break
            if line.identity == identity:
                return
        self._last += 1
        lines.append(_Line(LogEntry(self._last, record), identity, now))
        del lines[:-LOG_RECORDS]
        for notify in tuple(self.followers.get((name.run_id, name.step_id), ())):
            notify()

    def of(self, name: LogName) -> list[LogEntry]:
        oldest = self._clock.now() - LOG_AGE
        kept = [line for line in self._logs.get(name, ()) if line.at > oldest]
        if kept:
            self._logs[name] = kept
        else:
            self._logs.pop(name, None)
        return [line.entry for line in kept]

    def attempts(self, run_id: str, step_id: str) -> list[int]:
        mine = [name for name in self._logs if (name.run_id, name.step_id) == (run_id, step_id)]
        return [name.attempt for name in mine if self.of(name)]

    def drop(self, name: LogName, upto: int) -> None:
        """Records up to a number are gone."""
        self._logs[name] = [line for line in self._logs[name] if line.entry.seq > upto]


def _identity(record: LogRecord) -> bytes:
    said = f"{record.kind} {record.at.stdout} {record.at.stderr} ".encode()
    return hashlib.sha256(said + record.data).digest()


class MemoryRunLogs(Port):
    name = "logs"

    def __init__(self, lines: LogLines, faults: Faults) -> None:
        super().__init__(faults)
        self._lines = lines

    async def append(self, name: LogName, record: LogRecord) -> None:
        if len(record.data) > LOG_PIECE:
            raise PayloadTooLargeError(f"a record of a sandbox's output has at most {LOG_PIECE} bytes")
        done = await self._begin("append", log_subject(name))
        self._lines.add(name, record)
        done()

    async def last(self, name: LogName) -> LogEntry | None:
        done = await self._begin("last", log_subject(name))
        found = self._lines.of(name)
        done()
        return found[-1] if found else None

    async def read(self, name: LogName, *, after: int = 0, limit: int = 256) -> list[LogEntry]:
        done = await self._begin("read", log_subject(name))
        past = islice((entry for entry in self._lines.of(name) if entry.seq > after), limit)
        found: list[LogEntry] = []
        room = LOG_PAGE
        for entry in past:
            found.append(entry)
            room -= len(entry.record.data)
            if room <= 0:
                break
        done()
        return found

    async def attempt(self, run_id: str, step_id: str) -> int | None:
        done = await self._begin("attempt", log_filter(run_id, step_id))
        found = self._lines.attempts(run_id, step_id)
        done()
        return max(found, default=None)

    @asynccontextmanager
    async def follow(self, run_id: str, step_id: str, notify: Callable[[], None]) -> AsyncIterator[None]:
        done = await self._begin("follow", log_filter(run_id, step_id))
        done()
        followers = self._lines.followers.setdefault((run_id, step_id), [])
        followers.append(notify)
        try:
            yield
        finally:
            followers.remove(notify)
            if not followers:
                self._lines.followers.pop((run_id, step_id), None)
