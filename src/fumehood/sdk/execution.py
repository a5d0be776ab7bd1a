"""One task from its lease to its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from opentelemetry.trace import Span, TracerProvider

from fumehood.broker import values
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker
from fumehood.broker.shield import shielded
from fumehood.errors import BlobNotFoundError, BrokerUnavailableError, FumehoodError
from fumehood.sdk import calling, tracing
from fumehood.sdk.calling import Handler, Outcome
from fumehood.sdk.hold import Hold
from fumehood.sdk.task import Continue, Ending, Pause, SyncTask, Task, TaskFailed
from fumehood.wire import blobref, strict_json

_log = logging.getLogger("fumehood.worker")

LONGEST_MESSAGE = 2048
LONGEST_CODE = 128


@dataclass(frozen=True, slots=True)
class Office:
    """What all executions of a worker share."""

    broker: Broker
    handouts: Handouts
    worker: str
    tracer_provider: TracerProvider | None = None
    is_cut_off: Callable[[], bool] = lambda: False
    """Whether the connection was ended for good, by the broker: nothing brings it back."""


class Execution:
    """`run` it as a task of its own. Cancelling that gives the task back without waiting for the handler."""

    def __init__(self, office: Office, leased: Leased, handler: Handler) -> None:
        self._office = office
        self._leased = leased
        self._handler = handler
        self._hold = Hold(office.handouts, leased.lease, on_lost=self._cancel)
        self._work: asyncio.Future[Outcome] | None = None
        self._began = time.monotonic()
        self.cancelled = False
        """The handler's outcome, if there will be one, is thrown away."""

    # --- for the handler -----------------------------------------------------------------------------------
    # Each in a task of its own: a handler that was cancelled may still want to save, and the broker's connection
    # refuses to work for a task that has been.

    async def save(self, data: Any) -> None:
        await asyncio.create_task(self._hold.save(data))

    async def heartbeat(self) -> None:
        await asyncio.create_task(self._hold.extend())

    async def signal(self, name: str, data: Any) -> None:
        await asyncio.create_task(self._hold.signal(name, data))

    # --- for the worker ------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """The worker goes away: stop, and let somebody else have the task."""
        self._cancel()

    def abandon(self) -> None:
        """The worker does not wait any longer, neither for the handler nor for a broker that is away."""
        self._hold.hurry = True

    def _cancel(self) -> None:
        if self._work is not None and self._work.done():
            return
        self.cancelled = True
        if isinstance(self._work, asyncio.Task):
            self._work.cancel()

    async def run(self) -> None:
        keeper = asyncio.create_task(self._hold.keep())
        try:
            await self._run()
        except asyncio.CancelledError:
            self.cancelled = True
            await shielded(self._hold.release())
            raise
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})

    async def _run(self) -> None:
        kind = Task if calling.is_async(self._handler) else SyncTask
        task = kind(self._leased.task, self._leased.lease.task_type, self._leased.headers, self)
        with tracing.task_span(task, self._office.worker, self._office.tracer_provider) as span:
            try:
                task.input = await values.inline(task.input, self._office.broker.blobs())
            except BrokerUnavailableError:
                self.cancelled = True
            except BlobNotFoundError as error:  # a replica may be late: another worker can do better
                await self._end(TaskFailed(error.code, error.detail, retryable=True), span)
                return
            except FumehoodError as error:
                await self._end(_failed(error), span)
                return
            outcome = await self._call(task)
            if self.cancelled:
                await self._thrown_away()
            else:
                await self._end(_ending(outcome), span)

    async def _call(self, task: Task | SyncTask) -> Outcome:
        if self.cancelled:
            return Outcome()
        if isinstance(task, Task):
            self._work = asyncio.create_task(
                calling.in_loop(cast(Callable[[Task], Awaitable[Any]], self._handler), task)
            )
        else:
            self._work = calling.in_thread(cast(Callable[[SyncTask], Any], self._handler), task)
        await asyncio.wait({self._work})
        return Outcome(error=asyncio.CancelledError()) if self._work.cancelled() else self._work.result()

    async def _thrown_away(self) -> None:
        if not self._hold.lost:
            await shielded(self._hold.release())
        self._tell("lost" if self._hold.lost else "given_back")

    async def _end(self, ending: Ending | Outcome, span: Span) -> None:
        """The one way out for every answer: once begun, it is said to its end."""
        if isinstance(ending, TaskFailed):
            tracing.mark_failed(span, ending.code)
        traceparent = tracing.traceparent_of(span)
        try:
            heard = await shielded(self._answer(ending, traceparent))
        except FumehoodError as error:  # too large, or refused: the run must hear at least that
            ending = _failed(error)
            heard = await shielded(self._answer(ending, traceparent))
        self._tell(_name(ending) if heard else "lost", ending)

    async def _answer(self, ending: Ending | Outcome, traceparent: str | None) -> bool:
        handouts = self._office.handouts

        async def send(lease: Lease) -> None:
            match ending:
                case Outcome(value=output):
                    await handouts.complete(lease, output, traceparent=traceparent)
                case TaskFailed():
                    await handouts.fail(lease, _error(ending), traceparent=traceparent)
                case Pause():
                    await handouts.pause(lease, ending.duration_ms, ending.checkpoint, traceparent=traceparent)
                case Continue():
                    await handouts.proceed(lease, ending.said, traceparent=traceparent)

        return await self._hold.answer(send)

    def _tell(self, outcome: str, ending: Ending | Outcome | None = None) -> None:
        """The one line for each task. A handler's exception is shown here, to whoever runs the worker, and only its
        class and text go to the run."""
        task, lease = self._leased.task, self._leased.lease
        facts: dict[str, Any] = {
            "task_type": lease.task_type,
            "run_id": task.run_id,
            "step_id": task.step_id,
            "attempt": task.attempt,
            "iteration": task.iteration,
            "outcome": outcome,
            "seconds": round(time.monotonic() - self._began, 3),
        }
        failed = isinstance(ending, TaskFailed)
        cause = ending.__cause__ if isinstance(ending, TaskFailed) else None
        _log.log(logging.WARNING if failed else logging.INFO, "task_ended", exc_info=cause, extra=facts)


