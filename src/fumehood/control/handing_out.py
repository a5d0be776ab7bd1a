"""Tasks on their way to the queue: at once, or, where their type has a limit, when it is their turn.

A task that has to wait is a timer of its run: it comes back as a message, and is published then, if it is still wanted.
One that comes back without a slot, or too late for it because deciders were away, asks again: so those that were held
up together do not go out together. Who is too late again and again, because clocks differ or deciders lag, may be
twice as late each time: so it goes out in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker
from fumehood.control import intake
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.proofs import Proofs
from fumehood.control.rates import Rates, Slot
from fumehood.control.together import together
from fumehood.engine.desired import Task, desired
from fumehood.engine.messages import Message, MessageType
from fumehood.engine.state import RunState
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sealed import is_sealed

RELEASE = "release"
"""The kind of timer that a task waits in."""


class HandingOut:
    def __init__(self, broker: Broker, handouts: Handouts, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._handouts = handouts
        self._now_ms = now_ms
        self._rates = Rates(broker, now_ms=now_ms)
        self._proofs = Proofs(broker)

    async def due(self, run_id: str, tasks: Sequence[Task], *, again: bool) -> list[Task]:
        """Of these tasks the ones to publish now; the others wait from now on. Where that may have been done before
        (`again`), no slot is used for what waits already, is in the queue, or is worked on."""
        types = dict.fromkeys(task.type for task in tasks)
        limited = {task_type for task_type in types if await self._rates.is_limited(task_type)}
        now = [task for task in tasks if task.type not in limited]
        asking = [task for task in tasks if task.type in limited]
        if again and asking:
            timers = await self._broker.timers.pending(run_id)
            asking = await self.missing(run_id, asking, {timer.timer_id for timer in timers})
        return now + await self._shared_out(run_id, [_Asking(task) for task in asking])

    async def missing(self, run_id: str, tasks: Collection[Task], waiting: Collection[str]) -> list[Task]:
        """Of these tasks those that neither wait for their turn (the run's timers are `waiting`), nor are in the queue,
        nor are worked on."""
        queued = await self._broker.tasks.pending(run_id, {task.type for task in tasks})
        left = [task for task in tasks if timer_id(task) not in waiting and message_id(run_id, task) not in queued]
        return await self._untouched(run_id, left)

    async def released(self, run_id: str, state: RunState | None, messages: Collection[Message]) -> list[Task]:
        """The tasks whose turn it is, of those that came back and are still wanted."""
        came_back, reached = _came_back(state, messages), self._now_ms()
        now = [task for task, turn in came_back if reached <= turn.until_ms]
        late = [_Asking(task, turn.late + turn.taken) for task, turn in came_back if reached > turn.until_ms]
        untouched = set(await self._untouched(run_id, [asking.task for asking in late]))
        return now + await self._shared_out(run_id, [asking for asking in late if asking.task in untouched])

    async def _untouched(self, run_id: str, tasks: Sequence[Task]) -> list[Task]:
        found: set[Task] = set()

        async def look(task: Task) -> None:
            if not await self._handouts.is_cared_for(run_id, task.step, task.age, task_type=task.type):
                found.add(task)

        await together([look(task) for task in tasks])
        return [task for task in tasks if task in found]

    async def _shared_out(self, run_id: str, asking: Sequence[_Asking]) -> list[Task]:
        now: list[Task] = []
        waits = []
        for task_type in dict.fromkeys(one.task.type for one in asking):
            same = [one for one in asking if one.task.type == task_type]
            slots = await self._rates.reserve(task_type, len(same))
            if slots is None:
                now += [one.task for one in same]
                continue
            reached = self._now_ms()
            now += [one.task for one, slot in zip(same, slots, strict=True) if slot.at_ms <= reached]
            waits += [(one, slot) for one, slot in zip(same, slots, strict=True) if slot.at_ms > reached]
        await together([self._wait(run_id, one, slot) for one, slot in waits])
        return now

    async def _wait(self, run_id: str, asking: _Asking, slot: Slot) -> None:
        """The message's id says when: the broker would take a second one within minutes for the first."""
        task = asking.task
        until = slot.at_ms + (slot.patience_ms << asking.late) if slot.taken else 0
        body = {"kind": RELEASE, "step": task.step, "age": list(task.age), "until": until, "late": asking.late}
        name = f"{run_id}.timer.{timer_id(task)}.{slot.at_ms}"
        data = intake.encode(MessageType.TIMER, body)
        await self._broker.timers.set(run_id, timer_id(task), slot.at_ms, name, data)

    async def publish(self, run_id: str, task: Task, traceparent: str | None) -> None:
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
            distinct=task.distinct,
            **_asked(task),
            proof=self._proofs.of(run_id, task.step, task.age) if is_sealed(task.type) else None,
            traceparent=traceparent,
        )
        headers = {"traceparent": traceparent} if traceparent is not None else None
        await self._broker.tasks.publish(task.type, run_id, message_id(run_id, task), payload.encode(), headers=headers)

    async def withdraw(self, run_id: str, task: Task) -> None:
        """A task that nobody wants any more does not wait any longer."""
        if await self._rates.is_limited(task.type):
            await self._broker.timers.cancel(run_id, timer_id(task))


def _asked(task: Task) -> dict[str, Any]:
    """For whom it is, and by whose key, as far as the run knows."""
    if task.asked is None:
        return {}
    return {"tenant": task.asked.get("tenant") or DEFAULT_TENANT, "asked_by": task.asked.get("by")}


@dataclass(frozen=True, slots=True)
class _Asking:
    """A task that needs a slot."""

    task: Task
    late: int = 0
    """How often it had one and came too late for it."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a task that waited brings back."""

    until_ms: int
    """So long its slot is good; 0: it has none."""
    late: int

    @property
    def taken(self) -> bool:
        return self.until_ms > 0


def _came_back(state: RunState | None, messages: Collection[Message]) -> list[tuple[Task, _Turn]]:
    turns = {
        (message.step, tuple(message.body.get("age", ()))): _Turn(
            message.body.get("until", 0), message.body.get("late", 0)
        )
        for message in messages
        if message.type is MessageType.TIMER and message.body.get("kind") == RELEASE
    }
    if state is None or not turns:
        return []
    named = {step for step, _ in turns}
    others = replace(state, steps={name: step for name, step in state.steps.items() if name not in named})
    wanted = sorted(desired(state, beside=others).tasks, key=lambda task: task.key)
    return [(task, turns[task.step, task.age]) for task in wanted if (task.step, task.age) in turns]


def timer_id(task: Task) -> str:
    return f"{RELEASE}_{task.step}_{task.attempt}_{task.iteration}_{task.resumption}"


def message_id(run_id: str, task: Task) -> str:
    """The same for the same task, whoever publishes it."""
    return f"{run_id}.{task.key}"
