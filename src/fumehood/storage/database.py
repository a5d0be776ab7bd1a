"""A SQLite file with a thread of its own.

All statements run there, in the order of the calls; the event loop never waits for a disk. A cancelled caller does not
take its statement back: whether it ran would be a matter of luck. The file is its owner's alone.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from fumehood.errors import ConfigurationError, LedgerError

P = ParamSpec("P")
R = TypeVar("R")

Migrations = tuple[tuple[str, ...], ...]
"""Entry n brings version n to n + 1. An entry that was released is never edited; add another one."""


class Database:
    """Use `await Database.open(…)`, and `close()` at the end."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.stem)
        self._connection: sqlite3.Connection | None = None

    @classmethod
    async def open(cls, path: Path, name: str, prepare: Callable[[sqlite3.Connection], None]) -> Database:
        """Open or make the file, and have it prepared. `name` is what errors call it."""
        database = cls(path, name)
        try:
            await database.call(database._open, prepare)
        except BaseException:
            database._thread.shutdown(wait=False)
            raise
        return database

    async def close(self) -> None:
        """Finish what was asked for and let go of the file. Closing twice is harmless."""
        if self._connection is not None:
            await self.call(self._close)
        self._thread.shutdown(wait=False)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have it done on the thread, whatever becomes of the caller."""

        def guarded() -> R:
            try:
                return function(*args, **kwargs)
            except sqlite3.Error as error:
                raise LedgerError(f"{self._name} failed ({type(error).__name__})") from error

        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, guarded)
        except RuntimeError as error:
            raise self._closed() from error
        return await outlasting(future)

    # --- on the thread -------------------------------------------------------------------------------------

    def execute(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """One statement: a transaction, or a part of the one that is open, which goes where the statement fails."""
        if self._connection is None:
            raise self._closed()
        try:
            return self._connection.execute(sql, values)
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def _open(self, prepare: Callable[[sqlite3.Connection], None]) -> None:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=5)
        self._connection.row_factory = sqlite3.Row
        try:
            prepare(self._connection)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _closed(self) -> LedgerError:
        return LedgerError(f"{self._name} is closed")


async def outlasting(done: asyncio.Future[R]) -> R:
    """What comes of it, which goes on when whoever waits here is cancelled."""
    done.add_done_callback(_take_note)
    return await asyncio.shield(done)


def _take_note(done: asyncio.Future[R]) -> None:
    """A cancelled caller cannot look at the outcome any more; asyncio would complain that nobody did."""
    if not done.cancelled():
        done.exception()


def migrate(connection: sqlite3.Connection, migrations: Migrations, *, newer: str) -> None:
    """Bring a file to the newest version, one transaction for each step; `newer` is the error of one beyond it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise ConfigurationError(newer)
    for number, statements in enumerate(migrations[version:], start=version + 1):
        _step(connection, number, statements)


def _step(connection: sqlite3.Connection, number: int, statements: tuple[str, ...]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={number}")
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
