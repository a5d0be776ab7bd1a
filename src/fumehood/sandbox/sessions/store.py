"""The memory of sessions and their commands: one SQLite file in a state folder that one process has at a time.

What a call returned survives the death of this process. All statements run on one thread of the store's own, in the
order of the calls, whoever stops waiting for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fumehood.sandbox.sessions import store_schema as schema
from fumehood.sandbox.sessions.records import ProcessRecord, SessionRecord, SessionState, outcome_json
from fumehood.storage.database import Database
from fumehood.storage.lock import take_lock

FILE = "sessions.db"
LOCK_FILE = "sessions.lock"
SPOOL = "spool"


class SessionStore:
    """Use `await SessionStore.open(folder)`, and `close()` at the end."""

    def __init__(self, folder: Path, lock: int, database: Database) -> None:
        self.folder = folder
        self._lock: int | None = lock
        self._database = database
        self._call = database.call

    @classmethod
    async def open(cls, folder: Path) -> SessionStore:
        """Take the folder, make or open the file, and bring it to this version's schema."""
        lock = _take(folder)
        try:
            database = await Database.open(folder / FILE, "the store of sessions", schema.prepare)
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, lock, database)

    async def close(self) -> None:
        """Finish what was asked for and let go of the folder. Closing twice is harmless."""
        await self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def spool(self) -> Path:
        """Where the output of commands lies, each under its serial."""
        return self.folder / SPOOL

    # --- sessions ------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionRecord]:
        """All of them, oldest first."""
        return await self._call(self._sessions)

    async def add_session(self, record: SessionRecord) -> None:
        await self._call(self._write, schema.ADD_SESSION, schema.session_row(record))

    async def mark_there(self, sandbox_id: str, runtime: str, evidence: Mapping[str, Any]) -> None:
        sql = "UPDATE sessions SET state = 'there', runtime = ?, evidence = ? WHERE sandbox_id = ? AND state = 'making'"
        await self._call(self._write, sql, (runtime, json.dumps(evidence), sandbox_id))

    async def mark_going(self, sandbox_id: str, farewell: str) -> None:
        """It shall go, and why."""
        sql = "UPDATE sessions SET state = ?, farewell = ? WHERE sandbox_id = ?"
        await self._call(self._write, sql, (SessionState.GOING.value, farewell, sandbox_id))

    async def extend(self, sandbox_id: str, lease_expires_ms: int) -> None:
        """Never back."""
        sql = "UPDATE sessions SET lease_expires_ms = MAX(lease_expires_ms, ?) WHERE sandbox_id = ?"
        await self._call(self._write, sql, (lease_expires_ms, sandbox_id))

    async def drop_session(self, sandbox_id: str) -> None:
        """Its commands stay known."""
        await self._call(self._write, "DELETE FROM sessions WHERE sandbox_id = ?", (sandbox_id,))

    # --- commands ------------------------------------------------------------------------------------------

    async def processes(self) -> list[ProcessRecord]:
        """All of them, in the order of their beginning."""
        return await self._call(self._processes)

    async def add_process(self, record: ProcessRecord) -> int:
        """The serial that it gets."""
        return await self._call(self._write, schema.ADD_PROCESS, schema.process_row(record))

    async def mark_signalled(self, serials: Iterable[int]) -> None:
        """Somebody wants them to end."""
        await self._call(self._write_all, "UPDATE processes SET signalled = 1 WHERE serial = ?", list(serials))

    async def end_process(self, record: ProcessRecord) -> None:
        """It has its outcome, for good."""
        assert record.outcome is not None
        sql = (
            "UPDATE processes SET outcome = ?, detail = ?, stdin_bytes = ?, stdout_bytes = ?, stderr_bytes = ?, "
            "receipt = ?, wish = NULL WHERE serial = ? AND outcome IS NULL"
        )
        counts = (record.stdin_bytes, record.stdout_bytes, record.stderr_bytes)
        values = (outcome_json(record.outcome), record.detail, *counts, record.receipt, record.serial)
        await self._call(self._write, sql, values)

    async def forget_processes(self, serials: Iterable[int]) -> None:
        await self._call(self._write_all, "DELETE FROM processes WHERE serial = ?", list(serials))

    # --- on the store's thread -----------------------------------------------------------------------------

    def _write(self, sql: str, values: tuple[object, ...]) -> int:
        """One statement, one transaction; the serial of the row that it made, if any."""
        return self._database.execute(sql, values).lastrowid or 0

    def _sessions(self) -> list[SessionRecord]:
        rows = self._database.execute("SELECT * FROM sessions ORDER BY created_ms, sandbox_id")
        return [schema.session_record(row) for row in rows]

    def _processes(self) -> list[ProcessRecord]:
        rows = self._database.execute("SELECT * FROM processes ORDER BY serial")
        return [schema.process_record(row) for row in rows]

    def _write_all(self, sql: str, serials: list[int]) -> None:
        """One transaction for all of them."""
        self._write("BEGIN IMMEDIATE", ())
        for serial in serials:
            self._write(sql, (serial,))
        self._write("COMMIT", ())


def _take(folder: Path) -> int:
    name = f"the state folder {folder}"
    taken = f"{name} belongs to another process that is running: give each its own"
    return take_lock(folder / LOCK_FILE, folder=name, taken=taken)
