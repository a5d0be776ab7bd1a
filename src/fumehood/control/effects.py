"""Doing what follows from a decision: tasks out, timers set, and what is not wanted any more taken back.

Every effect has an id that is derived from the run's state, so that doing it twice is doing it once; whoever finds a
decision whose effects may not have been done simply does them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import intake, loading
from fumehood.engine.desired import Effects, Task, Timer, desired, effects
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus, StepState, step_of
from fumehood.errors import KeyConflictError
from fumehood.wire import blobref
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.times import rfc3339

AT_ONCE = 64
"""Effects of one run under way together: a map hands out thousands of tasks in one decision."""
ANY = 2**31
GRACE_MS = 60_000
"""How long after its time a timer may still be on its way."""


class Performer:
    def __init__(self, broker: Broker, handouts: Handouts) -> None:
        self._broker = broker
        self._handouts = handouts

    async def follow(
        self, run_id: str, before: RunState | None, after: RunState, traceparent: str | None = None
    ) -> None:
        """What one decision leads to."""
        todo = effects(before, after)
        calls = [self._set(run_id, timer) for timer in todo.set]
        calls += [self._publish(run_id, task, traceparent) for task in todo.publish]
        calls += [self._broker.timers.cancel(run_id, timer.id) for timer in todo.cancel]
        calls += [self._revoke(run_id, task) for task in todo.revoke]
        calls += [self._forget(run_id, name) for name in todo.forget]
        if before is None or after.status.ended:
            calls.append(self._summarise(after))
        if after.status.ended:
            calls += self._end(run_id, after, todo)
        await _all(calls)

    async def restore(self, run_id: str, state: RunState | None, traceparent: str | None = None) -> None:
        """Everything that should be there now, whoever failed to do it before."""
        if state is None:
            return
        left = [(name, _maybe_left(step)) for name, step in state.steps.items()]
        await _all([self._handouts.revoke(run_id, name, age) for name, age in left if age is not None])
        if not state.status.ended:
            await self.follow(run_id, None, state, traceparent)
            return
        timers = await self._broker.timers.pending(run_id)
        await _all([self._broker.timers.cancel(run_id, timer.timer_id) for timer in timers])
        await self._broker.tasks.purge_run(run_id, _task_types(state))
        await self._broker.bucket(Bucket.CHECKPOINTS).purge(run_id)
        await loading.forget(self._broker, run_id)
        await self._summarise(state)

    async def replace_missing(self, run_id: str, state: RunState, now_ms: int) -> int:
        """What should be there and is not, although nobody who could still do it is left: how much that was."""
        wanted = desired(state)
        if not wanted.tasks and not wanted.timers:
            return 0
        set_already = {timer.timer_id for timer in await self._broker.timers.pending(run_id)}
        queued = await self._broker.tasks.pending(run_id, {task.type for task in wanted.tasks})
        timers = [timer for timer in wanted.timers if timer.id not in set_already and timer.at + GRACE_MS < now_ms]
        timers += [timer for timer in wanted.timers if timer.id not in set_already and timer.at > now_ms]
        tasks = [task for task in wanted.tasks if message_id(run_id, task) not in queued]
        tasks = [task for task in tasks if not await self._handouts.is_cared_for(run_id, task.step, task.age)]
        await _all([self._set(run_id, timer) for timer in timers])
        await _all([self._publish(run_id, task, None) for task in tasks])
        return len(timers) + len(tasks)

    # --- one effect each -----------------------------------------------------------------------------------

    async def _set(self, run_id: str, timer: Timer) -> None:
        message_id = f"{run_id}.timer.{timer.id}"
        body = intake.encode(MessageType.TIMER, dict(timer.body))
        await self._broker.timers.set(run_id, timer.id, timer.at, message_id, body)

    async def _publish(self, run_id: str, task: Task, traceparent: str | None) -> None:
        payload = TaskPayload(
            task_id=f"{run_id}.{task.step}",
            run_id=run_id,
            step_id=task.step,
            iteration=task.iteration,
            attempt=task.attempt,
            resumption=task.resumption or None,
            timeout_ms=task.timeout_ms,
            input=task.input,
            sandbox=dict(task.sandbox) if task.sandbox is not None else None,
            traceparent=traceparent,
        )
        headers = {"traceparent": traceparent} if traceparent is not None else None
        await self._broker.tasks.publish(task.type, run_id, message_id(run_id, task), payload.encode(), headers=headers)

    async def _revoke(self, run_id: str, task: Task) -> None:
        await self._handouts.revoke(run_id, task.step, task.age)

    async def _forget(self, run_id: str, step: str) -> None:
        await self._broker.bucket(Bucket.CHECKPOINTS).delete(f"{run_id}.{step}")

    def _end(self, run_id: str, state: RunState, todo: Effects) -> list[Coroutine[Any, Any, None]]:
        calls = []
        left = {task.type for task in todo.revoke}  # what was answered was taken off the queue by whoever answered
        left |= {step_of(state, name).task_type or "" for name, step in state.steps.items() if step.attempt > 1}
        if left:
            calls.append(self._broker.tasks.purge_run(run_id, left))
        if state.status is not RunStatus.SUCCEEDED:
            calls.append(self._broker.bucket(Bucket.CHECKPOINTS).purge(run_id))
        if state.events >= loading.EVERY:
            calls.append(loading.forget(self._broker, run_id))
        return calls

    async def _summarise(self, state: RunState) -> None:
        """The run's line in every list of runs: when it begins, and when it has ended."""
        line = {
            "workflow": state.definition.name,
            "definition": state.digest,
            "status": state.status.value,
            "started_at": rfc3339(state.started_at),
            "ended_at": rfc3339(state.ended_at) if state.ended_at is not None else None,
        }
        bucket, data = self._broker.bucket(Bucket.SUMMARIES), blobref.encode(line)
        if state.status.ended:
            await bucket.put(state.run_id, data)
            return
        with contextlib.suppress(KeyConflictError):  # a slower decider must not bring back what has ended
            await bucket.create(state.run_id, data)


def message_id(run_id: str, task: Task) -> str:
    """The same for the same task, whoever publishes it."""
    return f"{run_id}.{task.key}"


def newest_unwanted(step: StepState) -> tuple[int, int, int] | None:
    """The newest hand-out of a step that nobody should be at work on any more."""
    if not step.attempt:
        return None
    if not step.status.handed_out:
        return (step.attempt, step.iteration, step.resumption)
    if step.resumption:
        return (step.attempt, step.iteration, step.resumption - 1)
    if step.iteration:
        return (step.attempt, step.iteration - 1, ANY)
    return (step.attempt - 1, ANY, ANY) if step.attempt > 1 else None


def _maybe_left(step: StepState) -> tuple[int, int, int] | None:
    """Whose lease may have been left. A step that was answered at once has none: its worker saw to that."""
    if not step.status.settled:
        return newest_unwanted(step)
    return (step.attempt - 1, ANY, ANY) if step.attempt > 1 else None


def _task_types(state: RunState) -> set[str]:
    return {step.task_type for step in state.definition.steps if step.task_type}


async def _all(calls: list[Coroutine[Any, Any, Any]]) -> None:
    """All of them, some at a time; the first error ends the rest. Nothing goes on once this has returned."""
    if len(calls) == 1:
        await calls[0]
        return
    waiting = iter(calls)

    async def lane() -> None:
        for call in waiting:
            await call

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(calls))):
                group.create_task(lane())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for call in waiting:
            call.close()
