"""What a journal holds: records of decisions, each a list of events and the messages that it took in.

Every format that was ever released stays readable: `tests/replay/` keeps recorded journals that must fold to the same
state for ever. Add fields with defaults; never change the meaning of one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fumehood.engine.state import Failure

FORMAT = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class UnknownFormatError(ValueError):
    """Written by a version that knows more than this one."""


@dataclass(frozen=True, slots=True)
class Event:
    type: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    type: ClassVar[str] = "run.started"
    definition: dict[str, Any]
    digest: str
    input: Any
    deadline_at: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    pins: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class StepQueued(Event):
    type: ClassVar[str] = "step.queued"
    step: str
    attempt: int
    iteration: int
    input: Any = None
    resumption: int = 0
    start_by: int | None = None


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    type: ClassVar[str] = "step.started"
    step: str
    attempt: int
    worker_id: str | None = None
    timeout_at: int | None = None


@dataclass(frozen=True, slots=True)
class StepContinued(Event):
    type: ClassVar[str] = "step.continued"
    step: str
    iteration: int
    said: Any = None


@dataclass(frozen=True, slots=True)
class StepCompleted(Event):
    type: ClassVar[str] = "step.completed"
    step: str
    attempt: int
    output: Any = None
    fenced: bool = True
    checkpointed: bool = False


@dataclass(frozen=True, slots=True)
class StepRetrying(Event):
    type: ClassVar[str] = "step.retrying"
    step: str
    attempt: int
    failure: Failure
    wake_at: int
    fenced: bool = True


@dataclass(frozen=True, slots=True)
class StepPaused(Event):
    type: ClassVar[str] = "step.paused"
    step: str
    attempt: int
    wake_at: int


@dataclass(frozen=True, slots=True)
class StepFailed(Event):
    type: ClassVar[str] = "step.failed"
    step: str
    attempt: int
    failure: Failure
    fenced: bool = True


@dataclass(frozen=True, slots=True)
class StepSkipped(Event):
    type: ClassVar[str] = "step.skipped"
    step: str


@dataclass(frozen=True, slots=True)
class StepSleeping(Event):
    type: ClassVar[str] = "step.sleeping"
    step: str
    wake_at: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class MapExpanded(Event):
    type: ClassVar[str] = "map.expanded"
    step: str
    inputs: list[Any]


@dataclass(frozen=True, slots=True)
class MapResumed(Event):
    """A map of an earlier try goes on with the items that are not done."""

    type: ClassVar[str] = "map.resumed"
    step: str


@dataclass(frozen=True, slots=True)
class OrderRefused(Event):
    """What somebody told the run came too late, or was not theirs to say."""

    type: ClassVar[str] = "order.refused"
    order: str
    reason: str


@dataclass(frozen=True, slots=True)
class SignalReceived(Event):
    type: ClassVar[str] = "signal.received"
    name: str
    data: Any = None
    step: str | None = None
    """Whose worker said it."""
    by: str | None = None


@dataclass(frozen=True, slots=True)
class StepListening(Event):
    type: ClassVar[str] = "step.listening"
    step: str
    attempt: int
    signal: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class SignalTaken(Event):
    """A step has what it waited for: the signal with this number, and with it its output."""

    type: ClassVar[str] = "signal.taken"
    step: str
    attempt: int
    signal: int


@dataclass(frozen=True, slots=True)
class ApprovalRequested(Event):
    type: ClassVar[str] = "approval.requested"
    step: str
    attempt: int
    input: Any = None
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class ApprovalGiven(Event):
    type: ClassVar[str] = "approval.given"
    step: str
    attempt: int
    by: str
    comment: str = ""
    via: str = ""
    """Who gave them the token that they decided with."""


@dataclass(frozen=True, slots=True)
class ApprovalRefused(Event):
    """Who said no. What follows for the step is an event of its own."""

    type: ClassVar[str] = "approval.refused"
    step: str
    attempt: int
    by: str
    comment: str = ""
    via: str = ""
    """Who gave them the token that they decided with."""


@dataclass(frozen=True, slots=True)
class StepCalling(Event):
    type: ClassVar[str] = "step.calling"
    step: str
    attempt: int
    run_id: str
    digest: str
    input: Any = None
    timeout_at: int | None = None


@dataclass(frozen=True, slots=True)
class GateAsked(Event):
    """The run (no step) or a step of it asked for a concurrency key."""

    type: ClassVar[str] = "gate.asked"
    key: str
    limit: int
    step: str = ""
    queue: bool = True


@dataclass(frozen=True, slots=True)
class GatePassed(Event):
    type: ClassVar[str] = "gate.passed"
    step: str = ""


@dataclass(frozen=True, slots=True)
class StepOverridden(Event):
    type: ClassVar[str] = "step.overridden"
    step: str
    action: str
    by: str
    reason: str
    output: Any = None


@dataclass(frozen=True, slots=True)
class RunEnding(Event):
    """The run will end so; what was done is undone first."""

    type: ClassVar[str] = "run.ending"
    status: str
    failure: Failure | None = None
    step: str | None = None
    reason: str = ""
    by: str = ""
    deadline_at: int | None = None


@dataclass(frozen=True, slots=True)
class RunRetried(Event):
    type: ClassVar[str] = "run.retried"
    by: str
    reason: str = ""
    deadline_at: int | None = None


@dataclass(frozen=True, slots=True)
class RunSucceeded(Event):
    type: ClassVar[str] = "run.succeeded"
    output: Any = None
    continued_as: str | None = None
    continued_input: Any = None


@dataclass(frozen=True, slots=True)
class RunFailed(Event):
    type: ClassVar[str] = "run.failed"
    failure: Failure
    step: str | None = None


@dataclass(frozen=True, slots=True)
class RunTimedOut(Event):
    type: ClassVar[str] = "run.timed_out"
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class RunCancelled(Event):
    type: ClassVar[str] = "run.cancelled"
    reason: str = ""
    by: str = ""


KINDS: dict[str, type[Event]] = {
    kind.type: kind
    for kind in (
        RunStarted,
        StepQueued,
        StepStarted,
        StepContinued,
        StepCompleted,
        StepRetrying,
        StepPaused,
        StepFailed,
        StepSkipped,
        StepSleeping,
        MapExpanded,
        MapResumed,
        OrderRefused,
        SignalReceived,
        StepListening,
        SignalTaken,
        ApprovalRequested,
        ApprovalGiven,
        ApprovalRefused,
        StepCalling,
        GateAsked,
        GatePassed,
        StepOverridden,
        RunEnding,
        RunRetried,
        RunSucceeded,
        RunFailed,
        RunTimedOut,
        RunCancelled,
    )
}


@dataclass(frozen=True, slots=True)
class Record:
    """One decision: one append."""

    at: int
    events: tuple[Event, ...]
    consumed: tuple[str, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether the run ended with it."""
        return any(isinstance(event, RunSucceeded | RunFailed | RunTimedOut | RunCancelled) for event in self.events)

    def encode(self) -> bytes:
        document = {
            "v": FORMAT,
            "at": self.at,
            "consumed": list(self.consumed),
            "events": [{"type": event.type, **_plain(event)} for event in self.events],
        }
        return _ENCODER.encode(document).encode()

    @classmethod
    def decode(cls, data: bytes) -> Record:
        document = json.loads(data)
        if document.get("v") != FORMAT:
            raise UnknownFormatError(f"a journal record of format {document.get('v')}")
        return cls(
            at=document["at"],
            events=tuple(_event(item) for item in document["events"]),
            consumed=tuple(document["consumed"]),
        )


_DEFAULTS: dict[type[Event], tuple[tuple[str, object], ...]] = {
    kind: tuple((item.name, item.default) for item in dataclasses.fields(kind)) for kind in KINDS.values()
}


def _plain(event: Event) -> dict[str, Any]:
    """What says something: a field that has its default is left out, and comes back by itself."""
    fields = {}
    for name, default in _DEFAULTS[type(event)]:
        value = getattr(event, name)
        if isinstance(value, Failure):
            value = value.plain()
        if value is not default:
            fields[name] = value
    return fields


def _event(item: dict[str, Any]) -> Event:
    fields = {name: value for name, value in item.items() if name != "type"}
    try:
        if "failure" in fields:
            fields["failure"] = Failure(**fields["failure"])
        return KINDS[item["type"]](**fields)
    except (KeyError, TypeError):
        raise UnknownFormatError(f"an event of type {item['type']}") from None
