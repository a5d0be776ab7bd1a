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
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from fumehood.errors import (
    CommandRefusedError,
    DeadlineExceededError,
    EngineUnavailableError,
    FumehoodError,
    ImageError,
    JobStoppedError,
    LedgerError,
    PolicyDeniedError,
    SandboxError,
    SandboxLostError,
    SandboxNameTakenError,
    SandboxNotFoundError,
    WardenProtocolError,
)
from fumehood.images.admission import Admission
from fumehood.node.ledger import JobRecord, JobState, Ledger
from fumehood.node.telemetry import JobSummary, Telemetry
from fumehood.node.work import LABEL_JOB, Ended, Output, Work
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.spec import Command
from fumehood.sandbox.stopping import stop_command

T = TypeVar("T")

COMMAND_ID = 1
"""A job's only command: the same id in every life of the node, so that the warden can tell it was sent before."""

RETRY_SECONDS = 0.2

NOT_ITS_FAULT = (EngineUnavailableError, DeadlineExceededError, SandboxNameTakenError)
"""What stood in the way of a job's start, and has nothing to do with what it is."""
PROTOCOL_ATTEMPTS = 3
OBSERVE_SECONDS = 0.5
GONE_ATTEMPTS = 30


@dataclass(slots=True)
class Job:
    """A job under way in this process."""

    record: JobRecord
    work: Work
    recovered: bool
    since: dt.datetime
    sandbox_id: str
    stopping: asyncio.Future[float]
    """Somebody wants it ended: after how many seconds by force."""
    stopped: bool = False
    """By us: it was signalled before its end was known."""
    handle: Handle | None = None
    command: Command | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    runtime: str | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None


