"""What the world should look like for a state: the tasks that should be out and the timers that should be set.

Effects are the difference between two such pictures. So they need no log of their own: whoever folds the journal can
tell what should be there, put back what is missing, and, since every id is derived from the state, do nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine.state import RunState, StepState, StepStatus, step_of

DEADLINE, TIMEOUT, RETRY, PAUSE, SLEEP = "deadline", "timeout", "retry", "pause", "sleep"
"""Kinds of timers."""
_TAKEN_AWAY = frozenset({StepStatus.CANCELLED, StepStatus.FAILED, StepStatus.WAITING, StepStatus.PAUSED})
_KINDS = {StepStatus.WAITING: RETRY, StepStatus.PAUSED: PAUSE, StepStatus.SLEEPING: SLEEP}


@dataclass(frozen=True, slots=True)
class Task:
    """One step handed out: one attempt, one iteration, one resumption."""

    step: str
    type: str
    attempt: int
    iteration: int
    resumption: int = 0
    timeout_ms: int | None = field(compare=False, hash=False, default=None)
    input: Any = field(compare=False, hash=False, default=None)
    sandbox: Mapping[str, Any] | None = field(compare=False, hash=False, default=None)

    @property
    def age(self) -> tuple[int, int, int]:
        return (self.attempt, self.iteration, self.resumption)

    @property
    def key(self) -> str:
        resumed = f".r{self.resumption}" if self.resumption else ""
        return f"{self.step}.a{self.attempt}.i{self.iteration}{resumed}"


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
    """Taken away from whoever has it: cancelled, failed or paused. Mostly its worker said so itself; but it may not
    have come to say that it is done with it."""
    forget: tuple[str, ...] = ()
    """Completed steps with a checkpoint that nobody needs any more."""
    set: tuple[Timer, ...] = ()
    cancel: tuple[Timer, ...] = ()


def desired(state: RunState | None, beside: RunState | None = None) -> Desired:
    """The picture of a state; with another state `beside` it, only of what differs. States share what did not change
    between them, so that a map's thousands of items cost nothing when one of them moves."""
    if state is None or state.status.ended:
        return Desired()
    known = beside.steps if beside is not None else {}
    tasks, timers = set(), set()
    if state.deadline_at is not None:
        timers.add(Timer(DEADLINE, state.deadline_at, {"kind": DEADLINE}))
    for name, step in state.steps.items():
        if known.get(name) is step:
            continue
        if step.status.handed_out:
            tasks.add(_task(state, name, step))
        timer = _timer(name, step)
        if timer is not None:
            timers.add(timer)
    return Desired(frozenset(tasks), frozenset(timers))


def effects(before: RunState | None, after: RunState | None) -> Effects:
    """The way from one picture to the other; from `None`, everything that should be there."""
    old, new = desired(before, after), desired(after, before)
    return Effects(
        publish=tuple(sorted(new.tasks - old.tasks, key=_key)),
        revoke=tuple(sorted((task for task in old.tasks - new.tasks if _taken_away(after, task)), key=_key)),
        forget=checkpoints(after, before),
        set=tuple(sorted(new.timers - old.timers, key=lambda timer: timer.id)),
        cancel=tuple(sorted(old.timers - new.timers, key=lambda timer: timer.id)),
    )


def _key(task: Task) -> str:
    return task.key


def checkpoints(state: RunState | None, beside: RunState | None = None) -> tuple[str, ...]:
    """Steps that left a checkpoint behind; with another state beside it, those that differ."""
    steps = state.steps if state is not None else {}
    known = beside.steps if beside is not None else {}
    return tuple(name for name, step in steps.items() if step.checkpointed and known.get(name) is not step)


def _taken_away(after: RunState | None, task: Task) -> bool:
    return after is not None and after.steps[task.step].status in _TAKEN_AWAY


def _task(state: RunState, name: str, step: StepState) -> Task:
    defined = step_of(state, name)
    return Task(
        step=name,
        type=defined.task_type or "",
        attempt=step.attempt,
        iteration=step.iteration,
        resumption=step.resumption,
        timeout_ms=defined.timeout,
        input=step.input,
        sandbox=defined.sandbox.model_dump(mode="json") if defined.sandbox is not None else None,
    )


def _timer(name: str, step: StepState) -> Timer | None:
    kind, at = _KINDS.get(step.status, ""), step.wake_at
    if step.status is StepStatus.RUNNING:
        kind, at = TIMEOUT, step.timeout_at
    if not kind or at is None:
        return None
    body = {"kind": kind, "step": name, "attempt": step.attempt, "iteration": step.iteration}
    if step.resumption:
        body["resumption"] = step.resumption
    return Timer(f"{kind}_{name}_{step.attempt}_{step.iteration}_{step.resumption}", at, body)
