"""What reaches a run from outside: from servers and timers (its inbox) and from workers (its history)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class MessageType(StrEnum):
    START = "start"
    CANCEL = "cancel"
    TIMER = "timer"
    SIGNAL = "signal"
    APPROVE = "approve"
    RETRY = "retry"
    OVERRIDE = "override"
    GATE = "gate"
    CHILD_ENDED = "child.ended"
    STEP_STARTED = "step.started"
    STEP_COMPLETED = "step.completed"
    STEP_FAILED = "step.failed"
    STEP_CONTINUE = "step.continue"
    STEP_PAUSED = "step.paused"
    STEP_SIGNAL = "step.signal"


ORDERS = frozenset(
    {MessageType.CANCEL, MessageType.SIGNAL, MessageType.APPROVE, MessageType.OVERRIDE, MessageType.RETRY}
)
"""What people tell a run; it may overtake the start that it is meant for."""
WORKERS_SAY = frozenset(kind for kind in MessageType if kind.value.startswith("step."))
"""All that a worker may say. Anything else on its subject is ignored, and counted."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, already checked for its shape."""

    id: str
    type: MessageType
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> str:
        return str(self.body.get("step", ""))


class Ignored(StrEnum):
    """Why a message had no effect. Counted, never an error: late and repeated messages are everyday life."""

    NO_RUN = "no_run"
    RUN_ENDED = "run_ended"
    DUPLICATE = "duplicate"
    UNKNOWN_STEP = "unknown_step"
    OTHER_ATTEMPT = "other_attempt"
    OTHER_ITERATION = "other_iteration"
    OTHER_RESUMPTION = "other_resumption"
    NOT_HANDED_OUT = "not_handed_out"
    UNPROVEN = "unproven"
    """Said about a sandbox by somebody who does not show that its task was handed to him."""
    STALE_TIMER = "stale_timer"
    TOO_MANY = "too_many"
    OTHER_TRY = "other_try"
    """Said to an earlier life of the run."""
    NOT_ASKED = "not_asked"
    """An answer to a question that is not open."""
    NOT_ALLOWED = "not_allowed"
    NOT_FAILED = "not_failed"
    """A retry of a run that is under way, has succeeded, or was undone."""
