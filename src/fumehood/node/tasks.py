"""The node's task loop: sandbox tasks from the queue, each leased, run once, and answered.

What a task needs to survive this process is on disk before anything of it happens: the task and its lease in the
ledger, its output beside it. A next life of the node takes up what it finds there, under the same lease, and answers
what was finished and not answered. A lease that was lost meanwhile ends its sandbox instead: by then the engine has
been told that nobody knows how it ended, or does not want it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fumehood.broker import values
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker, KvEntry
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    BrokerError,
    FumehoodError,
    JobStoppedError,
    LeaseLostError,
    LedgerError,
    PayloadTooLargeError,
)
from fumehood.node.answering import Answering
from fumehood.node.hold import Hold, Lost, lease_seconds
from fumehood.node.ledger import JobKind, JobRecord, JobState, Ledger, NewJob
from fumehood.node.log_writer import LogWriter
from fumehood.node.receipts import Receipts
from fumehood.node.runner import NOT_ITS_FAULT, JobRunner
from fumehood.node.sandbox_run import OUTPUT, SandboxRun, container_of, job_id_of
from fumehood.node.slots import Reservation, Slots
from fumehood.node.task_output import TaskOutput
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings
from fumehood.wire.logs import LogStart
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import SANDBOX_TASK, RunReason, SandboxTask

PULL_SECONDS = 2.0
LONGEST_TAKE = 30.0
"""Beyond that: nobody waits for a broker that does not even say that it is away."""
RETRY_SECONDS = 1.0
STOP_GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL, for a run that somebody stops."""
LARGEST_INPUT = 4 * 1024 * 1024
NODE_LOST = {
    "code": RunReason.NODE_LOST.value,
    "message": "the node that had it never answered; nothing is known of how it ended",
    "retryable": True,
}


class _End(Enum):
    """What came of running a task here."""

    DONE = "done"
    SILENT = "silent"
    """We could not be heard, and ended it for that: nobody may rely on how."""
    NOTHING = "nothing"
    """It was stopped before it ran."""
    NOT_BEGUN = "not begun"
    """Something that has nothing to do with it stood in the way."""


@dataclass(frozen=True, slots=True)
class TaskParts:
    """What the loop works with; all of it is the node's."""

    settings: NodeSettings
    node_id: str
    broker: Broker
    runner: JobRunner
    ledger: Ledger
    slots: Slots
    receipts: Receipts
    telemetry: Telemetry
    is_ready: Callable[[], bool]


