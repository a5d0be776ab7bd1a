"""Where a run stands: the fold of its journal, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fumehood.engine.definition import ITEM_SEPARATOR, Definition, Step


class RunStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self is not RunStatus.RUNNING


class StepStatus(StrEnum):
    PENDING = "pending"
    """Waits for the steps it needs, or for its turn in a map."""
    QUEUED = "queued"
    """Handed out; nobody said yet that it began."""
    RUNNING = "running"
    WAITING = "waiting"
    """Failed, and will be tried again."""
    PAUSED = "paused"
    """Its worker asked for the same attempt again after a while."""
    SLEEPING = "sleeping"
    MAPPING = "mapping"
    """A map whose items are under way."""
    BLOCKED = "blocked"
    """Waits for a concurrency key."""
    LISTENING = "listening"
    """Waits for a signal."""
    AWAITING_APPROVAL = "awaiting_approval"
    CALLING = "calling"
    """Another run does its work."""
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED

    @property
    def settled(self) -> bool:
        """Those who need it may go on."""
        return self in _SETTLED

    @property
    def handed_out(self) -> bool:
        """A worker may have it, and may speak about it."""
        return self in _HANDED_OUT

    @property
    def at_work(self) -> bool:
        """Takes one of the places that `max_parallel` gives."""
        return self in _AT_WORK


_SETTLED = frozenset({StepStatus.COMPLETED, StepStatus.SKIPPED})
_HANDED_OUT = frozenset({StepStatus.QUEUED, StepStatus.RUNNING})
_AT_WORK = _HANDED_OUT | {StepStatus.WAITING, StepStatus.PAUSED, StepStatus.MAPPING, StepStatus.CALLING}
_ENDED = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code for programs, a message for people."""

    code: str
    message: str = ""
    details: Mapping[str, Any] | None = None
    """What else is known, by whoever failed: a sandbox's report. Bounded where it comes in."""

    def plain(self) -> dict[str, Any]:
        """As it is stored: details only where there are any."""
        known: dict[str, Any] = {"code": self.code, "message": self.message}
        return known if self.details is None else {**known, "details": self.details}

    def without_details(self) -> Failure:
        """For the run, whose failed step has them."""
        return self if self.details is None else Failure(self.code, self.message)


@dataclass(frozen=True, slots=True)
class Override:
    """Somebody decided about a step by hand."""

    action: str
    by: str
    reason: str


@dataclass(slots=True)
class StepState:
    """One step, or one item of a map. Never changed, only replaced: states share them. (Not frozen, which would take
    a tenth of a decider's time: to make a frozen one costs three times as much.)"""

    status: StepStatus = StepStatus.PENDING
    attempt: int = 0
    iteration: int = 0
    resumption: int = 0
    """How often this attempt went on after a pause."""
    input: Any = None
    output: Any = None
    failure: Failure | None = None
    worker_id: str | None = None
    wake_at: int | None = None
    """When a retry, a pause, a sleep or the patience of who waits for somebody, a worker included, is over (ms)."""
    timeout_at: int | None = None
    """When the attempt under way has taken too long (ms)."""
    items: int | None = None
    """How many items a map has."""
    previous: Any = None
    """What an agent loop said last."""
    fenced: bool = True
    """Whether who answered named its lease."""
    checkpointed: bool = False
    """Whether who answered left a checkpoint behind."""
    base: int = 0
    """Attempts of earlier tries of the run: only those since count against `retry`."""
    order: int = 0
    """Which of the run's steps it was to be completed, from 1."""
    child: str | None = None
    """The run that does its work."""
    digest: str | None = None
    """The definition of that run."""
    former: tuple[str, ...] = ()
    """Runs of earlier attempts: whoever should have stopped one may have died before."""
    override: Override | None = None

    @property
    def tried(self) -> int:
        """Attempts in this try of the run."""
        return self.attempt - self.base


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that a run was told."""

    name: str
    data: Any
    at: int
    taken_by: str | None = None
    """The step that took it; each signal is taken once."""
    of_worker: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """A concurrency key that the run, or a step of it, asked for."""

    key: str
    limit: int
    queue: bool
    held: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run will have ended, once what was done is undone."""

    status: RunStatus
    failure: Failure | None = None
    step: str | None = None
    reason: str = ""
    by: str = ""


