"""The worker's memory of its commands: one SQLite file, so that no command is lost or begun anew by a restart.

A dispatch is here before anything of it happens, and its result before anybody is told; both survive this process.
A payload may hold secrets: the file is its owner's alone, and a dispatch is dropped as soon as its result is known.
All statements run on one thread of the store's own, in the order of the calls, whoever stops waiting for them.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fumehood.storage.database import Database, Migrations, migrate
from fumehood.wire.console.console_pb2 import Dispatch, Result

FILE_NAME: Final = "duties.db"
MIGRATIONS: Final[Migrations] = (
    (
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
    ),
)


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

    def __init__(self, database: Database) -> None:
        self._database = database
        self._call = database.call

    @classmethod
    async def open(cls, path: Path) -> DutyStore:
        return cls(await Database.open(path, "the worker's store of commands", _prepare))

    async def close(self) -> None:
        """Finish what was asked for and let go of the file. Closing twice is harmless."""
        await self._database.close()

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

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        """One statement, one transaction."""
        self._database.execute(sql, values)

    def _result(self, command_id: str) -> Result | None:
        row = self._database.execute("SELECT result FROM duties WHERE command_id = ?", (command_id,)).fetchone()
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
            for command_id, dispatch, deadline_ms, cancelled, size in self._database.execute(sql)
        ]


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA secure_delete=ON")  # payloads may hold secrets
    migrate(connection, MIGRATIONS, newer=f"{FILE_NAME} in state_dir was written by a newer version of fumehood")
