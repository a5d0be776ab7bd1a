"""The node's memory of its jobs: one SQLite file, so that a `job_id` has one truthful answer across restarts.

Rules that the rest of the node stands on:

- What a call returned is on the disk: `accept`, `mark_running` and `finish` sync it (`synchronous=FULL`), so that not
  even a power cut makes a job run twice. The steps between survive the death of the process.
- A finished job stays as it is: the second `finish` returns the first one's record.
- Accepting is one atomic insert, never check-then-act.

All statements run on one thread of the ledger's own, in the order of the calls (`storage/database.py`). A request may
hold secrets in its environment: the file is its owner's alone, and a request is dropped when its answer is known (a
task's: when it was given).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

from fumehood.errors import ConflictError, NotFoundError
from fumehood.node import ledger_schema
from fumehood.node.ledger_schema import Accepted, JobKind, JobRecord, JobState, NewJob, to_record, to_text
from fumehood.storage.database import Database

__all__ = ["Accepted", "JobKind", "JobRecord", "JobState", "Ledger", "NewJob"]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Ledger:
    """Use `await Ledger.open(path)`, and `close()` at the end."""

    def __init__(self, database: Database, *, clock: Callable[[], dt.datetime] = _now) -> None:
        self._database = database
        self._call = database.call
        self._clock = clock
        self._durable: bool | None = None

    @classmethod
    async def open(cls, path: Path, *, clock: Callable[[], dt.datetime] = _now) -> Ledger:
        """Open or make the file, and bring it to this version's schema."""
        return cls(await Database.open(path, "the node's ledger", ledger_schema.prepare), clock=clock)

    async def close(self) -> None:
        """Finish what was asked for and let go of the file. Closing twice is harmless."""
        await self._database.close()

    async def accept(self, job: NewJob) -> Accepted:
        """Record a job before anything of it happens, or find it. `ConflictError` when it was another job's id."""
        accepted = await self._call(self._accept, job)
        if accepted.record.body_sha256 != job.body_sha256:
            raise ConflictError(
                f"job_id {job.job_id} was used before with another request; a new job needs a new job_id"
            )
        return accepted

    async def get(self, job_id: str) -> JobRecord | None:
        return await self._call(self._get, job_id)

    async def record_sandbox(
        self, job_id: str, sandbox_id: str, *, evidence: str | None = None, runtime: str | None = None
    ) -> JobRecord:
        """Bind a job to its sandbox, or add to what is known of it; what is None stays as it was.

        `ConflictError` for another sandbox once the job runs: a job is never run twice.
        """
        return await self._call(self._record_sandbox, job_id, sandbox_id, evidence, runtime)

    async def mark_running(self, job_id: str) -> JobRecord:
        """From here on the command may have had effects. `ConflictError` when the job has ended."""
        return await self._call(self._mark_running, job_id)

    async def finish(
        self, job_id: str, response_json: str, exit_reason: str | None = None, receipt_json: str | None = None
    ) -> JobRecord:
        """Store a job's end, or return the end that is stored already."""
        return await self._call(self._finish, job_id, response_json, exit_reason, receipt_json)

    async def unfinished(self) -> list[JobRecord]:
        """All jobs of the Worker API without an end, oldest first."""
        return await self._call(self._unfinished)

    async def untold(self) -> list[JobRecord]:
        """All tasks whose answer was not given yet, finished or not, oldest first."""
        return await self._call(self._untold)

    async def mark_told(self, job_id: str) -> None:
        """A task's answer was given, or is not wanted any more."""
        await self._call(self._mark_told, job_id)

    async def withdraw(self, job_id: str) -> bool:
        """Forget a job whose command was never sent; False when there is none, or when it may have been."""
        return await self._call(self._withdraw, job_id)

    async def prune(self, older_than: dt.datetime) -> int:
        """Forget jobs that ended before a moment; how many there were."""
        return await self._call(self._prune, older_than)

    # --- on the ledger's thread ----------------------------------------------------------------------------

    def _write(self, sql: str, values: tuple[object, ...], *, durable: bool) -> int:
        """One statement, one transaction; the number of rows it changed."""
        if durable != self._durable:
            self._database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        return self._database.execute(sql, values).rowcount

    def _get(self, job_id: str) -> JobRecord | None:
        row = self._database.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else to_record(row)

    def _must_get(self, job_id: str) -> JobRecord:
        record = self._get(job_id)
        if record is None:
            raise NotFoundError(f"job_id {job_id} is not in the ledger")
        return record

    def _accept(self, job: NewJob) -> Accepted:
        values = (job.job_id, job.task_id, job.body_sha256, job.request_json, job.effective_timeout_seconds)
        made = self._write(
            "INSERT INTO jobs "
            "(job_id, task_id, body_sha256, request, effective_timeout, kind, lease, accepted_at, state) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'accepted') ON CONFLICT (job_id) DO NOTHING",
            (*values, job.kind.value, job.lease_json, to_text(self._clock())),
            durable=True,
        )
        return Accepted(new=made == 1, record=self._must_get(job.job_id))

    def _record_sandbox(self, job_id: str, sandbox_id: str, evidence: str | None, runtime: str | None) -> JobRecord:
        changed = self._write(
            "UPDATE jobs SET state = CASE state WHEN 'accepted' THEN 'created' ELSE state END, sandbox_id = ?1, "
            "evidence = COALESCE(?2, evidence), runtime = COALESCE(?3, runtime) WHERE job_id = ?4 "
            "AND (state IN ('accepted', 'created') OR (state = 'running' AND sandbox_id = ?1))",
            (sandbox_id, evidence, runtime, job_id),
            durable=False,
        )
        return self._changed(job_id, changed)

    def _mark_running(self, job_id: str) -> JobRecord:
        changed = self._write(
            "UPDATE jobs SET state = 'running' WHERE job_id = ? AND state != 'done'", (job_id,), durable=True
        )
        return self._changed(job_id, changed)

    def _changed(self, job_id: str, changed: int) -> JobRecord:
        record = self._must_get(job_id)
        if not changed:
            raise ConflictError(f"job_id {job_id} is {record.state} in the ledger already")
        return record

    def _finish(self, job_id: str, response_json: str, exit_reason: str | None, receipt_json: str | None) -> JobRecord:
        self._write(
            "UPDATE jobs SET state = 'done', response = ?, exit_reason = ?, receipt = ?, finished_at = ?, "
            "request = CASE kind WHEN 'job' THEN NULL ELSE request END WHERE job_id = ? AND state != 'done'",
            (response_json, exit_reason, receipt_json, to_text(self._clock()), job_id),
            durable=True,
        )
        return self._must_get(job_id)

    def _unfinished(self) -> list[JobRecord]:
        sql = "SELECT * FROM jobs WHERE state != 'done' AND kind = 'job' ORDER BY accepted_at, job_id"
        return [to_record(row) for row in self._database.execute(sql)]

    def _untold(self) -> list[JobRecord]:
        sql = "SELECT * FROM jobs WHERE lease IS NOT NULL ORDER BY accepted_at, job_id"
        return [to_record(row) for row in self._database.execute(sql)]

    def _mark_told(self, job_id: str) -> None:
        """One that never came to an end leaves no record: a task that comes again is another one."""
        self._write("DELETE FROM jobs WHERE job_id = ? AND state != 'done'", (job_id,), durable=False)
        self._write("UPDATE jobs SET lease = NULL, request = NULL WHERE job_id = ?", (job_id,), durable=False)

    def _withdraw(self, job_id: str) -> bool:
        sql = "DELETE FROM jobs WHERE job_id = ? AND state IN ('accepted', 'created')"
        return self._write(sql, (job_id,), durable=True) == 1

    def _prune(self, older_than: dt.datetime) -> int:
        sql = "DELETE FROM jobs WHERE state = 'done' AND finished_at < ?"
        return self._write(sql, (to_text(older_than),), durable=False)
