"""What the world should look like for a state: the tasks that should be out and the timers that should be set.

Effects are the difference between two such pictures. So they need no log of their own: whoever folds the journal can
tell what should be there, put back what is missing, and, since every id is derived from the state, do nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine.state import RunState, StepState, StepStatus, step_of

DEADLINE, TIMEOUT, RETRY, PAUSE, SLEEP, EXPIRY = "deadline", "timeout", "retry", "pause", "sleep", "expiry"
START = "start"
"""Kinds of timers."""
_TAKEN_AWAY = frozenset({StepStatus.CANCELLED, StepStatus.FAILED, StepStatus.WAITING, StepStatus.PAUSED})
_KINDS = {
    StepStatus.QUEUED: START,
    StepStatus.WAITING: RETRY,
    StepStatus.PAUSED: PAUSE,
    StepStatus.SLEEPING: SLEEP,
    StepStatus.LISTENING: EXPIRY,
    StepStatus.AWAITING_APPROVAL: EXPIRY,
}
_TIMED = frozenset({StepStatus.RUNNING, StepStatus.CALLING})
_STEP_TIMERS = frozenset({TIMEOUT, *_KINDS.values()})


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
    distinct: str | None = field(compare=False, hash=False, default=None)
    asked: Mapping[str, Any] | None = field(compare=False, hash=False, default=None)
    """What the run says of who started it, for a sandbox: whoever runs it signs that."""

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
class Child:
    """A run that does a step's work."""

    step: str
    run_id: str
    attempt: int = field(compare=False, hash=False, default=0)
    digest: str = field(compare=False, hash=False, default="")
    input: Any = field(compare=False, hash=False, default=None)


@dataclass(frozen=True, slots=True)
class Claim:
    """A concurrency key that is asked for, or held."""

    gate: str
    key: str
    step: str = field(compare=False, hash=False, default="")
    limit: int = field(compare=False, hash=False, default=1)
    queue: bool = field(compare=False, hash=False, default=True)
    held: bool = field(compare=False, hash=False, default=False)


@dataclass(frozen=True, slots=True)
class Desired:
    tasks: frozenset[Task] = frozenset()
    timers: frozenset[Timer] = frozenset()
    children: frozenset[Child] = frozenset()
    claims: frozenset[Claim] = frozenset()


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
    call: tuple[Child, ...] = ()
    stop: tuple[Child, ...] = ()
    """Runs that nobody waits for any more; mostly they have ended themselves."""
    ask: tuple[Claim, ...] = ()
    leave: tuple[Claim, ...] = ()


def desired(state: RunState | None, beside: RunState | None = None) -> Desired:
    """The picture of a state; with another state `beside` it, only of what differs. States share what did not change
    between them, so that a map's thousands of items cost nothing when one of them moves."""
    if state is None or state.status.ended:
        return Desired()
    known = beside.steps if beside is not None else {}
    tasks, timers, children = set(), set(), set()
    if state.deadline_at is not None:
        timers.add(_deadline(state, state.deadline_at))
    for name, step in state.steps.items():
        if known.get(name) is step:
            continue
        if step.status.handed_out:
            tasks.add(_task(state, name, step))
        if step.status is StepStatus.CALLING:
            children.add(Child(name, step.child or "", step.attempt, step.digest or "", step.input))
        timer = _timer(name, step)
        if timer is not None:
            timers.add(timer)
    return Desired(frozenset(tasks), frozenset(timers), frozenset(children), _claims(state))


