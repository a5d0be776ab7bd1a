"""The node: takes jobs, runs each once, remembers their answers, and takes up again what an earlier life left.

Nothing here knows HTTP. `run_job` is what a door calls; `Node.open` is the whole of starting up, in the order that
makes a restart safe: unfinished jobs first (they own their sandboxes from here on), and only then the reconciler.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fumehood.broker.ports import Broker
from fumehood.errors import (
    ConflictError,
    DeadlineExceededError,
    DrainingError,
    EngineUnavailableError,
    FumehoodError,
    NotFoundError,
    OverloadedError,
)
from fumehood.images.admission import Admission
from fumehood.images.reference import ImageReference
from fumehood.node import registration
from fumehood.node.ledger import JobKind, JobRecord, JobState, Ledger, NewJob
from fumehood.node.readiness import Checkable, ReadinessWatch
from fumehood.node.receipts import Receipts
from fumehood.node.reconcile import Reconciler
from fumehood.node.runner import JobRunner
from fumehood.node.service import JobAnswer, Readiness
from fumehood.node.slots import Reservation, Slots
from fumehood.node.tasks import TaskLoop, TaskParts
from fumehood.node.telemetry import Telemetry
from fumehood.node.worker_job import WorkerJob
from fumehood.sandbox.driver import Driver
from fumehood.settings import NodeSettings
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.worker_api import ExitReason, RunJobRequest, RunJobResponse

PRUNE_SECONDS = 300.0
RECOVER_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Where tasks come from, and by which name this node takes them."""

    broker: Broker
    node_id: str
    user: str | None = None
    """The node's at the broker, and its name in the directory of workers; `None`: that is its id."""


OpenQueue = Callable[[], AbstractAsyncContextManager[Queue]]
"""Waits for the broker, and lets go of it in the end."""


class NodeDriver(Driver, Checkable, Protocol):
    """A driver that can also prove that it works."""