@dataclass(slots=True)
class RunState:
    """A run. `fold` builds it; whoever else holds one only reads."""

    run_id: str
    definition: Definition
    input: Any
    started_at: int
    deadline_at: int | None
    digest: str = ""
    """Of the definition that the run is pinned to."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Who started it and under which trace; the engine only keeps it."""
    status: RunStatus = RunStatus.RUNNING
    steps: dict[str, StepState] = field(default_factory=dict)
    output: Any = None
    failure: Failure | None = None
    ended_at: int | None = None
    consumed: set[str] = field(default_factory=set)
    """Messages that had their effect and could be taken for new ones when they come again. What workers say is fenced
    by attempt and iteration, where they name them."""
    signals: tuple[Signal, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    """Digests of the workflows that it may call, by name: as they were when it started."""
    refused: dict[str, str] = field(default_factory=dict)
    """Orders that had no effect, and why."""
    tries: int = 0
    """How often it was taken up again after it had ended."""
    failed_step: str | None = None
    ending: Ending | None = None
    gates: dict[str, Gate] = field(default_factory=dict)
    """By step; the run's own has no name."""
    completed: int = 0
    """How many steps were completed, ever: their order."""
    continued_as: str | None = None
    continued_input: Any = None
    """The run that goes on after this one, and what it is given."""
    events: int = 0
    updated_at: int = 0
    """When the last decision was made (ms)."""

    def copy(self) -> RunState:
        """Another state that shares nothing which changes."""
        return RunState(
            run_id=self.run_id,
            definition=self.definition,
            input=self.input,
            started_at=self.started_at,
            deadline_at=self.deadline_at,
            digest=self.digest,
            meta=self.meta,
            status=self.status,
            steps=dict(self.steps),
            output=self.output,
            failure=self.failure,
            ended_at=self.ended_at,
            consumed=set(self.consumed),
            signals=self.signals,
            pins=self.pins,
            refused=dict(self.refused),
            tries=self.tries,
            failed_step=self.failed_step,
            ending=self.ending,
            gates=dict(self.gates),
            completed=self.completed,
            continued_as=self.continued_as,
            continued_input=self.continued_input,
            events=self.events,
            updated_at=self.updated_at,
        )

    def values(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """What expressions see, of all steps or of those that they name."""
        steps = {
            name: _seen(step)
            for name in (self.steps if names is None else names)
            if ITEM_SEPARATOR not in name and (step := self.steps.get(name)) is not None
        }
        return {"input": self.input, "steps": steps}

    def gate_id(self, step: str, tries: int | None = None) -> str:
        """The name by which a gate is asked for: another one in each try, so that leaving an old one late leaves
        nothing new."""
        return f"{step}.{self.tries if tries is None else tries}"


def _seen(step: StepState) -> dict[str, Any]:
    seen = {"status": step.status.value, "output": step.output, "attempt": step.attempt}
    if step.status is StepStatus.FAILED and step.failure is not None:
        seen["error"] = step.failure.plain()
    return seen


def item_id(step_id: str, index: int) -> str:
    return f"{step_id}{ITEM_SEPARATOR}{index}"


def owner_of(name: str) -> str:
    """The step of the definition that a step or an item belongs to."""
    return name.split(ITEM_SEPARATOR, 1)[0]


def index_of(name: str) -> int | None:
    """The number of an item; `None` for a step."""
    number = name.partition(ITEM_SEPARATOR)[2]
    return int(number) if number.isdecimal() else None


def is_errand(name: str) -> bool:
    """Whether it stands beside the graph: what undoes a step, or tells of a failure."""
    return ITEM_SEPARATOR in name and index_of(name) is None


def step_of(state: RunState, name: str) -> Step:
    return state.definition.step(name if index_of(name) is None else owner_of(name))
