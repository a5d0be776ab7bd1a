"""The tables of sessions and their commands, their versions, and rows as values."""

from __future__ import annotations

import json
import sqlite3

from fumehood.sandbox.sessions.records import (
    ProcessRecord,
    SessionRecord,
    SessionState,
    outcome_json,
    outcome_of,
    process_json,
    process_of,
    session_json,
    session_of,
)
from fumehood.sandbox.sessions.values import SessionName
from fumehood.storage.database import Migrations, migrate

MIGRATIONS: Migrations = (
    (
        """
        CREATE TABLE sessions (
            owner            TEXT NOT NULL,
            session_id       TEXT NOT NULL,
            sandbox_id       TEXT NOT NULL UNIQUE,
            wish             TEXT NOT NULL,
            image_digest     TEXT NOT NULL,
            created_ms       INTEGER NOT NULL,
            lease_expires_ms INTEGER NOT NULL,
            state            TEXT NOT NULL CHECK (state IN ('making', 'there', 'going')),
            runtime          TEXT NOT NULL,
            farewell         TEXT NOT NULL,
            PRIMARY KEY (owner, session_id)
        ) STRICT
        """,
        """
        CREATE TABLE processes (
            serial       INTEGER PRIMARY KEY AUTOINCREMENT,
            command_id   TEXT NOT NULL UNIQUE,
            owner        TEXT NOT NULL,
            session_id   TEXT NOT NULL,
            sandbox_id   TEXT NOT NULL,
            number       INTEGER NOT NULL,
            sha256       TEXT NOT NULL,
            argv         TEXT NOT NULL,
            terminal     INTEGER NOT NULL,
            stdin        INTEGER NOT NULL,
            exclusive    INTEGER NOT NULL,
            started_ms   INTEGER NOT NULL,
            wish         TEXT,
            outcome      TEXT,
            detail       TEXT NOT NULL,
            stdin_bytes  INTEGER NOT NULL,
            stdout_bytes INTEGER NOT NULL,
            stderr_bytes INTEGER NOT NULL,
            signalled    INTEGER NOT NULL DEFAULT 0,
            CHECK ((wish IS NULL) = (outcome IS NOT NULL)),
            UNIQUE (sandbox_id, number)
        ) STRICT
        """,
    ),
    (
        "ALTER TABLE sessions ADD COLUMN evidence TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE processes ADD COLUMN receipt TEXT NOT NULL DEFAULT ''",
    ),
)

ADD_SESSION = "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_PROCESS = (
    "INSERT INTO processes (command_id, owner, session_id, sandbox_id, number, sha256, argv, terminal, stdin, "
    "exclusive, started_ms, wish, outcome, detail, stdin_bytes, stdout_bytes, stderr_bytes) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def prepare(connection: sqlite3.Connection) -> None:
    """Set the file's modes and bring it to the newest version. Nothing is synced when it is written (`NORMAL`): it
    survives the death of the process, and with the machine's the sandboxes are gone too."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA secure_delete=ON")  # environments may hold secrets
    newer = "the sessions in the state folder were written by a newer version of fumehood"
    migrate(connection, MIGRATIONS, newer=newer)


def session_row(record: SessionRecord) -> tuple[object, ...]:
    return (
        record.name.owner,
        record.name.session_id,
        record.sandbox_id,
        session_json(record.wish),
        record.image_digest,
        record.created_ms,
        record.lease_expires_ms,
        record.state.value,
        record.runtime,
        record.farewell,
        json.dumps(record.evidence),
    )


def session_record(row: sqlite3.Row) -> SessionRecord:
    return SessionRecord(
        wish=session_of(row["wish"]),
        sandbox_id=row["sandbox_id"],
        image_digest=row["image_digest"],
        created_ms=row["created_ms"],
        lease_expires_ms=row["lease_expires_ms"],
        state=SessionState(row["state"]),
        runtime=row["runtime"],
        farewell=row["farewell"],
        evidence=json.loads(row["evidence"]),
    )


def process_row(record: ProcessRecord) -> tuple[object, ...]:
    return (
        record.command_id,
        record.name.owner,
        record.name.session_id,
        record.sandbox_id,
        record.number,
        record.sha256,
        json.dumps(record.argv),
        int(record.terminal),
        int(record.stdin),
        int(record.exclusive),
        record.started_ms,
        process_json(record.wish) if record.wish is not None else None,
        outcome_json(record.outcome) if record.outcome is not None else None,
        record.detail,
        record.stdin_bytes,
        record.stdout_bytes,
        record.stderr_bytes,
    )


def process_record(row: sqlite3.Row) -> ProcessRecord:
    return ProcessRecord(
        command_id=row["command_id"],
        name=SessionName(row["owner"], row["session_id"]),
        sandbox_id=row["sandbox_id"],
        number=row["number"],
        sha256=row["sha256"],
        argv=tuple(json.loads(row["argv"])),
        terminal=bool(row["terminal"]),
        stdin=bool(row["stdin"]),
        exclusive=bool(row["exclusive"]),
        started_ms=row["started_ms"],
        wish=process_of(row["wish"]) if row["wish"] is not None else None,
        outcome=outcome_of(row["outcome"]) if row["outcome"] is not None else None,
        detail=row["detail"],
        stdin_bytes=row["stdin_bytes"],
        stdout_bytes=row["stdout_bytes"],
        stderr_bytes=row["stderr_bytes"],
        serial=row["serial"],
        signalled=bool(row["signalled"]),
        receipt=row["receipt"],
    )