class Node:
    """Implements `JobService`. Use `async with Node.open(...)`."""

    def __init__(
        self,
        settings: NodeSettings,
        driver: NodeDriver,
        admission: Admission,
        ledger: Ledger,
        receipts: Receipts,
        telemetry: Telemetry,
        queue: OpenQueue | None = None,
    ) -> None:
        """Without a `queue` there is only the Worker API."""
        self._settings = settings
        self._ledger = ledger
        self._receipts = receipts
        self._telemetry = telemetry
        self._admission = admission
        self._runner = JobRunner(driver, admission, ledger, telemetry)
        self._slots = Slots(settings.effective_slots, settings.queue, queue_wait_seconds=settings.queue_wait_seconds)
        telemetry.metrics.watch_slots(lambda: self._slots.taken, lambda: self._slots.waiting)
        spool = settings.state_dir / "spool"
        self._reconciler = Reconciler(driver, lambda: self._runner.owned, spool, telemetry)
        self._readiness = ReadinessWatch(driver, settings.state_dir, telemetry)
        self._takes_tasks = queue is not None
        self.tasks: TaskLoop | None = None
        """While the broker is connected."""
        self._jobs: dict[str, asyncio.Task[JobRecord]] = {}
        self._arriving: dict[str, asyncio.Event] = {}
        self._leaving = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []

    async def _serve_queue(self, opened: OpenQueue) -> None:
        """Take tasks while this node lives. It serves its other door also where the broker is not there yet."""
        async with opened() as queue:
            parts = TaskParts(
                settings=self._settings,
                node_id=queue.node_id,
                broker=queue.broker,
                runner=self._runner,
                ledger=self._ledger,
                slots=self._slots,
                receipts=self._receipts,
                telemetry=self._telemetry,
                is_ready=lambda: self._readiness.state.ready,
            )
            self.tasks = TaskLoop(parts)
            try:
                await self.tasks.recover()
                me = partial(self._entry, queue)
                async with registration.listed(queue.broker, me, self._takes_more, self._telemetry.log):
                    await self.tasks.forever()
            finally:
                await self.tasks.close()

    def _entry(self, queue: Queue) -> WorkerRegistration:
        slots = self._settings.effective_slots
        me, key = queue.user or queue.node_id, self._receipts.public_key_hex
        return registration.entry(me, queue.node_id, slots, self._admission.policy, key)

    def _takes_more(self) -> bool:
        return self._readiness.state.ready and not self._slots.draining

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: NodeSettings,
        driver: NodeDriver,
        admission: Admission,
        ledger: Ledger,
        receipts: Receipts,
        telemetry: Telemetry,
        queue: OpenQueue | None = None,
    ) -> AsyncIterator[Node]:
        """A node that recovers, cleans up and proves itself until the block ends. Sandboxes outlive it."""
        node = cls(settings, driver, admission, ledger, receipts, telemetry, queue)
        await node._recover()
        loops = [node._reconciler.forever(), node._readiness.forever(), node._prune_forever()]
        if queue is not None:
            loops.append(node._serve_queue(queue))
        for loop in loops:
            node._loops.append(node._spawn(loop))
        try:
            yield node
        finally:
            await node._close()

    # --- the service ---------------------------------------------------------------------------------------

    async def run_job(self, request: RunJobRequest, body_sha256: str) -> JobAnswer:
        """See `JobService.run_job`."""
        job_id = str(request.job_id)
        _check_image(request.sandbox.image)
        async with self._one_at_a_time(job_id):
            known = await self._ledger.get(job_id) or await self._admitted(request, body_sha256)
        if known is None:
            return await self._answer(job_id, replayed=False)
        if known.body_sha256 != body_sha256:
            raise ConflictError(f"job_id {job_id} was used before with another request; a new job needs a new job_id")
        self._telemetry.metrics.replays.inc()
        return await self._answer(job_id, replayed=True)

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, job_id: str) -> AsyncIterator[None]:
        """Callers with the same new job: one takes it, the others wait to join it instead of asking for slots."""
        while (other := self._arriving.get(job_id)) is not None:
            await other.wait()
        mine = self._arriving[job_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._arriving[job_id]
            mine.set()

    async def _admitted(self, request: RunJobRequest, body_sha256: str) -> JobRecord | None:
        """`_admit`, all of it or nothing of it, even if the caller goes away in the middle."""
        admitting = asyncio.create_task(self._admit(request, body_sha256))
        self._background.add(admitting)
        admitting.add_done_callback(self._background.discard)
        return await asyncio.shield(admitting)

    async def _admit(self, request: RunJobRequest, body_sha256: str) -> JobRecord | None:
        """Take a new job and begin it; the record that was there before if somebody else was quicker."""
        try:
            reservation = await self._slots.reserve()
        except OverloadedError as error:
            self._telemetry.metrics.refusals.labels(error.code).inc()
            raise
        try:
            accepted = await self._ledger.accept(self._new_job(request, body_sha256))
        except BaseException:
            reservation.release()
            raise
        if not accepted.new:
            reservation.release()
            return accepted.record
        self._begin(accepted.record, reservation)
        return None

    def _new_job(self, request: RunJobRequest, body_sha256: str) -> NewJob:
        return NewJob(
            job_id=str(request.job_id),
            task_id=str(request.task_id),
            body_sha256=body_sha256,
            request_json=request.model_dump_json(),
            effective_timeout_seconds=self._settings.effective_timeout(request.sandbox.timeout_seconds),
        )

    async def _answer(self, job_id: str, *, replayed: bool) -> JobAnswer:
        """Wait for a job's end. A caller that goes away leaves the job alone."""
        task = self._jobs.get(job_id)
        record = await self._wait(task) if task is not None else await self._settled(job_id)
        if record.response_json is None:
            raise FumehoodError("the job has no answer")
        return JobAnswer(
            response=RunJobResponse.model_validate_json(record.response_json),
            effective_timeout_seconds=record.effective_timeout_seconds,
            exit_reason=record.exit_reason,
            replayed=replayed,
            receipt_key=_key_id(record),
        )

    async def receipt(self, job_id: str) -> bytes:
        """See `JobService.receipt`."""
        record = await self._ledger.get(job_id)
        if record is None or record.kind is not JobKind.JOB:
            raise NotFoundError("there is no such job here: it was never asked for, or is forgotten")
        if not record.done:
            raise NotFoundError("this job has not ended, so that it has no receipt yet")
        if record.receipt_json is None:
            raise NotFoundError("this job ended under a version of fumehood that gave no receipts")
        return record.receipt_json.encode()

    async def _settled(self, job_id: str) -> JobRecord:
        """A job that nobody runs: done, or dropped by an error that could not be stored. Then it is taken up again."""
        record = await self._ledger.get(job_id)
        if record is None:
            raise OverloadedError(f"job_id {job_id} could not be begun: send it again", retry_after_seconds=5)
        if record.done:
            return record
        if job_id not in self._jobs:
            self._begin(record, self._slots.force(), recovered=True)
        return await self._wait(self._jobs[job_id])

    async def _wait(self, task: asyncio.Task[JobRecord]) -> JobRecord:
        """The job's end, or a `DrainingError` when this node leaves before it: the job itself goes on."""
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        if not task.done():
            raise DrainingError("the node is shutting down; the job goes on: ask again", retry_after_seconds=5)
        return task.result()

    def readiness(self) -> Readiness:
        if self._slots.draining:
            return Readiness(False, "the node is shutting down")
        if any(loop.done() for loop in self._loops):
            return Readiness(False, "a part of the node has failed; its log tells which")
        state = self._readiness.state
        return Readiness(True, self._admission.trouble or state.reason) if state.ready else state

    async def drain(self, seconds: float) -> bool:
        """Take no new jobs and wait for those that run; what is not done by then goes on under the next node."""
        self._slots.drain()
        try:
            async with asyncio.timeout(seconds):
                await self._slots.idle()
        except TimeoutError:
            self._leaving.set()
            return False
        return True

    # --- jobs ----------------------------------------------------------------------------------------------

    def _begin(self, record: JobRecord, reservation: Reservation, *, recovered: bool = False) -> None:
        task = asyncio.create_task(self._run(record, reservation, recovered), name=f"job-{record.job_id}")
        self._jobs[record.job_id] = task
        task.add_done_callback(lambda done: self._forget(record.job_id, done))

    def _forget(self, job_id: str, task: asyncio.Task[JobRecord]) -> None:
        if self._jobs.get(job_id) is task:
            del self._jobs[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            code = error.code if isinstance(error, FumehoodError) else type(error).__name__
            self._telemetry.log.error("job.failed", job_id=job_id, code=code)

    async def _run(self, record: JobRecord, reservation: Reservation, recovered: bool) -> JobRecord:
        """The slot is held until nothing of the sandbox is left: what still uses the machine still counts."""
        try:
            done, cleanup = await self._attempt(record, recovered)
        except BaseException:
            reservation.release()
            raise
        if done.exit_reason != ExitReason.NOT_STARTED:
            self._readiness.proven()
        self._background.add(cleanup)
        cleanup.add_done_callback(lambda _: reservation.release())
        cleanup.add_done_callback(self._ended)
        return done

    async def _attempt(self, record: JobRecord, recovered: bool) -> tuple[JobRecord, asyncio.Task[None]]:
        while True:
            try:
                work = WorkerJob(record, self._settings, self._receipts)
                return await self._runner.run(record, work, recovered=recovered)
            except (EngineUnavailableError, DeadlineExceededError):
                if not recovered:
                    await self._ledger.withdraw(record.job_id)  # nothing ran: the same id may come again
                    raise
                await asyncio.sleep(RECOVER_RETRY_SECONDS)
                record = await self._ledger.get(record.job_id) or record

    async def _recover(self) -> None:
        """Take up what an earlier life left. These jobs hold slots beyond the number: they run already."""
        untold = await self._ledger.untold() if self._takes_tasks else []
        running = [record.sandbox_id for record in untold if record.state is JobState.RUNNING]
        self._runner.owned.update(name for name in running if name is not None)  # the task loop goes on with them
        for record in await self._ledger.unfinished():
            self._telemetry.metrics.recovered.labels(record.state).inc()
            self._telemetry.log.info("job.recovered", job_id=record.job_id, state=record.state)
            if record.state is JobState.RUNNING and record.sandbox_id is not None:
                self._runner.owned.add(record.sandbox_id)
            self._begin(record, self._slots.force(), recovered=True)

    # --- background ----------------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._telemetry.log.error("background.failed", task=task.get_name(), error=type(error).__name__)

    async def _prune_forever(self) -> None:
        while True:
            horizon = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self._settings.result_retention_seconds)
            with contextlib.suppress(FumehoodError):
                await self._ledger.prune(horizon)
            await asyncio.sleep(PRUNE_SECONDS)

    async def _close(self) -> None:
        """Let go of everything at once. Running sandboxes keep running and wait for their next owner."""
        tasks = [*self._background, *self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_image(text: str) -> None:
    """A reference that cannot be parsed is a bad request, not a failed job."""
    ImageReference.parse(text)


def _key_id(record: JobRecord) -> str | None:
    """Of the key that the receipt was signed with, which may be an earlier one by now."""
    if record.receipt_json is None:
        return None
    return str(json.loads(record.receipt_json)["signatures"][0]["keyid"])