def _ending(outcome: Outcome) -> Ending | Outcome:
    """What a handler's outcome means, made of nothing that JSON cannot carry."""
    said = outcome.error if outcome.error is not None else outcome.value
    match said:
        case TaskFailed():
            return said
        case Pause():
            return _unsayable(said.checkpoint, "checkpoint") or said
        case Continue():
            return _unsayable(said.said, "continuation") or said
        case BaseException() if outcome.error is not None:
            failed = TaskFailed(type(said).__name__, _text(said))
            failed.__cause__ = said
            return failed
    return _unsayable(said, "output") or outcome


def _unsayable(value: Any, what: str) -> TaskFailed | None:
    try:
        blobref.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        failed = TaskFailed(f"invalid_{what}", f"the {what} cannot be written as JSON", retryable=False)
        failed.__cause__ = error
        return failed
    if not strict_json.is_flat(value):
        return TaskFailed(f"invalid_{what}", f"the {what} is nested too deeply", retryable=False)
    if blobref.mentions_blob(value):
        return TaskFailed(f"invalid_{what}", f"the {what} mentions `{blobref.KEY}`, which is reserved", retryable=False)
    return None


def _failed(error: FumehoodError) -> TaskFailed:
    return TaskFailed(error.code, error.detail, retryable=error.retryable)


def _error(failed: TaskFailed) -> Mapping[str, Any]:
    said = {"code": _bounded(failed.code, LONGEST_CODE) or "failed", "message": _bounded(failed.message)}
    return said if failed.retryable is None else {**said, "retryable": failed.retryable}


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a handler's exception is anybody's code
        return ""


def _bounded(text: object, longest: int = LONGEST_MESSAGE) -> str:
    return str(text)[:longest].encode("utf-8", "replace").decode()


def _name(ending: Ending | Outcome) -> str:
    return {TaskFailed: "failed", Pause: "paused", Continue: "continued"}.get(type(ending), "completed")
