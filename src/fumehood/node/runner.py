"""One job, from its acceptance to its stored end.

The order of writes is what makes a job survive the node: its sandbox is in the ledger before the engine is asked to
make it, `running` is in the ledger before the command is sent, and the result is in the ledger before anybody is told
and before the sandbox goes. So a later node always knows which of three things is true: the command was never
sent (start over), it may have been (attach, and let the warden say), or it has ended (replay the answer).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fumehood.errors import (
    CommandRefusedError,
    DeadlineExceededError,
    EngineUnavailableError,
    FumehoodError,
    ImageError,
    LedgerError,
    SandboxError,
    SandboxLostError,
    SandboxNotFoundError,
    WardenProtocolError,
)
from fumehood.images.admission import Admission, AdmittedImage
from fumehood.node import result
from fumehood.node.ledger import JobRecord, JobState, Ledger
from fumehood.node.result import Result
from fumehood.node.telemetry import JobSummary, Telemetry
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.spec import MIB, SANDBOX_USER, WORKSPACE, Command, Limits, SandboxSpec
from fumehood.settings import NodeSettings
from fumehood.wire.worker_api import JobStatus, RunJobRequest

COMMAND_ID = 1
"""A job's only command: the same id in every life of the node, so that the warden can tell it was sent before."""

RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 2.0
"""Shorter than a sandbox lives without its owner: each try attaches again, and so keeps it alive."""

PROTOCOL_ATTEMPTS = 3
OBSERVE_SECONDS = 0.5
GONE_ATTEMPTS = 30

LABEL_CAPABILITY = "fumehood.capability"
LABEL_TASK = "fumehood.task_id"
LABEL_JOB = "fumehood.job_id"


@dataclass(slots=True)
class Job:
    """A job under way in this process."""

    record: JobRecord
    request: RunJobRequest
    recovered: bool
    since: dt.datetime
    sandbox_id: str
    handle: Handle | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    runtime: str | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None