class JobRunner:
    """Runs jobs over a driver, and knows which sandboxes belong to jobs that it runs."""

    def __init__(
        self,
        driver: Driver,
        admission: Admission,
        ledger: Ledger,
        telemetry: Telemetry,
    ) -> None:
        self._driver = driver
        self._admission = admission
        self._ledger = ledger
        self._telemetry = telemetry
        self._jobs: dict[str, Job] = {}
        self.owned: set[str] = set()
        """Sandboxes that a job needs, from before they exist until they are gone. The reconciler spares them."""

    async def run(
        self, record: JobRecord, work: Work, *, recovered: bool = False
    ) -> tuple[JobRecord, asyncio.Task[None]]:
        """Bring a job to its stored end. The task ends when nothing of its sandbox is left.

        Raises only while the command was not sent (`JobStoppedError` where somebody stopped it); nothing of the job is
        left then. Once it may have been sent, this
        goes on until the end is known and stored, whatever fails on the way: an engine that hiccups, a disk that is
        full, a ledger that refuses. The sandbox is kept for as long, because its warden still knows.
        """
        job = _job(record, work, recovered)
        self.owned.add(job.sandbox_id)
        output = job.work.output(job.sandbox_id)
        self._jobs[record.job_id] = job
        try:
            return await self._run(job, output)
        finally:
            if self._jobs.get(record.job_id) is job:
                del self._jobs[record.job_id]

    async def _run(self, job: Job, output: Output) -> tuple[JobRecord, asyncio.Task[None]]:
        try:
            ended = await _unless_stopped(job, self._before(job))
        except asyncio.CancelledError:
            output.close()  # the node stops: the sandbox goes on and waits for the next one
            raise
        except BaseException:
            await self._cleanup(job, output)
            raise
        try:
            if ended is None:
                ended = await self._until_known(job, output)
            done = await self._until_stored(job, ended)
            if ended.gone_first:
                await self._until_gone(job)
        finally:
            output.close()
        return done, asyncio.create_task(self._cleanup(job, output), name=f"cleanup-{job.sandbox_id}")

    def stop(self, job_id: str, *, grace_seconds: float) -> None:
        """End a job that runs here: by SIGTERM, and after a while by SIGKILL; what its supervisor says then is its end.
        One that has not begun does not begin."""
        job = self._jobs.get(job_id)
        if job is not None and not job.stopping.done():
            job.stopping.set_result(grace_seconds)

    # --- before the command is sent ------------------------------------------------------------------------

    async def _before(self, job: Job) -> Ended | None:
        """Everything up to the point of no return; a result where the job ends before it."""
        if job.record.state is JobState.RUNNING:
            return None
        try:
            await self._begin(job)
        except NOT_ITS_FAULT as error:
            self._telemetry.engine_error("start", error)
            raise  # nothing ran, and the node is at fault: the caller may try again
        except (ImageError, PolicyDeniedError) as error:
            await self._record_denial(job, error)
            return job.work.not_started(error, job.since, job.evidence)
        except SandboxError as error:
            self._telemetry.engine_error("start", error)
            return job.work.not_started(error, job.since, job.evidence)
        return None

    async def _begin(self, job: Job) -> None:
        """Everything before the command is sent."""
        stage = self._telemetry.stage
        if job.recovered:
            await self._remove_leftovers(job)
        with stage("admit"):
            policy = self._admission.policy  # one for both, whatever becomes of its file meanwhile
            job.work.permit(policy)
            image = await self._admission.admit(job.work.image, policy)
        job.evidence = {"admission": image.evidence.to_dict()}
        await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, evidence=json.dumps(job.evidence))
        with stage("prepare"):
            job.handle = await self._driver.prepare(job.work.spec(job.sandbox_id, image))
            job.command = await job.work.command(self._driver, job.handle)
        with stage("start"):
            await self._driver.start(job.handle)
        await self._ledger.mark_running(job.record.job_id)

    async def _remove_leftovers(self, job: Job) -> None:
        """Of an earlier life that came to make a sandbox and not to send its command: its name may be taken by it."""
        for handle in await self._driver.list({LABEL_JOB: job.record.job_id}):
            await self._driver.destroy(handle)

    async def _record_denial(self, job: Job, error: FumehoodError) -> None:
        """Why an image was refused is evidence, too."""
        if isinstance(error, ImageError) and error.evidence is not None:
            job.evidence = {"admission": dict(error.evidence)}
            evidence = json.dumps(job.evidence)
            await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, evidence=evidence)

    # --- once it may have been sent ------------------------------------------------------------------------

    async def _until_known(self, job: Job, output: Output) -> Ended:
        """How the command ended. What stands in the way is tried again: only the sandbox's own end ends this."""
        for attempt in itertools.count():
            try:
                if job.handle is None:
                    job.handle = await self._find(job)
                job.work.began(job.handle)
                return await self._command(job, job.handle, output)
            except (SandboxLostError, SandboxNotFoundError) as error:
                self._telemetry.engine_error("run", error)
                gone = isinstance(error, SandboxNotFoundError) or error.engine_lost or job.recovered
                return job.work.lost(SandboxLostError(error.detail, engine_lost=gone), output, job.evidence)
            except (WardenProtocolError, CommandRefusedError) as error:
                self._report("job.unclear", job, error)
                if attempt >= PROTOCOL_ATTEMPTS:
                    return job.work.lost(SandboxLostError(error.detail), output, job.evidence)
            except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox still knows how the command ended
                self._report("job.interrupted", job, error)
            await asyncio.sleep(pause_seconds(attempt, RETRY_SECONDS))
        raise AssertionError("unreachable")

    async def _find(self, job: Job) -> Handle:
        """The sandbox of a command that an earlier life of this node may have sent."""
        found = await self._driver.list({LABEL_JOB: job.record.job_id})
        for handle in found:
            if handle.sandbox_id == job.sandbox_id:
                return handle
        raise SandboxLostError("the sandbox is gone", engine_lost=True)

    async def _command(self, job: Job, handle: Handle, output: Output) -> Ended:
        command = job.command or await job.work.command(self._driver, handle)
        observing = asyncio.create_task(self._observe(job, handle), name="observe")
        stopping = asyncio.create_task(self._stop_when_told(job, handle), name="stop")
        try:
            with self._telemetry.stage("run"):
                outcome = await self._driver.run(handle, command, output, command_id=COMMAND_ID)
            watching = {observing, stopping} if job.stopping.done() else {observing}
            await asyncio.wait(watching, timeout=OBSERVE_SECONDS)
        finally:
            observing.cancel()
            stopping.cancel()
        job.stdout_bytes = outcome.stdout.total_bytes if outcome.stdout else None
        job.stderr_bytes = outcome.stderr.total_bytes if outcome.stderr else None
        await self._note_traffic(job, handle)
        if job.stopped:
            outcome = replace(outcome, killed_by_owner=True)
        return job.work.finished(outcome, output, job.evidence)

    async def _note_traffic(self, job: Job, handle: Handle) -> None:
        """What the sandbox did on its network, as seen from outside; gone with the sandbox."""
        seen = self._driver.traffic(handle)
        if seen is not None:
            job.evidence = {**job.evidence, "network": dict(seen)}
            with contextlib.suppress(FumehoodError):
                await self._ledger.record_sandbox(job.record.job_id, job.sandbox_id, evidence=json.dumps(job.evidence))

    async def _stop_when_told(self, job: Job, handle: Handle) -> None:
        """A stop that fails is tried again: whoever asked for it waits for the command's end."""
        grace = await asyncio.shield(job.stopping)
        for attempt in itertools.count():
            try:
                job.stopped |= await stop_command(self._driver, handle, COMMAND_ID, grace_seconds=grace)
            except SandboxError as error:
                self._telemetry.engine_error("stop", error)
            else:
                return
            await asyncio.sleep(pause_seconds(attempt, RETRY_SECONDS))

    def _report(self, event: str, job: Job, error: Exception) -> None:
        code = error.code if isinstance(error, FumehoodError) else type(error).__name__
        self._telemetry.log.warning(event, job_id=job.record.job_id, code=code)

    async def _observe(self, job: Job, handle: Handle) -> None:
        """Put what is in force on the sandbox beside what was decided about its image. Never at the job's cost."""
        with contextlib.suppress(FumehoodError):
            isolation = (await self._driver.inspect(handle)).isolation
            if isolation is not None:
                job.runtime = isolation.runtime
                job.evidence = {**job.evidence, "isolation": asdict(isolation)}
                evidence = json.dumps(job.evidence)
                await self._ledger.record_sandbox(
                    job.record.job_id, job.sandbox_id, evidence=evidence, runtime=isolation.runtime
                )

    # --- the end -------------------------------------------------------------------------------------------

    async def _until_stored(self, job: Job, ended: Ended) -> JobRecord:
        """A result that is not on the disk is not given. The ledger may be out of reach for a while: a full disk."""
        for attempt in itertools.count():
            try:
                with self._telemetry.stage("store"):
                    done = await self._ledger.finish(
                        job.record.job_id, ended.answer_json, ended.exit_reason, ended.receipt_json
                    )
            except LedgerError as error:
                self._report("job.not_stored", job, error)
                await asyncio.sleep(pause_seconds(attempt, RETRY_SECONDS))
            else:
                self._telemetry.job_finished(_summary(job, ended))
                return done
        raise AssertionError("unreachable")

    async def _until_gone(self, job: Job) -> None:
        """Wait for the removal. The processes are gone already, by the warden's word; the container should be too."""
        for attempt in range(GONE_ATTEMPTS):
            if await self._destroy(job):
                return
            await asyncio.sleep(pause_seconds(attempt, RETRY_SECONDS))

    async def _cleanup(self, job: Job, output: Output) -> None:
        """Leave nothing behind. What cannot be removed now belongs to the reconciler, here or in the next life."""
        try:
            await self._destroy(job)
            await asyncio.to_thread(output.discard)
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


