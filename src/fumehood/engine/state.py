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


_SETTLED = frozenset({StepStatus.COMPLETED, StepStatus.SKIPPED})
_HANDED_OUT = frozenset({StepStatus.QUEUED, StepStatus.RUNNING})
_ENDED = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code for programs, a message for people."""

    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class StepState:
    """One step, or one item of a map."""

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
    """When a retry, a pause or a sleep is over (ms)."""
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


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that a run was told."""

    name: str
    data: Any
    at: int


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
            events=self.events,
            updated_at=self.updated_at,
        )

    def values(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """What expressions see, of all steps or of those that they name."""
        steps = {
            name: {"status": step.status.value, "output": step.output, "attempt": step.attempt}
            for name in (self.steps if names is None else names)
            if ITEM_SEPARATOR not in name and (step := self.steps.get(name)) is not None
        }
        return {"input": self.input, "steps": steps}


def item_id(step_id: str, index: int) -> str:
    return f"{step_id}{ITEM_SEPARATOR}{index}"


def owner_of(name: str) -> str:
    """The step of the definition that a step or an item belongs to."""
    return name.split(ITEM_SEPARATOR, 1)[0]


def index_of(name: str) -> int | None:
    """The number of an item; `None` for a step."""
    _, separator, number = name.partition(ITEM_SEPARATOR)
    return int(number) if separator else None


def step_of(state: RunState, name: str) -> Step:
    return state.definition.step(owner_of(name))