class JobRunner:
    """Runs jobs over a driver, and knows which sandboxes belong to jobs that it runs."""

    def __init__(
        self, driver: Driver, admission: Admission, ledger: Ledger, settings: NodeSettings, telemetry: Telemetry
    ) -> None:
        self._driver = driver
        self._admission = admission
        self._ledger = ledger
        self._settings = settings
        self._telemetry = telemetry
        self.owned: set[str] = set()
        """Sandboxes that a job needs, from before they exist until they are gone. The reconciler spares them."""

    async def run(self, record: JobRecord, *, recovered: bool = False) -> tuple[JobRecord, asyncio.Task[None]]:
        """Bring a job to its stored end. The task ends when nothing of its sandbox is left.

        Raises only while the command was not sent; nothing of the job is left then. Once it may have been sent, this
        goes on until the end is known and stored, whatever fails on the way: an engine that hiccups, a disk that is
        full, a ledger that refuses. The sandbox is kept for as long, because its warden still knows.
        """
        job = self._job(record, recovered)
        self.owned.add(job.sandbox_id)
        capture = Capture(self._settings.output_limit_bytes, self._spool(job.sandbox_id))
        try:
            ended = await self._before(job)
        except asyncio.CancelledError:
            capture.close()  # the node stops: the sandbox goes on and waits for the next one
            raise
        except BaseException:
            await self._cleanup(job, capture)
            raise
        try:
            if ended is None:
                ended = await self._until_known(job, capture)
            done = await self._until_stored(job, ended)
            if ended.response.status is JobStatus.TIMEOUT:
                await self._until_gone(job)  # the contract: gone before the answer
        finally:
            capture.close()
        return done, asyncio.create_task(self._cleanup(job, capture), name=f"cleanup-{job.sandbox_id}")

    def _job(self, record: JobRecord, recovered: bool) -> Job:
        request = RunJobRequest.model_validate_json(record.request_json or "")
        known = record.sandbox_id if record.state is JobState.RUNNING else None
        job = Job(record, request, recovered, _now(), sandbox_id=known or uuid.uuid4().hex)
        if known is not None and record.evidence_json is not None:
            job.evidence = json.loads(record.evidence_json)
        return job

    def _spool(self, sandbox_id: str) -> Path:
        return self._settings.state_dir / "spool" / sandbox_id

    # --- before the command is sent ------------------------------------------------------------------------

    async def _before(self, job: Job) -> Result | None:
        """Everything up to the point of no return; a result where the job ends before it."""
        if job.record.state is JobState.RUNNING:
            return None
        try:
            await self._begin(job)
        except (EngineUnavailableError, DeadlineExceededError) as error:
            self._telemetry.engine_error("start", error)
            raise  # nothing ran, and the node is at fault: the caller may try again
        except ImageError as error:
            await self._record_denial(job, error)
            return result.not_started(job.request, error, job.since)
        except SandboxError as error:
            self._telemetry.engine_error("start", error)
            return result.not_started(job.request, error, job.since)
        return None

    async def _begin(self, job: Job) -> None:
        """Everything before the command is sent."""
        stage = self._telemetry.stage
        with stage("admit"):
            image = await self._admission.admit(job.request.sandbox.image)
        job.evidence = {"admission": image.evidence.to_dict()}
        await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, evidence=json.dumps(job.evidence))
        with stage("prepare"):
            job.handle = await self._driver.prepare(self._spec(job, image))
        with stage("start"):
            await self._driver.start(job.handle)
        await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, job.handle.engine_id)
        await self._ledger.mark_running(job.record.job_id)

    async def _record_denial(self, job: Job, error: ImageError) -> None:
        """Why an image was refused is evidence, too."""
        if error.evidence is not None:
            evidence = json.dumps({"admission": dict(error.evidence)})
            await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, evidence=evidence)

    # --- once it may have been sent ------------------------------------------------------------------------

    async def _until_known(self, job: Job, capture: Capture) -> Result:
        """How the command ended. What stands in the way is tried again: only the sandbox's own end ends this."""
        for attempt in itertools.count():
            try:
                if job.handle is None:
                    job.handle = await self._find(job)
                return await self._command(job, job.handle, capture)
            except (SandboxLostError, SandboxNotFoundError) as error:
                self._telemetry.engine_error("run", error)
                gone = isinstance(error, SandboxNotFoundError) or error.engine_lost or job.recovered
                known = SandboxLostError(error.detail, engine_lost=gone)
                return result.lost(job.request, known, capture, job.record.accepted_at)
            except (WardenProtocolError, CommandRefusedError) as error:
                self._report("job.unclear", job, error)
                if attempt >= PROTOCOL_ATTEMPTS:
                    return result.lost(job.request, SandboxLostError(error.detail), capture, job.record.accepted_at)
            except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox still knows how the command ended
                self._report("job.interrupted", job, error)
            await asyncio.sleep(pause_seconds(attempt))
        raise AssertionError("unreachable")

    async def _find(self, job: Job) -> Handle:
        """The sandbox of a command that an earlier life of this node may have sent."""
        found = await self._driver.list({LABEL_JOB: job.record.job_id})
        for handle in found:
            if handle.sandbox_id == job.sandbox_id:
                return handle
        raise SandboxLostError("the sandbox is gone", engine_lost=True)

    async def _command(self, job: Job, handle: Handle, capture: Capture) -> Result:
        command = command_of(job.request, job.record.effective_timeout_seconds)
        observing = asyncio.create_task(self._observe(job, handle), name="observe")
        try:
            with self._telemetry.stage("run"):
                outcome = await self._driver.run(handle, command, capture, command_id=COMMAND_ID)
            await asyncio.wait({observing}, timeout=OBSERVE_SECONDS)
        finally:
            observing.cancel()
        job.stdout_bytes = outcome.stdout.total_bytes if outcome.stdout else None
        job.stderr_bytes = outcome.stderr.total_bytes if outcome.stderr else None
        return result.finished(job.request, outcome, capture)

    def _report(self, event: str, job: Job, error: Exception) -> None:
        code = error.code if isinstance(error, FumehoodError) else type(error).__name__
        self._telemetry.log.warning(event, job_id=job.record.job_id, code=code)

    async def _observe(self, job: Job, handle: Handle) -> None:
        """Put what is in force on the sandbox beside what was decided about its image. Never at the job's cost."""
        with contextlib.suppress(FumehoodError):
            isolation = (await self._driver.inspect(handle)).isolation
            if isolation is not None:
                job.runtime = isolation.runtime
                evidence = {**job.evidence, "isolation": asdict(isolation)}
                await self._ledger.record_sandbox(
                    job.record.job_id, job.sandbox_id, evidence=json.dumps(evidence), runtime=isolation.runtime
                )

    def _spec(self, job: Job, image: AdmittedImage) -> SandboxSpec:
        settings = self._settings
        return SandboxSpec(
            sandbox_id=job.sandbox_id,
            image=image,
            limits=limits_of(settings),
            user=SANDBOX_USER if settings.run_as == "sandbox" else None,
            read_only_root=settings.read_only_root,
            labels={
                LABEL_CAPABILITY: "worker-api",
                LABEL_TASK: job.record.task_id,
                LABEL_JOB: job.record.job_id,
            },
        )

    # --- the end -------------------------------------------------------------------------------------------

    async def _until_stored(self, job: Job, ended: Result) -> JobRecord:
        """A result that is not on the disk is not given. The ledger may be out of reach for a while: a full disk."""
        response = ended.response.model_dump_json(exclude_none=True)
        for attempt in itertools.count():
            try:
                with self._telemetry.stage("store"):
                    done = await self._ledger.finish(job.record.job_id, response, ended.exit_reason)
            except LedgerError as error:
                self._report("job.not_stored", job, error)
                await asyncio.sleep(pause_seconds(attempt))
            else:
                self._telemetry.job_finished(_summary(job, ended))
                return done
        raise AssertionError("unreachable")

    async def _until_gone(self, job: Job) -> None:
        """Wait for the removal. The processes are gone already, by the warden's word; the container should be too."""
        for attempt in range(GONE_ATTEMPTS):
            if await self._destroy(job):
                return
            await asyncio.sleep(pause_seconds(attempt))

    async def _cleanup(self, job: Job, capture: Capture) -> None:
        """Leave nothing behind. What cannot be removed now belongs to the reconciler, here or in the next life."""
        try:
            await self._destroy(job)
            await asyncio.to_thread(capture.discard)
        finally:
            self.owned.discard(job.sandbox_id)

    async def _destroy(self, job: Job) -> bool:
        if job.handle is None:
            return True
        try:
            with self._telemetry.stage("destroy"):
                await self._driver.destroy(job.handle)
        except SandboxError as error:
            self._telemetry.engine_error("destroy", error)
            return False
        return True