class TaskLoop:
    def __init__(self, parts: TaskParts) -> None:
        self._parts = parts
        self._handouts = Handouts(parts.broker)
        self._folder = parts.settings.state_dir / OUTPUT
        self._answering = Answering(parts.broker, self._handouts, self._folder)
        self._lease_seconds = lease_seconds(parts.settings.orphan_seconds)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- taking --------------------------------------------------------------------------------------------

    async def forever(self) -> None:
        """Until cancelled. What runs then goes on under the next node."""
        while True:
            try:
                await self._take()
            except Exception as error:  # noqa: BLE001 - what runs must not be let go because nothing can be taken
                code = error.code if isinstance(error, FumehoodError) else type(error).__name__
                self._parts.telemetry.log.warning("tasks.not_taken", code=code)
                await asyncio.sleep(RETRY_SECONDS)

    async def _take(self) -> None:
        """As many as there is room for: what waits here could run elsewhere."""
        room = await self._parts.slots.room()
        if not self._parts.is_ready():
            await asyncio.sleep(RETRY_SECONDS)
            return
        async with asyncio.timeout(PULL_SECONDS + LONGEST_TAKE):
            taken = await self._handouts.take(
                [SANDBOX_TASK],
                max_tasks=room,
                timeout=PULL_SECONDS,
                worker_id=self._parts.node_id,
                lease_seconds=self._lease_seconds,
            )
        for leased in taken:
            if self._parts.slots.draining:
                await self._handouts.release(leased.lease)
            else:
                self._spawn(self._serve(leased, self._parts.slots.force()), leased.lease.task_id)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"task-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            code = error.code if isinstance(error, FumehoodError) else type(error).__name__
            self._parts.telemetry.log.error("task.failed", task=task.get_name(), code=code)

    async def close(self) -> None:
        """Let go of everything. Sandboxes keep running and wait for their next owner."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- a task that came ----------------------------------------------------------------------------------

    async def _serve(self, leased: Leased, reservation: Reservation) -> None:
        """What this node knows of a task counts, however it came again; else only the first to have it runs it."""
        with reservation:
            known = await self._known(leased)
            if known is not None and known.done and known.lease_json is not None:
                await self._give(known, leased.lease)
            elif known is not None or leased.lease.count > 1:
                await self._fail(leased.lease, NODE_LOST)
            else:
                await self._begin(leased)

    async def _known(self, leased: Leased) -> JobRecord | None:
        try:
            return await self._parts.ledger.get(job_id_of(leased.task))
        except LedgerError:
            await self._release(leased.lease)
            raise

    async def _begin(self, leased: Leased) -> None:
        hold = Hold(self._handouts, leased.lease, _nobody)
        try:
            async with hold.kept(new=True):
                record = await self._accepted(leased)
        except (BrokerError, LedgerError) as error:  # nothing ran, and the task is not at fault
            self._parts.telemetry.log.warning("task.not_accepted", task=leased.lease.task_id, code=error.code)
            await self._release(hold.lease)
            return
        if record is not None:
            await self._run(record, hold.lease, recovered=False)

    async def _accepted(self, leased: Leased) -> JobRecord | None:
        """The task as it is kept from here on; `None`: there is nothing to run."""
        try:
            task = await self._whole(leased.task)
        except (PayloadTooLargeError, BlobCorruptError, BlobNotFoundError, ValueError) as error:
            detail = error.detail if isinstance(error, FumehoodError) else "it is none for a sandbox"
            refusal = {"code": "unreadable_task", "message": f"this node cannot read the task: {detail}"}
            await self._fail(leased.lease, {**refusal, "retryable": False})
            return None
        return (await self._parts.ledger.accept(self._new_job(task, leased.lease))).record

    async def _release(self, lease: Lease) -> None:
        """Somebody else may have it, or we again in a while."""
        await asyncio.sleep(RETRY_SECONDS)
        with contextlib.suppress(BrokerError):
            await self._handouts.release(lease)

    async def _whole(self, task: TaskPayload) -> TaskPayload:
        SandboxTask.model_validate(task.sandbox)
        given = await values.inline(task.input, self._parts.broker.blobs(), limit=LARGEST_INPUT)
        return task.model_copy(update={"input": given})

    def _new_job(self, task: TaskPayload, lease: Lease) -> NewJob:
        request = task.model_dump_json(exclude_none=True, exclude={"lease_id", "checkpoint"})
        return NewJob(
            job_id=job_id_of(task),
            task_id=task.task_id,
            body_sha256=hashlib.sha256(request.encode()).hexdigest(),
            request_json=request,
            effective_timeout_seconds=self._parts.settings.effective_timeout(_timeout_seconds(task)),
            kind=JobKind.TASK,
            lease_json=lease.encode().decode(),
        )

    async def _fail(self, lease: Lease, error: dict[str, Any]) -> None:
        """Until it was heard, or is not ours to say any more."""
        hold = Hold(self._handouts, lease, _nobody)
        async with hold.kept():
            await self._say(hold, error)

    async def _say(self, hold: Hold, error: dict[str, Any]) -> None:
        while not hold.over.done():
            try:
                await self._handouts.fail(hold.lease, error)
            except LeaseLostError:
                return
            except BrokerError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    # --- a task that runs ----------------------------------------------------------------------------------

    async def _run(self, record: JobRecord, lease: Lease, *, recovered: bool) -> None:
        """Run it to its stored end, and give the answer, for as long as it is ours to give."""
        parts = self._parts
        work = SandboxRun(record, parts.settings, parts.node_id, parts.receipts)
        hold = Hold(self._handouts, lease, work.note)
        work.on_began = hold.begin
        end = _End.NOTHING
        try:
            async with hold.kept(new=not recovered):
                if not recovered or record.state is JobState.RUNNING or await hold.confirmed:
                    async with self._telling(work) as writers:
                        end, done = await self._until_done(record, work, hold, recovered=recovered)
                    if done is not None:
                        await self._answering.give(done, hold, *writers)
                    elif end is _End.SILENT:
                        await self._say(hold, NODE_LOST)
            await self._forget(record.job_id, work.out)
        finally:
            if work.out is not None:
                work.out.let_go()
        if end is _End.NOT_BEGUN:  # nobody renews it any more, and the ledger has forgotten it
            await self._release(hold.lease)

    async def _until_done(
        self, record: JobRecord, work: SandboxRun, hold: Hold, *, recovered: bool
    ) -> tuple[_End, JobRecord | None]:
        """How it ended for us, and its stored end where there is one to tell."""
        running = asyncio.create_task(self._parts.runner.run(record, work, recovered=recovered))
        either: set[asyncio.Future[Any]] = {running, hold.lost}
        end = _End.DONE
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                end = _End.SILENT if hold.lost.result() is Lost.SILENT else _End.DONE
                polite = hold.lost.result() is Lost.REVOKED
                self._parts.runner.stop(record.job_id, grace_seconds=STOP_GRACE_SECONDS if polite else 0.0)
            done, cleanup = await running
        except JobStoppedError:
            return (_End.NOT_BEGUN if end is _End.SILENT else _End.NOTHING), None
        except NOT_ITS_FAULT:
            return _End.NOT_BEGUN, None
        finally:
            running.cancel()
            await asyncio.wait({running})
        self._spawn_cleanup(cleanup)
        return end, (None if end is _End.SILENT else done)

    def _spawn_cleanup(self, cleanup: asyncio.Task[None]) -> None:
        """The slot is held by it, as long as anything of the sandbox is left."""
        reservation = self._parts.slots.force()
        cleanup.add_done_callback(lambda _: reservation.release())
        self._tasks.add(cleanup)
        cleanup.add_done_callback(self._ended)

    @contextlib.asynccontextmanager
    async def _telling(self, work: SandboxRun) -> AsyncIterator[list[LogWriter]]:
        """Its output goes to the broker as it appears, while the block lasts; the writer is there once it began."""
        writers: list[LogWriter] = []

        async def tell() -> None:
            await work.begun.wait()
            assert work.out is not None
            writers.append(self._answering.writer(work.payload, work.out))
            start = LogStart(
                started_at=dt.datetime.now(dt.UTC), node=self._parts.node_id, container=container_of(work.payload)
            )
            await writers[0].follow(start)

        telling = asyncio.create_task(tell())
        try:
            yield writers
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _give(self, record: JobRecord, lease: Lease) -> None:
        """The answer of a task that was finished before."""
        hold = Hold(self._handouts, lease, _nobody)
        async with hold.kept():
            await self._answering.give(record, hold)
        await self._forget(record.job_id, self._output_of(record))  # it was taken, or others have answered

    def _output_of(self, record: JobRecord) -> TaskOutput | None:
        folder = self._folder / (record.sandbox_id or "-")
        return TaskOutput(folder) if folder.is_dir() else None

    async def _forget(self, job_id: str, output: TaskOutput | None) -> None:
        await self._parts.ledger.mark_told(job_id)
        if output is not None:
            await asyncio.to_thread(output.remove)

    # --- an earlier life -----------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take up what an earlier life left. These tasks hold slots beyond the number: they run already."""
        records = await self._parts.ledger.untold()
        known = {record.sandbox_id for record in records if record.state in (JobState.RUNNING, JobState.DONE)}
        await asyncio.to_thread(self._sweep, known)
        for record in records:
            try:
                lease = self._lease_of(record)
            except (ValueError, AssertionError, OSError) as error:  # it keeps no other from going on
                self._parts.telemetry.log.error("task.unreadable", job_id=record.job_id, error=type(error).__name__)
                continue
            self._parts.telemetry.metrics.recovered.labels(record.state).inc()
            self._parts.telemetry.log.info("task.recovered", job_id=record.job_id, state=record.state)
            self._spawn(self._take_up(record, lease, self._parts.slots.force()), record.job_id)

    async def _take_up(self, record: JobRecord, lease: Lease, reservation: Reservation) -> None:
        with reservation:
            if record.done:
                await self._give(record, lease)
            else:
                await self._run(record, lease, recovered=True)

    def _lease_of(self, record: JobRecord) -> Lease:
        """As it was granted, with the time that is left of it as far as that is known."""
        task = TaskPayload.model_validate_json(record.request_json or "")
        stored = KvEntry(f"{task.run_id}.{task.step_id}", (record.lease_json or "").encode(), 0)
        lease = Lease.decode(stored)
        assert lease is not None, "the ledger's own"
        output = self._output_of(record)
        noted = output.noted_expiry() if output is not None else None
        if output is not None:
            output.let_go()
        return replace(lease, proof=task.proof, expires_ms=lease.expires_ms if noted is None else noted)

    def _sweep(self, known: set[str | None]) -> None:
        """Output that no task needs."""
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)


def _nobody(_: Lease) -> None:
    """Told of renewals that nobody need remember."""


def _timeout_seconds(task: TaskPayload) -> int | None:
    asked = SandboxTask.model_validate(task.sandbox).timeout_ms
    return None if asked is None else -(-asked // 1000)
