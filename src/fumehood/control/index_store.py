"""The index's SQLite file: what was told about runs, and how it is found again.

Nothing in it is worth keeping: it is made anew at every start and at every rebuild, written without waiting for the
disk, and thrown away when anything is wrong with it. So its tables need no versions, and it can be neither another
version's nor another cell's.

Writing, lists and statistics have a thread and a connection each (the file's write-ahead log lets them go on side by
side), so that neither the event loop nor a list waits for a large batch. All lists share the reading thread: each is
given so long and no longer, and one that nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from fumehood.broker.ports import Entry
from fumehood.control import index_query
from fumehood.control.index_query import AuditFilter, Place, RunFilter, Statement
from fumehood.control.index_rows import AuditRow, RunRow, audit_row, run_row
from fumehood.control.index_schema import (
    PUT_AUDIT,
    PUT_LABEL,
    PUT_RUN,
    SCHEMA,
    audit_values,
    run_values,
    to_audit,
    to_run,
)
from fumehood.errors import IndexUnavailableError
from fumehood.storage.database import outlasting

P = ParamSpec("P")
R = TypeVar("R")

LIST_SECONDS = 0.3
"""For one list: hundreds of times what a list takes whose filters lead somewhere. Others wait for it."""
_LOOK_STEPS = 10_000
"""Of SQLite's machine between two looks at the clock: a fraction of a millisecond."""
STATISTICS_SECONDS = 2.0
"""The most time for the statistics of one tenant: enough for some 200,000 runs in the window."""
STATISTICS_WAIT_SECONDS = 5.0
"""How long a request for statistics waits for its turn."""
STATISTICS_KEPT_SECONDS, REFUSAL_KEPT_SECONDS = 10.0, 30.0
"""How long statistics, or a refusal because there are too many runs, are kept for others who ask the same."""
MOST_AUDIT = 1_000_000
"""Lines of the audit list that are held: the log's own bound lets old ones go without a word."""
RARE = 2000
"""So far the runs with a label are counted in order to find the rarest: a tenth of a millisecond."""


class TooSlowError(IndexUnavailableError):
    """A list took too long. Nothing is wrong with the index."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Runs that started since a moment (ms). The rows' fields are those of `index_query.statistics`."""

    since: int
    intervals: Sequence[sqlite3.Row]
    slowest: Sequence[sqlite3.Row]
    failing: Sequence[sqlite3.Row]


@dataclass(frozen=True, slots=True)
class Told:
    """What the broker says about one run: its line, or that there is none any more."""

    run_id: str
    revision: int
    line: bytes | None