def pause_seconds(attempt: int) -> float:
    """Before the next try. A disk may stay full for days: the exponent is bounded, or the power would overflow."""
    return min(RETRY_SECONDS * 2.0 ** min(attempt, 16), LONGEST_RETRY_SECONDS)


def _summary(job: Job, ended: Result) -> JobSummary:
    response = ended.response
    return JobSummary(
        job_id=job.record.job_id,
        task_id=job.record.task_id,
        status=response.status,
        started_at=response.started_at,
        ended_at=response.ended_at,
        exit_code=response.exit_code,
        exit_reason=ended.exit_reason,
        sandbox_id=job.sandbox_id,
        image_digest=job.evidence.get("admission", {}).get("resolved_digest"),
        runtime=job.runtime or job.record.runtime,
        stdout_bytes=job.stdout_bytes,
        stderr_bytes=job.stderr_bytes,
        queued_seconds=(job.since - job.record.accepted_at).total_seconds(),
        recovered=job.recovered,
    )


def command_of(request: RunJobRequest, timeout_seconds: int) -> Command:
    """The request's command in its environment: the request's own first, then what it cannot override."""
    env = {
        **request.sandbox.env,
        "HOME": WORKSPACE,
        "CYNODE_TASK_ID": str(request.task_id),
        "CYNODE_JOB_ID": str(request.job_id),
        "CYNODE_WORKSPACE_DIR": WORKSPACE,
    }
    return Command(argv=request.sandbox.command, env=env, timeout_ms=timeout_seconds * 1000)


def limits_of(settings: NodeSettings) -> Limits:
    return Limits(
        memory_bytes=settings.memory_mib * MIB,
        cpu_millis=settings.cpu_millis,
        pids=settings.pids,
        file_bytes=settings.workspace_mib * MIB,
        workspace_bytes=settings.workspace_mib * MIB,
        tmp_bytes=settings.tmp_mib * MIB,
    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
