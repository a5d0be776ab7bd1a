"""Doing what follows from a decision: tasks out, timers set, and what is not wanted any more taken back.

Every effect has an id that is derived from the run's state, so that doing it twice is doing it once; whoever finds a
decision whose effects may not have been done simply does them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import intake, loading, summaries
from fumehood.control.calls import Calls, is_unwanted
from fumehood.control.gates import Gates
from fumehood.control.handing_out import HandingOut
from fumehood.control.together import one_by_one, together
from fumehood.control.workflows import Workflows
from fumehood.engine.desired import TIMEOUT, Effects, Task, Timer, effects, is_former
from fumehood.engine.messages import Message, MessageType
from fumehood.engine.state import RunState, RunStatus, StepState, StepStatus, step_of

ANY = 2**31
GRACE_MS = 60_000
"""How long after its time a timer may still be on its way."""


class Performer:
    def __init__(self, broker: Broker, handouts: Handouts, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._handouts = handouts
        self._now_ms = now_ms
        self._out = HandingOut(broker, handouts, now_ms=now_ms)
        self.calls = Calls(broker, Workflows(broker, now_ms=now_ms), now_ms=now_ms)
        self.gates = Gates(broker)
        self._revisions = summaries.Revisions()

    async def follow(
        self, run_id: str, before: RunState | None, after: RunState, traceparent: str | None = None
    ) -> None:
        """What one decision leads to."""
        todo = effects(before, after)
        await self._begin(run_id, after, todo, traceparent, again=False)
        calls = [self._broker.timers.cancel(run_id, timer.id) for timer in todo.cancel]
        calls += [self._revoke(run_id, task) for task in todo.revoke]
        calls += [self._forget(run_id, name) for name in todo.forget]
        left = [child.run_id for child in todo.stop if is_unwanted(after.steps[child.step], child.run_id)]
        calls += [self.calls.stop(after, child_id) for child_id in left]
        calls += [self.gates.leave(before or after, claim) for claim in todo.leave]
        if before is None or after.status.ended or before.tries != after.tries:
            calls.append(summaries.write(self._broker, after, self._revisions))
        if after.status.ended:
            calls += self._end(run_id, after, todo)
            calls += [self.calls.tell_parent(after), self.calls.go_on(after, traceparent, again=False)]
        await together(calls)

    async def _begin(
        self,
        run_id: str,
        after: RunState,
        todo: Effects,
        traceparent: str | None,
        *,
        again: bool,
    ) -> None:
        """Timers first: whatever else fails, for however long, the run has its deadline."""
        parts: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if todo.set:
            parts.append(lambda: together([self._set(run_id, timer) for timer in todo.set]))
        if todo.call:
            parts.append(
                lambda: together([self.calls.call(after, child, traceparent, again=again) for child in todo.call])
            )
        if todo.ask:
            parts.append(lambda: together([self.gates.ask(after, claim) for claim in todo.ask]))
        if todo.publish:
            parts.append(lambda: self._hand_out(run_id, todo.publish, traceparent, again=again))
        await one_by_one(parts)

    async def restore(self, run_id: str, state: RunState | None, traceparent: str | None = None) -> None:
        """Everything that should be there now, whoever failed to do it before."""
        if state is None:
            return
        left = [(name, _maybe_left(step)) for name, step in state.steps.items()]
        types = {name: step_of(state, name).task_type or "" for name, age in left if age is not None}
        await together(
            [self._handouts.revoke(run_id, name, age, task_type=types[name]) for name, age in left if age is not None]
        )
        await self.conclude(state, traceparent)
        if not state.status.ended:
            pending = [timer.timer_id for timer in await self._broker.timers.pending(run_id)]
            await together([self._broker.timers.cancel(run_id, name) for name in pending if is_former(state, name)])
            await self._begin(run_id, state, effects(None, state), traceparent, again=True)
            return
        await self._broker.bucket(Bucket.CHECKPOINTS).purge(run_id)
        await loading.forget(self._broker, run_id)
        await self._purge(run_id, state, _task_types(state))

    async def conclude(self, state: RunState, traceparent: str | None = None) -> None:
        """What others should know of a run by now, whoever failed to tell them before."""
        await self.calls.stop_all(state)
        await summaries.write(self._broker, state)
        await self.gates.leave_ended(state)
        if state.status.ended:
            await self.calls.tell_parent(state)
            await self.calls.go_on(state, traceparent, again=True)

    async def replace_missing(self, run_id: str, state: RunState, now_ms: int) -> int:
        """What should be there and is not, although nobody who could still do it is left: how much that was."""
        wanted = effects(None, state)
        await together([self.calls.call(state, child, None, again=True) for child in wanted.call])
        await together([self.gates.ask(state, claim) for claim in wanted.ask])
        if not wanted.publish and not wanted.set:
            return 0
        set_already = {timer.timer_id for timer in await self._broker.timers.pending(run_id)}
        tasks = await self._out.missing(run_id, wanted.publish, set_already)
        timers = [timer for timer in wanted.set if timer.id not in set_already and timer.at + GRACE_MS < now_ms]
        timers += [timer for timer in wanted.set if timer.id not in set_already and timer.at > now_ms]
        await together([self._set(run_id, timer) for timer in timers])
        await self._hand_out(run_id, tasks, None, again=False)
        return len(timers) + len(tasks)

    async def release(self, run_id: str, state: RunState | None, messages: Sequence[Message]) -> None:
        """Tasks that had to wait for their turn."""
        if all(message.type is not MessageType.TIMER for message in messages):
            return
        ready = await self._out.released(run_id, state, messages)
        await together([self._out.publish(run_id, task, None) for task in ready])

    async def _purge(self, run_id: str, state: RunState, task_types: set[str]) -> None:
        """Take away what an ended run left in the queue and among the timers. If somebody has taken it up again
        meanwhile, that was the new life's, and is put back."""
        if await self._taken_up(run_id, state) is not None:
            return
        timers = await self._broker.timers.pending(run_id)
        await together([self._broker.timers.cancel(run_id, timer.timer_id) for timer in timers])
        await self._broker.tasks.purge_run(run_id, task_types)
        newer = await self._taken_up(run_id, state)
        if newer is not None:
            await self.restore(run_id, newer)

    async def _taken_up(self, run_id: str, state: RunState) -> RunState | None:
        now, _ = await loading.load(self._broker, run_id)
        return now if now is not None and now.tries != state.tries else None

    # --- one effect each -----------------------------------------------------------------------------------

    async def _hand_out(self, run_id: str, tasks: Sequence[Task], traceparent: str | None, *, again: bool) -> None:
        ready = await self._out.due(run_id, tasks, again=again)
        await together([self._out.publish(run_id, task, traceparent) for task in ready])

    async def _set(self, run_id: str, timer: Timer) -> None:
        message_id = f"{run_id}.timer.{timer.id}"
        body = intake.encode(MessageType.TIMER, dict(timer.body))
        await self._broker.timers.set(run_id, timer.id, timer.at, message_id, body)

    async def _revoke(self, run_id: str, task: Task) -> None:
        await self._out.withdraw(run_id, task)
        await self._handouts.revoke(run_id, task.step, task.age, task_type=task.type)

    async def _forget(self, run_id: str, step: str) -> None:
        await self._broker.bucket(Bucket.CHECKPOINTS).delete(f"{run_id}.{step}")

    def _end(self, run_id: str, state: RunState, todo: Effects) -> list[Coroutine[Any, Any, None]]:
        calls = []
        left = {task.type for task in todo.revoke}  # what was answered was taken off the queue by whoever answered
        left |= {step_of(state, name).task_type or "" for name, step in state.steps.items() if _may_lie_there(step)}
        left.discard("")
        if left:
            calls.append(self._purge(run_id, state, left))
        if state.status is not RunStatus.SUCCEEDED:
            calls.append(self._broker.bucket(Bucket.CHECKPOINTS).purge(run_id))
        if state.events >= loading.EVERY:
            calls.append(loading.forget(self._broker, run_id))
        return calls


def _may_lie_there(step: StepState) -> bool:
    """Whether a task of it may be in the queue although the run went on: nobody has answered it, or one of several."""
    answered = step.status in (StepStatus.COMPLETED, StepStatus.FAILED) and step.override is None
    late = step.failure is not None and step.failure.code == TIMEOUT
    return step.attempt > 1 or (step.attempt == 1 and (late or not answered))


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
    if not step.status.settled or step.override is not None:
        return newest_unwanted(step)
    return (step.attempt - 1, ANY, ANY) if step.attempt > 1 else None


def _task_types(state: RunState) -> set[str]:
    """Of all that it may have handed out, errands beside the graph included."""
    definition = state.definition
    errands = [step.compensate for step in definition.steps] + [definition.on_failure]
    types = {step.task_type for step in definition.steps} | {one.task for one in errands if one is not None}
    return {kind for kind in types if kind}
