"""The memory of sessions and their commands: one SQLite file in a state folder that one process has at a time.

What a call returned survives the death of this process. All statements run on one thread of the store's own, in the
order of the calls; the event loop never waits for a disk. A cancelled caller does not take its statement back.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from fumehood.errors import ConfigurationError, LedgerError
from fumehood.sandbox.sessions import store_schema as schema
from fumehood.sandbox.sessions.records import ProcessRecord, SessionRecord, SessionState, outcome_json

P = ParamSpec("P")
R = TypeVar("R")

FILE = "sessions.db"
LOCK_FILE = "sessions.lock"
SPOOL = "spool"


class SessionStore:
    """Use `await SessionStore.open(folder)`, and `close()` at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = _take_lock(folder)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions")
        self._connection: sqlite3.Connection | None = None

    @classmethod
    async def open(cls, folder: Path) -> SessionStore:
        """Take the folder, make or open the file, and bring it to this version's schema."""
        store = cls(folder)
        try:
            await store._call(store._open)
        except BaseException:
            store._release()
            raise
        return store

    async def close(self) -> None:
        """Finish what was asked for and let go of the folder. Closing twice is harmless."""
        if self._lock is not None:
            await self._call(self._close)
            self._release()

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

    async def mark_there(self, sandbox_id: str, runtime: str) -> None:
        sql = "UPDATE sessions SET state = 'there', runtime = ? WHERE sandbox_id = ? AND state = 'making'"
        await self._call(self._write, sql, (runtime, sandbox_id))

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
            "wish = NULL WHERE serial = ? AND outcome IS NULL"
        )
        counts = (record.stdin_bytes, record.stdout_bytes, record.stderr_bytes)
        values = (outcome_json(record.outcome), record.detail, *counts, record.serial)
        await self._call(self._write, sql, values)

    async def forget_processes(self, serials: Iterable[int]) -> None:
        await self._call(self._write_all, "DELETE FROM processes WHERE serial = ?", list(serials))

    # --- on the store's thread -----------------------------------------------------------------------------

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def guarded() -> R:
            try:
                return function(*args, **kwargs)
            except sqlite3.Error as error:
                raise LedgerError(f"the store of sessions failed ({type(error).__name__})") from error

        try:
            future = self._thread.submit(guarded)
        except RuntimeError as error:
            raise LedgerError("the store of sessions is closed") from error
        done = asyncio.wrap_future(future)
        done.add_done_callback(_take_note)
        return await asyncio.shield(done)

    def _open(self) -> None:
        path = self.folder / FILE
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        self._connection.row_factory = sqlite3.Row
        try:
            schema.prepare(self._connection)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _release(self) -> None:
        self._thread.shutdown(wait=False)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError("the store of sessions is closed")
        return self._connection

    def _write(self, sql: str, values: tuple[object, ...]) -> int:
        """One statement, one transaction; the serial of the row that it made, if any."""
        try:
            return self._db.execute(sql, values).lastrowid or 0
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.rollback()
            raise

    def _sessions(self) -> list[SessionRecord]:
        rows = self._db.execute("SELECT * FROM sessions ORDER BY created_ms, sandbox_id")
        return [schema.session_record(row) for row in rows]

    def _processes(self) -> list[ProcessRecord]:
        return [schema.process_record(row) for row in self._db.execute("SELECT * FROM processes ORDER BY serial")]

    def _write_all(self, sql: str, serials: list[int]) -> None:
        """One transaction for all of them."""
        self._write("BEGIN IMMEDIATE", ())
        for serial in serials:
            self._write(sql, (serial,))
        self._write("COMMIT", ())


def _take_lock(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"the state folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigurationError(
            f"the state folder {folder} belongs to another process that is running: give each its own"
        ) from error
    return lock


def _take_note(done: asyncio.Future[R]) -> None:
    """A cancelled caller cannot look at the outcome any more; asyncio would complain that nobody did."""
    if not done.cancelled():
        done.exception()