class Store:
    """Use `await Store.open(path)`, and `close()` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index-writer")
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index-reader")
        self._counting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index-counter")
        self._counted: dict[tuple[str, int, int], tuple[float, Statistics | None]] = {}
        """By tenant, moment and width: until when it is kept; None: it takes too long."""
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._until = math.inf
        """When what is being read must be there."""
        self.unreadable = 0
        """Lines that could not be shown."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """A new file; whatever has its name is thrown away."""
        store = cls(path)
        try:
            await store._call(store._writing, store._make)
            await store._call(store._reading, store._look)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Finish what was asked for, and throw the file away. Closing twice is harmless."""
        await asyncio.shield(self._end_all())

    async def _end_all(self) -> None:
        """One after the other: whoever still reads must not find the file gone."""
        ends = (
            (self._counting, lambda: None),
            (self._reading, self._end_reading),
            (self._writing, self._end_writing),
        )
        for thread, end in ends:
            with contextlib.suppress(RuntimeError):
                ending = asyncio.get_running_loop().run_in_executor(thread, end)
                thread.shutdown(wait=False)
                await asyncio.gather(ending, return_exceptions=True)

    # --- writing -------------------------------------------------------------------------------------------

    async def apply(self, told: Sequence[Told]) -> None:
        """Runs as they are now; what is older than what is known changes nothing."""
        await self._call(self._writing, self._apply, told)

    async def add_audit(self, lines: Sequence[Entry], *, since: int) -> None:
        """More lines of the audit log; those before a moment (ms) are forgotten."""
        await self._call(self._writing, self._add_audit, lines, since)

    # --- reading -------------------------------------------------------------------------------------------

    async def runs(self, tenant: str, wanted: RunFilter, place: Place | None, limit: int) -> list[RunRow]:
        return await self._ask(self._listed, self._runs, tenant, wanted, place, limit)

    async def audit(self, tenant: str, wanted: AuditFilter, before: int | None, limit: int) -> list[AuditRow]:
        return await self._ask(self._listed, self._audit, tenant, wanted, before, limit)

    async def statistics(self, tenant: str, since: int, width: int) -> Statistics:
        """Of runs since a moment, in intervals of a width (ms). Lists do not wait for it."""
        return await self._begun(self._counting, self._count_runs, tenant, since, width, time.monotonic())

    async def running(self, tenant: str) -> int:
        """How many runs of a tenant are under way."""
        sql = "SELECT count(*) FROM runs WHERE tenant = ? AND status = 'running'"
        return await self._ask(self._number, Statement(sql, (tenant,)))

    async def count(self) -> int:
        return await self._ask(self._number, Statement("SELECT count(*) FROM runs", ()))

    async def archivable(self, before: int, behind: tuple[int, str], limit: int) -> list[tuple[int, str]]:
        """When and which: see `index_query`."""
        rows = await self._ask(self._rows, index_query.archivable(before, behind, limit))
        return [(row["ended_at"], row["run_id"]) for row in rows]

    # --- on the store's own threads ------------------------------------------------------------------------

    async def _call(self, thread: ThreadPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """It is done, whatever becomes of the caller."""
        return await outlasting(self._begun(thread, function, *args, **kwargs))

    async def _ask(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """A caller that goes takes its question along, unless that has its turn already."""
        return await self._begun(self._reading, function, *args, **kwargs)

    def _begun(
        self, thread: ThreadPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        def guarded() -> R:
            try:
                return function(*args, **kwargs)
            except (sqlite3.Error, OSError) as error:
                raise IndexUnavailableError(f"the index failed ({type(error).__name__})") from error

        try:
            return asyncio.get_running_loop().run_in_executor(thread, guarded)
        except RuntimeError as error:
            raise IndexUnavailableError("the index is closed") from error

    def _listed(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._until = time.monotonic() + LIST_SECONDS
        try:
            return function(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if self._is_late():
                raise TooSlowError("this list takes too long: narrow the filters down") from error
            raise
        finally:
            self._until = math.inf

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def _make(self) -> None:
        self._remove()
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._writer = _connected(self._path)
        self._writer.execute("PRAGMA journal_mode=WAL")
        self._writer.execute("PRAGMA synchronous=OFF")
        self._writer.executescript(SCHEMA)

    def _look(self) -> None:
        self._reader = _connected(self._path)
        self._reader.execute("PRAGMA query_only=ON")
        self._reader.set_progress_handler(self._is_late, _LOOK_STEPS)

    def _end_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _end_writing(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._remove()

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _apply(self, told: Sequence[Told]) -> None:
        assert self._writer is not None
        with _Transaction(self._writer) as db:
            for one in told:
                self._take(db, one)

    def _take(self, db: sqlite3.Connection, told: Told) -> None:
        known = db.execute("SELECT id, revision FROM runs WHERE run_id = ?", (told.run_id,)).fetchone()
        if known is not None:
            if told.line is not None and known["revision"] >= told.revision:
                return
            db.execute("DELETE FROM labels WHERE id = ?", (known["id"],))
            db.execute("DELETE FROM runs WHERE id = ?", (known["id"],))
        if told.line is None:
            return
        row = run_row(told.run_id, told.line)
        if row is None:
            self.unreadable += 1
            return
        made = db.execute(PUT_RUN, run_values(row, told.revision)).lastrowid
        labels = [(row.tenant, key, value, row.started_at, row.run_id, made) for key, value in row.labels.items()]
        db.executemany(PUT_LABEL, labels)

    def _add_audit(self, lines: Sequence[Entry], since: int) -> None:
        assert self._writer is not None
        rows = [row for line in lines if (row := audit_row(line)) is not None]
        with _Transaction(self._writer) as db:
            db.executemany(PUT_AUDIT, [audit_values(row) for row in rows])
            db.execute("DELETE FROM audit WHERE at < ?", (since,))
            db.execute("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (MOST_AUDIT,))

    def _rows(self, statement: Statement) -> list[sqlite3.Row]:
        assert self._reader is not None
        return self._reader.execute(statement.sql, statement.values).fetchall()

    def _number(self, statement: Statement) -> int:
        (row,) = self._rows(statement)
        return int(row[0])

    def _runs(self, tenant: str, wanted: RunFilter, place: Place | None, limit: int) -> list[RunRow]:
        lead = self._rarest(tenant, wanted.labels)
        return [to_run(row) for row in self._rows(index_query.runs(tenant, wanted, place, limit, lead))]

    def _count_runs(self, tenant: str, since: int, width: int, asked_at: float) -> Statistics:
        now, asked = time.monotonic(), (tenant, since, width)
        self._counted = {key: one for key, one in self._counted.items() if now < one[0]}
        if asked not in self._counted:
            if now - asked_at > STATISTICS_WAIT_SECONDS:
                raise TooSlowError("too many ask for statistics: ask again in a moment")
            found = self._counts(tenant, since, width, now + STATISTICS_SECONDS)
            kept = STATISTICS_KEPT_SECONDS if found is not None else REFUSAL_KEPT_SECONDS
            self._counted[asked] = (now + kept, found)
        counted = self._counted[asked][1]
        if counted is None:
            raise TooSlowError("there are too many runs to count: choose a shorter window")
        return counted

    def _counts(self, tenant: str, since: int, width: int, until: float) -> Statistics | None:
        """None: it takes too long."""
        with contextlib.closing(_connected(self._path, mode="ro")) as db:
            db.set_progress_handler(lambda: time.monotonic() > until, _LOOK_STEPS)
            try:
                db.execute("BEGIN")
                questions = index_query.statistics(tenant, since, width)
                return Statistics(since, *[db.execute(one.sql, one.values).fetchall() for one in questions])
            except sqlite3.Error as error:
                if time.monotonic() > until:
                    return None
                raise TooSlowError("the runs could not be counted: ask again in a moment") from error

    def _rarest(self, tenant: str, labels: Mapping[str, str]) -> str | None:
        """The label that leads along the fewest runs."""
        if len(labels) < 2:
            return next(iter(labels), None)
        counted = {key: self._number(index_query.rarity(tenant, key, value, RARE)) for key, value in labels.items()}
        return min(counted, key=lambda key: counted[key])

    def _audit(self, tenant: str, wanted: AuditFilter, before: int | None, limit: int) -> list[AuditRow]:
        rows = self._rows(index_query.audit(tenant, wanted, before, limit))
        return [to_audit(row) for row in rows]


def _connected(path: Path, mode: str = "rw") -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=5)
    connection.row_factory = sqlite3.Row
    return connection


class _Transaction:
    """All of it or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._connection.commit()
        elif self._connection.in_transaction:
            self._connection.rollback()