def _job(record: JobRecord, work: Work, recovered: bool) -> Job:
    known = record.sandbox_id if record.state is JobState.RUNNING else None
    stopping = asyncio.get_running_loop().create_future()
    job = Job(record, work, recovered, _now(), sandbox_id=known or uuid.uuid4().hex, stopping=stopping)
    if known is not None and record.evidence_json is not None:
        job.evidence = json.loads(record.evidence_json)
    return job


async def _unless_stopped(job: Job, work: Coroutine[Any, Any, T]) -> T:
    """What comes before the command, which may take as long as an image takes to be fetched."""
    task = asyncio.create_task(work)
    either: set[asyncio.Future[Any]] = {task, job.stopping}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled() and job.stopping.done():
        raise JobStoppedError("it was stopped before it began")
    return task.result()


def _summary(job: Job, ended: Ended) -> JobSummary:
    return JobSummary(
        job_id=job.record.job_id,
        task_id=job.record.task_id,
        status=ended.status,
        started_at=ended.started_at,
        ended_at=ended.ended_at,
        exit_code=ended.exit_code,
        exit_reason=ended.exit_reason,
        sandbox_id=job.sandbox_id,
        image_digest=job.evidence.get("admission", {}).get("resolved_digest"),
        runtime=job.runtime or job.record.runtime,
        stdout_bytes=job.stdout_bytes,
        stderr_bytes=job.stderr_bytes,
        queued_seconds=(job.since - job.record.accepted_at).total_seconds(),
        recovered=job.recovered,
    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
