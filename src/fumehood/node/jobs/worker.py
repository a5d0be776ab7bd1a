"""A provider's loop: executions of jobs from the queue, each leased, done once, and answered with a receipt.

Nothing of an execution outlives this process. Where it dies, the lease runs out, and the engine has the execution done
again; where the lease is lost, whatever runs is cancelled: its answer would not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from fumehood.broker import values
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    BrokerError,
    FumehoodError,
    JobFailedError,
    LeaseLostError,
    PayloadTooLargeError,
)
from fumehood.jobs.base import Handler
from fumehood.jobs.registry import Registry
from fumehood.node.hold import Hold, Lost
from fumehood.node.jobs.execution import Asked, perform
from fumehood.verify.dsse import SigningKey
from fumehood.wire.jobs import JobAnswer
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sealed import job_task

PULL_SECONDS = 2.0
"""At most. Each pull has another length, so that providers take turns at the head of the broker's queue of pulls."""
LONGEST_TAKE = 30.0
"""Beyond that: nobody waits for a broker that does not even say that it is away."""
RETRY_SECONDS = 1.0
LEASE_SECONDS = 15
"""So soon an execution is done again elsewhere whose provider died. That the first may still run harms nobody: what it
says does not count, and its sandbox ends by itself."""
CANCEL_SECONDS = 60.0
"""What a handler has for tidying up. One that takes longer is left to itself."""
LARGEST_INPUT = 32 * 1024 * 1024
LONGEST_MESSAGE = 2000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the loop works with."""

    worker_id: str
    broker: Broker
    registry: Registry
    handlers: Mapping[str, Handler[Any, Any]]
    """By job type: what is taken."""
    key: Callable[[], SigningKey]
    """The one to sign with now: it may be rotated while we run."""
    at_once: int = 1
    is_wanted: Callable[[], bool] = lambda: True
    """False: nothing more is taken for now."""


class JobWorker:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._handouts = Handouts(parts.broker)
        self._free = asyncio.Semaphore(parts.at_once)
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    @property
    def task_types(self) -> list[str]:
        return [job_task(name) for name in self._parts.handlers]

    @property
    def is_open(self) -> bool:
        """Until it drains. One that was set aside is seen all the same: somebody may want to take it back."""
        return not self._draining

    # --- taking --------------------------------------------------------------------------------------------

    async def forever(self) -> None:
        """Until cancelled, or drained."""
        while not self._draining:
            try:
                await self._take()
            except Exception as error:  # noqa: BLE001 - what runs must not be let go because nothing can be taken
                _log.warning("jobs.not_taken", code=_code(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _take(self) -> None:
        """One at a time: what is fetched ahead here could be done by another provider, and may have to be."""
        if not self._parts.is_wanted():
            await asyncio.sleep(RETRY_SECONDS)
            return
        await self._free.acquire()
        taken: list[Leased] = []
        try:
            if not self._draining:
                async with asyncio.timeout(PULL_SECONDS + LONGEST_TAKE):
                    taken = await self._handouts.take(
                        self.task_types,
                        max_tasks=1,
                        timeout=PULL_SECONDS * random.uniform(0.5, 1.0),
                        worker_id=self._parts.worker_id,
                        lease_seconds=LEASE_SECONDS,
                    )
        finally:
            if not taken:
                self._free.release()
        for leased in taken:
            if self._draining:
                self._free.release()
                await self._release(leased.lease)
            else:
                self._spawn(self._serve(leased), leased.lease.task_id)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"job-{name}")
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()
        if not self._tasks:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job.failed", task=task.get_name(), code=_code(error))

    async def drain(self, seconds: float) -> bool:
        """Take nothing more and wait for what runs; what is not done by then is given back to others. False: something
        was."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            await self.close()
            return False
        return True

    async def close(self) -> None:
        """Cancel what runs, and give it back."""
        self._draining = True
        await asyncio.sleep(0)  # one that is cancelled before its first step would give nothing back
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- an execution --------------------------------------------------------------------------------------

    async def _serve(self, leased: Leased) -> None:
        """Answer it, for as long as it is ours to answer."""
        hold = Hold(self._handouts, leased.lease, _nobody)
        hold.begin()
        answered = False
        try:
            async with hold.kept():
                said = await self._until_done(leased.task, hold)
                answered = said is not None and await self._say(hold, said)
        finally:
            if not answered and not hold.over.done():
                await asyncio.shield(self._release(hold.lease))

    async def _until_done(self, payload: TaskPayload, hold: Hold) -> JobAnswer | dict[str, Any] | None:
        """What came of it: an answer, an error, or nothing since nobody wants it any more."""
        doing = asyncio.create_task(self._done(payload, hold))
        either: set[asyncio.Future[Any]] = {doing, hold.lost}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not doing.done():
                await _cancelled(doing)
        if hold.lost.done() and (hold.lost.result() is not Lost.SILENT or doing.cancelled()):
            _log.warning("job.let_go", run_id=payload.run_id, step_id=payload.step_id, why=hold.lost.result().value)
            return None
        return None if doing.cancelled() else doing.result()

    async def _done(self, payload: TaskPayload, hold: Hold) -> JobAnswer | dict[str, Any]:
        log = _log.bind(run_id=payload.run_id, step_id=payload.step_id, attempt=payload.attempt)
        try:
            asked = await asyncio.to_thread(Asked.read, self._parts.registry, await self._whole(payload))
            handler = self._parts.handlers.get(asked.type.name)
            if handler is None:
                raise JobFailedError("not_served", "this provider does not serve that job type")
            answer = await perform(asked, handler, payload, self._parts.worker_id, self._parts.key)
        except JobFailedError as error:
            log.info("job.refused", code=error.reason, again=error.again)
            return _failure(error.reason, error.detail, again=error.again)
        except BrokerError as error:
            log.warning("job.not_read", code=error.code)
            return _failure("provider_error", "the provider could not read the task", again=True)
        except Exception as error:  # a handler's fault is an answer, and takes no other execution along
            log.exception("job.handler_failed", error=type(error).__name__)
            return _failure("provider_error", f"the provider failed: {type(error).__name__}", again=True)
        log.info("job.done", job_type=asked.type.name, ms=answer.response["provenance"].get("duration_ms"))
        return answer

    async def _whole(self, payload: TaskPayload) -> TaskPayload:
        try:
            given = await values.inline(payload.input, self._parts.broker.blobs(), limit=LARGEST_INPUT)
        except (PayloadTooLargeError, BlobCorruptError, BlobNotFoundError) as error:
            raise JobFailedError("unreadable_task", f"this provider cannot read the task: {error.detail}") from None
        return payload.model_copy(update={"input": given})

    async def _say(self, hold: Hold, said: JobAnswer | dict[str, Any]) -> bool:
        """Until it was heard; False where it is not ours to say any more."""
        while not hold.over.done():
            try:
                if isinstance(said, JobAnswer):
                    await self._handouts.complete(hold.lease, said.model_dump(mode="json"))
                else:
                    await self._handouts.fail(hold.lease, said)
            except LeaseLostError:
                return False
            except BrokerError as error:
                _log.warning("job.not_heard", run_id=hold.lease.run_id, code=error.code)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True
        return False

    async def _release(self, lease: Lease) -> None:
        """Somebody else may have it at once."""
        with contextlib.suppress(BrokerError, LeaseLostError, TimeoutError):
            async with asyncio.timeout(PULL_SECONDS):
                await self._handouts.release(lease)


async def _cancelled(doing: asyncio.Task[Any]) -> None:
    """A handler may have a sandbox to remove first."""
    doing.cancel()
    _, left = await asyncio.wait({doing}, timeout=CANCEL_SECONDS)
    if left:
        _log.error("job.handler_stuck", seconds=CANCEL_SECONDS)


def _failure(code: str, message: str, *, again: bool) -> dict[str, Any]:
    return {"code": code, "message": message[:LONGEST_MESSAGE], "retryable": again}


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, FumehoodError) else type(error).__name__


def _nobody(_: Lease) -> None:
    """Told of renewals that nobody need remember."""
