"""The worker's memory of its commands: one SQLite file, so that no command is lost or begun anew by a restart.

A dispatch is here before anything of it happens, and its result before anybody is told; both survive this process.
A payload may hold secrets: the file is its owner's alone, and a dispatch is dropped as soon as its result is known.
All statements run on one thread of the store's own, in the order of the calls, whoever stops waiting for them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from fumehood.errors import ConfigurationError, LedgerError
from fumehood.wire.console.console_pb2 import Dispatch, Result

P = ParamSpec("P")
R = TypeVar("R")
FILE_NAME: Final = "duties.db"
MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE duties (
        command_id  TEXT PRIMARY KEY,
        dispatch    BLOB,
        accepted_ms INTEGER NOT NULL,
        deadline_ms INTEGER,
        cancelled   INTEGER NOT NULL DEFAULT 0,
        result      BLOB,
        CHECK ((dispatch IS NULL) = (result IS NOT NULL))
    ) STRICT
    """,
)
"""Entry n brings version n to n + 1. An entry that was released is never edited; add another one."""


@dataclass(frozen=True, slots=True)
class StoredDuty:
    """A command that was not acknowledged."""

    command_id: str
    dispatch: Dispatch | None
    """None once there is a result."""
    deadline_ms: int | None
    """Since 1970, because it outlives this process and its clocks."""
    cancelled: bool
    size: int
    """Bytes that it takes here."""


class DutyStore:
    """Use `await DutyStore.open(path)`, and `close()` at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="duties")
        self._connection: sqlite3.Connection | None = None

    @classmethod
    async def open(cls, path: Path) -> DutyStore:
        store = cls(path)
        try:
            await store._call(store._open)
        except BaseException:
            store._thread.shutdown(wait=False)
            raise
        return store

    async def close(self) -> None:
        """Finish what was asked for and let go of the file. Closing twice is harmless."""
        if self._connection is not None:
            await self._call(self._close)
            self._thread.shutdown(wait=False)

    async def accept(self, dispatch: Dispatch, accepted_ms: int, deadline_ms: int | None) -> None:
        values = (dispatch.command_id, dispatch.SerializeToString(), accepted_ms, deadline_ms)
        await self._call(
            self._write,
            "INSERT INTO duties (command_id, dispatch, accepted_ms, deadline_ms) VALUES (?, ?, ?, ?)",
            values,
        )

    async def cancel(self, command_id: str) -> None:
        """Remember that it shall end, for a next process that finds it."""
        await self._call(self._write, "UPDATE duties SET cancelled = 1 WHERE command_id = ?", (command_id,))

    async def finish(self, result: Result) -> None:
        """Store its end. One that is stored stays as it is."""
        values = (result.SerializeToString(), result.command_id)
        sql = "UPDATE duties SET result = ?, dispatch = NULL WHERE command_id = ? AND result IS NULL"
        await self._call(self._write, sql, values)

    async def forget(self, command_id: str) -> None:
        """It was acknowledged."""
        await self._call(self._write, "DELETE FROM duties WHERE command_id = ?", (command_id,))

    async def result(self, command_id: str) -> Result | None:
        return await self._call(self._result, command_id)

    async def all(self) -> list[StoredDuty]:
        """Oldest first."""
        return await self._call(self._all)

    # --- on the store's thread -----------------------------------------------------------------------------

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def guarded() -> R:
            try:
                return function(*args, **kwargs)
            except sqlite3.Error as error:
                raise LedgerError(f"the worker's store of commands failed ({type(error).__name__})") from error

        try:
            future = self._thread.submit(guarded)
        except RuntimeError as error:
            raise LedgerError("the worker's store of commands is closed") from error
        done = asyncio.wrap_future(future)
        done.add_done_callback(_take_note)
        return await asyncio.shield(done)

    def _open(self) -> None:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=5)
        try:
            _prepare(self._connection)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError("the worker's store of commands is closed")
        return self._connection

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        """One statement, one transaction."""
        try:
            self._db.execute(sql, values)
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.rollback()
            raise

    def _result(self, command_id: str) -> Result | None:
        row = self._db.execute("SELECT result FROM duties WHERE command_id = ?", (command_id,)).fetchone()
        return None if row is None or row[0] is None else Result.FromString(row[0])

    def _all(self) -> list[StoredDuty]:
        sql = (
            "SELECT command_id, dispatch, deadline_ms, cancelled, coalesce(length(dispatch), length(result)) "
            "FROM duties ORDER BY accepted_ms, rowid"
        )
        return [
            StoredDuty(
                command_id=command_id,
                dispatch=None if dispatch is None else Dispatch.FromString(dispatch),
                deadline_ms=deadline_ms,
                cancelled=bool(cancelled),
                size=size,
            )
            for command_id, dispatch, deadline_ms, cancelled, size in self._db.execute(sql)
        ]


def _take_note(done: asyncio.Future[R]) -> None:
    """A cancelled caller cannot look at the outcome any more; asyncio would complain that nobody did."""
    if not done.cancelled():
        done.exception()


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA secure_delete=ON")  # payloads may hold secrets
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ConfigurationError(f"{FILE_NAME} in state_dir was written by a newer version of fumehood")
    for number, statement in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
