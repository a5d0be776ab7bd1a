"""Whose a sandbox out of stock is: one row for each that was claimed.

The row is written before its owner hears of the sandbox, and goes when nothing of it is left, so that the next process
finds it under its owner's name. It need not outlast the machine: one that stops takes its containers along, and so
nobody waits for a disk here.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from fumehood.sandbox.driver import Handle
from fumehood.sandbox.pool.values import Claim
from fumehood.storage.database import Database, Migrations, migrate

MIGRATIONS: Migrations = (
    (
        """
        CREATE TABLE claims (
            sandbox_id   TEXT PRIMARY KEY,
            labels       TEXT NOT NULL,
            inner_id     TEXT NOT NULL UNIQUE,
            engine_id    TEXT NOT NULL,
            inner_labels TEXT NOT NULL,
            waiting      TEXT
        ) STRICT
        """,
    ),
)


class PoolStore:
    """Use `await PoolStore.open(path)`, and `close()` at the end."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path) -> PoolStore:
        return cls(await Database.open(path, "the pool's store", _prepare))

    async def close(self) -> None:
        await self._database.close()

    async def all(self) -> list[Claim]:
        return await self._database.call(self._all)

    async def claim(self, claim: Claim) -> None:
        """A sandbox is claimed once, and an id has one sandbox: the second one is a `LedgerError`."""
        await self._database.call(self._claim, claim)

    async def release(self, sandbox_id: str) -> None:
        """Nothing of it is left."""
        await self._database.call(self._write, "DELETE FROM claims WHERE sandbox_id = ?", (sandbox_id,))

    async def nothing_waits(self, sandbox_id: str) -> None:
        await self._database.call(self._write, "UPDATE claims SET waiting = NULL WHERE sandbox_id = ?", (sandbox_id,))

    # --- on the thread -------------------------------------------------------------------------------------

    def _all(self) -> list[Claim]:
        return [_claim_of(row) for row in self._database.execute("SELECT * FROM claims")]

    def _claim(self, claim: Claim) -> None:
        inner = claim.inner
        self._write(
            "INSERT INTO claims (sandbox_id, labels, inner_id, engine_id, inner_labels, waiting) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                claim.sandbox_id,
                json.dumps(dict(claim.labels)),
                inner.sandbox_id,
                inner.engine_id,
                json.dumps(dict(inner.labels)),
                claim.waiting,
            ),
        )

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        self._database.execute(sql, values)


def _claim_of(row: sqlite3.Row) -> Claim:
    inner = Handle(row["inner_id"], row["engine_id"], json.loads(row["inner_labels"]))
    return Claim(row["sandbox_id"], json.loads(row["labels"]), inner, row["waiting"])


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    migrate(connection, MIGRATIONS, newer="the pool's store was written by a newer version of fumehood")
