"""The tables of the index, and runs as their rows."""

from __future__ import annotations

import json
import sqlite3

from fumehood.control.index_rows import AuditRow, RunRow, encoded

SCHEMA = """
CREATE TABLE runs (
    id            INTEGER PRIMARY KEY,
    run_id        TEXT NOT NULL UNIQUE,
    revision      INTEGER NOT NULL,
    tenant        TEXT NOT NULL,
    workflow      TEXT NOT NULL,
    definition    TEXT NOT NULL,
    status        TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    "by"          TEXT NOT NULL,
    error_code    TEXT,
    error_message TEXT,
    failed_step   TEXT,
    tries         INTEGER NOT NULL,
    parent_run    TEXT,
    parent_step   TEXT,
    schedule      TEXT,
    continued_as  TEXT,
    archived      INTEGER NOT NULL,
    live          INTEGER NOT NULL,
    labels        TEXT NOT NULL,
    outcome       TEXT,
    reason        TEXT,
    exit_code     INTEGER,
    image_ref     TEXT,
    image_digest  TEXT
) STRICT;
CREATE INDEX runs_newest ON runs (tenant, started_at, run_id, status, workflow, ended_at, failed_step);
CREATE INDEX runs_workflow ON runs (tenant, workflow, started_at, run_id, status);
CREATE INDEX runs_status ON runs (tenant, status, started_at, run_id, workflow);
CREATE INDEX runs_dead ON runs (tenant, started_at, run_id, workflow) WHERE status IN ('failed', 'timed_out');
CREATE INDEX runs_parent ON runs (tenant, parent_run, started_at, run_id) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_schedule ON runs (tenant, schedule, started_at, run_id, status) WHERE schedule IS NOT NULL;
CREATE INDEX runs_outcome ON runs (tenant, outcome, started_at, run_id) WHERE outcome IS NOT NULL;
CREATE INDEX runs_image ON runs (tenant, image_digest, started_at, run_id, outcome) WHERE image_digest IS NOT NULL;
CREATE INDEX runs_archivable ON runs (ended_at, run_id) WHERE ended_at IS NOT NULL AND (archived = 0 OR live = 1);
CREATE TABLE labels (
    tenant     TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    run_id     TEXT NOT NULL,
    id         INTEGER NOT NULL,
    PRIMARY KEY (tenant, key, value, started_at, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_run ON labels (id);
CREATE TABLE audit (
    number     INTEGER PRIMARY KEY,
    line_id    TEXT NOT NULL,
    at         INTEGER NOT NULL,
    tenant     TEXT NOT NULL,
    "by"       TEXT NOT NULL,
    action     TEXT NOT NULL,
    target     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    detail     TEXT NOT NULL
) STRICT;
CREATE INDEX audit_tenant ON audit (tenant, number);
CREATE INDEX audit_at ON audit (at);
"""

_COLUMNS = (
    'run_id, revision, tenant, workflow, definition, status, started_at, ended_at, "by", error_code, error_message, '
    "failed_step, tries, parent_run, parent_step, schedule, continued_as, archived, live, labels, "
    "outcome, reason, exit_code, image_ref, image_digest"
)
PUT_RUN = f"INSERT INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * 25)})"
PUT_LABEL = "INSERT INTO labels VALUES (?, ?, ?, ?, ?, ?)"
PUT_AUDIT = "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def run_values(row: RunRow, revision: int) -> tuple[object, ...]:
    return (
        row.run_id,
        revision,
        row.tenant,
        row.workflow,
        row.definition,
        row.status,
        row.started_at,
        row.ended_at,
        row.by,
        row.error_code,
        row.error_message,
        row.failed_step,
        row.tries,
        row.parent_run,
        row.parent_step,
        row.schedule,
        row.continued_as,
        int(row.archived),
        int(row.live),
        encoded(row.labels),
        row.outcome,
        row.reason,
        row.exit_code,
        row.image_ref,
        row.image_digest,
    )


def to_run(row: sqlite3.Row) -> RunRow:
    known = {name: row[name] for name in row.keys() if name not in ("id", "revision")}  # noqa: SIM118 - not a dict
    known |= {"archived": bool(row["archived"]), "live": bool(row["live"]), "labels": json.loads(row["labels"])}
    return RunRow(**known)


def audit_values(row: AuditRow) -> tuple[object, ...]:
    known = (row.number, row.line_id, row.at, row.tenant, row.by, row.action, row.target, row.request_id)
    return (*known, encoded(row.detail))


def to_audit(row: sqlite3.Row) -> AuditRow:
    return AuditRow(**{**dict(row), "detail": json.loads(row["detail"])})
