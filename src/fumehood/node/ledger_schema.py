"""The ledger's table, its versions, and the values that go in and come out of it."""

from __future__ import annotations

import datetime as dt
import sqlite3
from dataclasses import dataclass
from enum import StrEnum

from fumehood.storage.database import Migrations, migrate

MIGRATIONS: Migrations = (
    (
        """
        CREATE TABLE jobs (
            job_id            TEXT PRIMARY KEY,
            task_id           TEXT NOT NULL,
            body_sha256       TEXT NOT NULL,
            request           TEXT,
            state             TEXT NOT NULL CHECK (state IN ('accepted', 'created', 'running', 'done')),
            sandbox_id        TEXT,
            engine_id         TEXT,
            runtime           TEXT,
            user              TEXT,
            accepted_at       TEXT NOT NULL,
            response          TEXT,
            exit_reason       TEXT,
            effective_timeout INTEGER NOT NULL,
            evidence          TEXT,
            finished_at       TEXT,
            CHECK ((state = 'done') = (response IS NOT NULL AND finished_at IS NOT NULL)),
            CHECK (state = 'done' OR request IS NOT NULL)
        ) STRICT
        """,
        "CREATE INDEX jobs_unfinished ON jobs (accepted_at) WHERE state != 'done'",
        "CREATE INDEX jobs_finished ON jobs (finished_at) WHERE state = 'done'",
    ),
    (
        "ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'job' CHECK (kind IN ('job', 'task'))",
        "ALTER TABLE jobs ADD COLUMN lease TEXT",
        "CREATE INDEX jobs_untold ON jobs (accepted_at) WHERE lease IS NOT NULL",
    ),
    ("ALTER TABLE jobs ADD COLUMN receipt TEXT",),
)
"""The columns `engine_id` and `user` are no longer written."""


class JobState(StrEnum):
    """How far a job is known to have come."""

    ACCEPTED = "accepted"
    """Recorded; nothing was made for it yet, as far as the ledger knows."""
    CREATED = "created"
    """It has a sandbox; its command was not sent."""
    RUNNING = "running"
    """Its command may have been sent: it must never be sent again under another sandbox."""
    DONE = "done"
    """It has its answer, for good."""


class JobKind(StrEnum):
    """Through which door it came."""

    JOB = "job"
    """The Worker API: its caller waits for the answer, and may ask again."""
    TASK = "task"
    """The queue: it has a lease until its answer was given."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it was asked for."""

    job_id: str
    task_id: str
    body_sha256: str
    request_json: str
    effective_timeout_seconds: int
    kind: JobKind = JobKind.JOB
    lease_json: str | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the ledger knows it."""

    job_id: str
    task_id: str
    body_sha256: str
    request_json: str | None
    """None once the job is done; a task's, once its answer was given."""
    state: JobState
    sandbox_id: str | None
    runtime: str | None
    accepted_at: dt.datetime
    response_json: str | None
    exit_reason: str | None
    effective_timeout_seconds: int
    evidence_json: str | None
    finished_at: dt.datetime | None
    kind: JobKind = JobKind.JOB
    lease_json: str | None = None
    """A task's, until its answer was given or is not wanted any more."""
    receipt_json: str | None = None
    """Of a job that is done; a task's is in its answer."""

    @property
    def done(self) -> bool:
        return self.state is JobState.DONE


@dataclass(frozen=True, slots=True)
class Accepted:
    """The record of a job, and whether this very call made it."""

    new: bool
    record: JobRecord


def to_text(moment: dt.datetime) -> str:
    """UTC with a fixed width, so that the order of texts is the order of time."""
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds")


def to_record(row: sqlite3.Row) -> JobRecord:
    return JobRecord(
        job_id=row["job_id"],
        task_id=row["task_id"],
        body_sha256=row["body_sha256"],
        request_json=row["request"],
        state=JobState(row["state"]),
        sandbox_id=row["sandbox_id"],
        runtime=row["runtime"],
        accepted_at=dt.datetime.fromisoformat(row["accepted_at"]),
        response_json=row["response"],
        exit_reason=row["exit_reason"],
        effective_timeout_seconds=row["effective_timeout"],
        evidence_json=row["evidence"],
        finished_at=dt.datetime.fromisoformat(row["finished_at"]) if row["finished_at"] else None,
        kind=JobKind(row["kind"]),
        lease_json=row["lease"],
        receipt_json=row["receipt"],
    )


def prepare(connection: sqlite3.Connection) -> None:
    """Set the file's modes and bring it to the newest version."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")  # requests may hold secrets
    migrate(connection, MIGRATIONS, newer="the ledger in state_dir was written by a newer version of fumehood")