def effects(before: RunState | None, after: RunState | None) -> Effects:
    """The way from one picture to the other; from `None`, everything that should be there."""
    old, new = desired(before, after), desired(after, before)
    return Effects(
        publish=tuple(sorted(new.tasks - old.tasks, key=_key)),
        revoke=tuple(sorted((task for task in old.tasks - new.tasks if _taken_away(after, task)), key=_key)),
        forget=checkpoints(after, before),
        set=tuple(sorted(new.timers - old.timers, key=lambda timer: timer.id)),
        cancel=tuple(sorted(old.timers - new.timers, key=lambda timer: timer.id)),
        call=tuple(sorted(new.children - old.children, key=lambda child: child.run_id)),
        stop=tuple(sorted(old.children - new.children, key=lambda child: child.run_id)),
        ask=tuple(sorted(new.claims - old.claims, key=lambda claim: claim.gate)),
        leave=tuple(sorted(old.claims - new.claims, key=lambda claim: claim.gate)),
    )


def _claims(state: RunState) -> frozenset[Claim]:
    """A run keeps its key until it ends, a step until that does."""
    if not state.gates:
        return frozenset()
    return frozenset(
        Claim(state.gate_id(name), gate.key, name, gate.limit, gate.queue, gate.held)
        for name, gate in state.gates.items()
        if not name or not state.steps[name].status.ended
    )


def _deadline(state: RunState, at: int) -> Timer:
    """Another one in each try, and while what was done is undone."""
    return _deadline_of(state.tries, state.ending is not None, at)


def _deadline_of(tries: int, ending: bool, at: int = 0) -> Timer:
    body: dict[str, Any] = {"kind": DEADLINE}
    if tries:
        body["try"] = tries
    if ending:
        body["ending"] = True
    return Timer("_".join([DEADLINE, *(f"{name}{value}" for name, value in body.items() if name != "kind")]), at, body)


def is_former(state: RunState, timer_id: str) -> bool:
    """Whether a timer belongs to what the run has behind it and never comes back to. Whoever should have cancelled it
    may have died before; what a newer state than this one wants is never among them."""
    kind, _, rest = timer_id.partition("_")
    if kind == DEADLINE:
        return timer_id in _former_deadlines(state)
    name, *numbers = rest.rsplit("_", 3)
    step = state.steps.get(name)
    if step is None or kind not in _STEP_TIMERS:
        return False
    age, now = tuple(map(int, numbers)), (step.attempt, step.iteration, step.resumption)
    over = step.status.ended or (kind == TIMEOUT and step.status in (StepStatus.WAITING, StepStatus.PAUSED))
    over = over or (kind == START and step.status is not StepStatus.QUEUED)
    of_last_try = 0 < age[0] == step.base == step.attempt
    return age < now or (age == now and over) or of_last_try


def _former_deadlines(state: RunState) -> frozenset[str]:
    stages = [(tries, ending) for tries in range(state.tries) for ending in (False, True)]
    stages += [(state.tries, False)] if state.ending is not None else []
    return frozenset(_deadline_of(tries, ending).id for tries, ending in stages)


def _key(task: Task) -> str:
    return task.key


def checkpoints(state: RunState | None, beside: RunState | None = None) -> tuple[str, ...]:
    """Steps that left a checkpoint behind; with another state beside it, those that differ."""
    steps = state.steps if state is not None else {}
    known = beside.steps if beside is not None else {}
    return tuple(name for name, step in steps.items() if step.checkpointed and known.get(name) is not step)


def _taken_away(after: RunState | None, task: Task) -> bool:
    if after is None:
        return False
    step = after.steps[task.step]
    return step.status in _TAKEN_AWAY or step.override is not None


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
        sandbox=defined.sandbox.task.model_dump(mode="json", exclude_defaults=True) if defined.sandbox else None,
        distinct=defined.distinct,
        asked=state.meta if defined.sandbox is not None else None,
    )


def _timer(name: str, step: StepState) -> Timer | None:
    kind, at = _KINDS.get(step.status, ""), step.wake_at
    if step.status in _TIMED:
        kind, at = TIMEOUT, step.timeout_at
    if not kind or at is None:
        return None
    body = {"kind": kind, "step": name, "attempt": step.attempt, "iteration": step.iteration}
    if step.resumption:
        body["resumption"] = step.resumption
    return Timer(f"{kind}_{name}_{step.attempt}_{step.iteration}_{step.resumption}", at, body)
