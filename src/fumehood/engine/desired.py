"""What the world should look like for a state: the tasks that should be out and the timers that should be set.

Effects are the difference between two such pictures. So they need no log of their own: whoever folds the journal can
tell what should be there, put back what is missing, and, since every id is derived from the state, do nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine.definition import ITEM_SEPARATOR
from fumehood.engine.state import RunState, StepState, StepStatus, step_of

DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Task:
    """One step handed out: one attempt, one iteration."""

    step: str
    type: str
    attempt: int
    iteration: int
    input: Any = field(compare=False, hash=False, default=None)
    sandbox: Mapping[str, Any] | None = field(compare=False, hash=False, default=None)

    @property
    def key(self) -> str:
        return f"{self.step}.a{self.attempt}.i{self.iteration}"


@dataclass(frozen=True, slots=True)
class Timer:
    """A message to be sent to the run at a time (ms). The same moment in the run's life always has the same id."""

    id: str
    at: int
    body: Mapping[str, Any] = field(compare=False, hash=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Desired:
    tasks: frozenset[Task] = frozenset()
    timers: frozenset[Timer] = frozenset()


@dataclass(frozen=True, slots=True)
class Effects:
    """What to do after an append. Doing it twice is doing it once."""

    publish: tuple[Task, ...] = ()
    revoke: tuple[Task, ...] = ()
    set: tuple[Timer, ...] = ()
    cancel: tuple[Timer, ...] = ()


def desired(state: RunState | None) -> Desired:
    if state is None or state.status.ended:
        return Desired()
    tasks, timers = set(), set()
    if state.deadline_at is not None:
        timers.add(Timer(DEADLINE, state.deadline_at, {"kind": DEADLINE}))
    for name, step in state.steps.items():
        if step.status.handed_out:
            tasks.add(_task(state, name, step))
        timer = _timer(name, step)
        if timer is not None:
            timers.add(timer)
    return Desired(frozenset(tasks), frozenset(timers))


def effects(before: RunState | None, after: RunState | None) -> Effects:
    """The way from one picture to the other; from `None`, everything that should be there."""
    old, new = desired(before), desired(after)
    return Effects(
        publish=tuple(sorted(new.tasks - old.tasks, key=lambda task: task.key)),
        revoke=tuple(sorted(old.tasks - new.tasks, key=lambda task: task.key)),
        set=tuple(sorted(new.timers - old.timers, key=lambda timer: timer.id)),
        cancel=tuple(sorted(old.timers - new.timers, key=lambda timer: timer.id)),
    )


def _task(state: RunState, name: str, step: StepState) -> Task:
    defined = step_of(state, name)
    return Task(
        step=name,
        type=defined.task_type or "",
        attempt=step.attempt,
        iteration=step.iteration,
        input=step.input,
        sandbox=defined.sandbox.model_dump(mode="json") if defined.sandbox is not None else None,
    )


def _timer(name: str, step: StepState) -> Timer | None:
    body = {"step": name, "attempt": step.attempt, "iteration": step.iteration}
    tag = f"{name.replace(ITEM_SEPARATOR, '_')}_{step.attempt}_{step.iteration}"
    if step.status is StepStatus.WAITING and step.wake_at is not None:
        return Timer(f"retry_{tag}", step.wake_at, {"kind": "retry", **body})
    if step.status is StepStatus.SLEEPING and step.wake_at is not None:
        return Timer(f"sleep_{tag}", step.wake_at, {"kind": "sleep", **body})
    if step.status is StepStatus.RUNNING and step.timeout_at is not None:
        return Timer(f"timeout_{tag}", step.timeout_at, {"kind": "timeout", **body})
    return None
