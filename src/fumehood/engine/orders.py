"""What follows from what a run is told: by people, by timers, by the keeper of a concurrency key, by runs it called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fumehood.engine import events as e
from fumehood.engine.desired import DEADLINE, EXPIRY, PAUSE, RETRY, SLEEP, START, TIMEOUT
from fumehood.engine.draft import Draft, was_undone
from fumehood.engine.fold import COMPLETE, SKIP
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.state import Ending, Failure, RunState, RunStatus, StepState, StepStatus, step_of
from fumehood.engine.workers import has_room_for_signals

SHOWN = 5
"""Steps that a sentence names."""
NOT_STARTED = "not_started"
_AFTER_THE_END = frozenset({MessageType.RETRY, MessageType.OVERRIDE})
_ANSWERED = frozenset({MessageType.SIGNAL, MessageType.APPROVE, MessageType.RETRY, MessageType.OVERRIDE})
"""Whoever gave one of these is told what became of it."""
MAX_REFUSALS = 1_000
"""That a run keeps: beyond, nobody waits for each answer."""


def take(draft: Draft, message: Message) -> Ignored | None:
    if draft.state.status.ended and message.type not in _AFTER_THE_END:
        return Ignored.RUN_ENDED
    if message.type is MessageType.TIMER:
        return _timer(draft, message)
    if message.id in draft.state.consumed:
        return Ignored.DUPLICATE
    reason = _of_another_try(draft.state, message) or _HANDLERS[message.type](draft, message.body)
    if reason is None:
        draft.remember(message.id)
    elif message.type in _ANSWERED and not draft.state.status.ended and len(draft.state.refused) < MAX_REFUSALS:
        draft.say(e.OrderRefused(message.id, reason.value))
        draft.remember(message.id)
    return reason


def _of_another_try(state: RunState, message: Message) -> Ignored | None:
    """What was said to a run that has ended is not said to what somebody made of it since."""
    return Ignored.OTHER_TRY if message.body.get("try") not in (None, state.tries) else None


# --- people ------------------------------------------------------------------------------------------------


def _cancel(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    ending = Ending(RunStatus.CANCELLED, None, None, _text(body, "reason"), _text(body, "by"))
    if draft.state.ending is None:
        draft.end(ending)
    elif body.get("force"):  # what was begun to be undone is left as it is
        draft.end(draft.state.ending)
    else:
        return Ignored.RUN_ENDED
    return None


def _signal(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    if not has_room_for_signals(draft.state, of_workers=False):
        return Ignored.TOO_MANY
    draft.say(e.SignalReceived(_text(body, "name"), body.get("data"), None, _text(body, "by")))
    return None


def _approve(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    name = _text(body, "step")
    step = draft.state.steps.get(name)
    if step is None or step.status is not StepStatus.AWAITING_APPROVAL or body.get("attempt") != step.attempt:
        return Ignored.NOT_ASKED
    by, comment, via = _text(body, "by"), _text(body, "comment"), _text(body, "via")
    if not may_approve(draft.state, name, by):
        return Ignored.NOT_ALLOWED
    if body.get("approved") is True:
        draft.say(e.ApprovalGiven(name, step.attempt, by, comment, via))
        return None
    draft.say(e.ApprovalRefused(name, step.attempt, by, comment, via))
    message = f"{by} said no" + (f": {comment}" if comment else "")
    draft.say(e.StepFailed(name, step.attempt, Failure("rejected", message)))
    return None


def may_approve(state: RunState, name: str, by: str) -> bool:
    """By name; a key's is what stands behind its id."""
    approval = step_of(state, name).approval
    if approval is None or not approval.approvers:
        return approval is not None
    return by in approval.approvers or by.rpartition("/")[2] in approval.approvers


def can_retry(state: RunState) -> bool:
    """Work that was taken back is not gone on with."""
    return state.status.ended and state.status is not RunStatus.SUCCEEDED and not was_undone(state)


def _retry(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    if not can_retry(draft.state):
        return Ignored.NOT_FAILED
    _take_up(draft, body)
    return None


def _take_up(draft: Draft, body: dict[str, Any]) -> None:
    deadline_at = draft.after(draft.state.definition.deadline)
    draft.say(e.RunRetried(_text(body, "by"), _text(body, "reason"), deadline_at))


def can_override(state: RunState, name: str) -> bool:
    """A step of the graph that has not ended, or one that a run failed over."""
    if name not in {step.id for step in state.definition.steps}:
        return False
    if state.status.ended:
        return can_retry(state) and state.steps[name].status in (StepStatus.FAILED, StepStatus.CANCELLED)
    return state.ending is None and not state.steps[name].status.ended


def _override(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    name, action = _text(body, "step"), SKIP if body.get("action") == SKIP else COMPLETE
    if not can_override(draft.state, name):
        return Ignored.NOT_ASKED
    if draft.state.status.ended:
        _take_up(draft, body)
    draft.say(e.StepOverridden(name, action, _text(body, "by"), _text(body, "reason"), body.get("output")))
    return None


# --- other parts of the house ------------------------------------------------------------------------------


def _gate(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    name, state = _text(body, "step"), draft.state
    gate = state.gates.get(name)
    if gate is None or gate.held or body.get("gate") != state.gate_id(name) or state.ending is not None:
        return Ignored.NOT_ASKED
    if name and state.steps[name].status is not StepStatus.BLOCKED:
        return Ignored.NOT_ASKED
    if not body.get("refused"):
        draft.say(e.GatePassed(name))
        return None
    failure = Failure("concurrency", f"the concurrency key {gate.key!r} is taken ({body['refused']})")
    if name:
        draft.say(e.StepFailed(name, state.steps[name].attempt, failure))
    else:
        draft.end(Ending(RunStatus.FAILED, failure))
    return None


def _child_ended(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    name = _text(body, "step")
    step = draft.state.steps.get(name)
    if step is None or step.status is not StepStatus.CALLING or step.child != body.get("child"):
        return Ignored.NOT_ASKED
    status = body.get("status")
    if status == RunStatus.SUCCEEDED.value:
        draft.say(e.StepCompleted(name, step.attempt, body.get("output")))
        return None
    said = body.get("failure") or {}
    failure = Failure(str(said.get("code") or f"child_{status}"), f"the run {step.child} ended as {status}")
    if said.get("message"):
        failure = Failure(failure.code, f"{failure.message}: {said['message']}")
    draft.attempt_failed(name, step, failure, final=status == RunStatus.CANCELLED.value)
    return None


# --- timers ------------------------------------------------------------------------------------------------


def _timer(draft: Draft, message: Message) -> Ignored | None:
    if message.body.get("kind") == DEADLINE:  # the broker's clock said it; ours may be behind, and this comes only once
        return _deadline(draft, message.body)
    body, step = message.body, draft.state.steps.get(message.step)
    age = (body.get("attempt"), body.get("iteration"), body.get("resumption", 0))
    if step is None or (step.attempt, step.iteration, step.resumption) != age:
        return Ignored.STALE_TIMER
    handler = _TIMERS.get((str(body.get("kind")), step.status))
    if handler is None:
        return Ignored.STALE_TIMER
    handler(draft, message.step, step)
    return None


def _deadline(draft: Draft, body: dict[str, Any]) -> Ignored | None:
    state = draft.state
    if state.deadline_at is None or (body.get("try", 0), bool(body.get("ending"))) != (
        state.tries,
        state.ending is not None,
    ):
        return Ignored.STALE_TIMER
    if state.ending is not None:
        draft.end(state.ending)
    else:
        failure = Failure(DEADLINE, f"the run's deadline passed; {_still_open(state)}")
        draft.end(Ending(RunStatus.TIMED_OUT, failure))
    return None


def _still_open(state: RunState) -> str:
    """For whoever wonders what it was waiting for."""
    waiting = [f"{name} was {step.status}" for name, step in state.steps.items() if not step.status.ended]
    more = f" and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    return ", ".join(waiting[:SHOWN]) + more


def _try_again(draft: Draft, name: str, step: StepState) -> None:
    if step_of(draft.state, name).sub_workflow is not None:
        draft.call(name, step.input)
    else:
        draft.queue(name, step.attempt + 1, step.iteration, step.input)


def _resume(draft: Draft, name: str, step: StepState) -> None:
    draft.queue(name, step.attempt, step.iteration, step.input, step.resumption + 1)


def _wake(draft: Draft, name: str, step: StepState) -> None:
    draft.say(e.StepCompleted(name, step.attempt))


def _time_out(draft: Draft, name: str, step: StepState) -> None:
    draft.attempt_failed(name, step, Failure(TIMEOUT, "the step took longer than its timeout"))


def _not_started(draft: Draft, name: str, step: StepState) -> None:
    """Nothing was tried, so there is nothing to try again."""
    failure = Failure(NOT_STARTED, "no worker began the step in the time that it has for it")
    draft.attempt_failed(name, step, failure, final=True)


def _expire(draft: Draft, name: str, step: StepState) -> None:
    what = "signal" if step.status is StepStatus.LISTENING else "approval"
    draft.say(e.StepFailed(name, step.attempt, Failure(f"{what}_timeout", f"the {what} did not come in time")))


_TIMERS: dict[tuple[str, StepStatus], Callable[[Draft, str, StepState], None]] = {
    (RETRY, StepStatus.WAITING): _try_again,
    (PAUSE, StepStatus.PAUSED): _resume,
    (SLEEP, StepStatus.SLEEPING): _wake,
    (START, StepStatus.QUEUED): _not_started,
    (TIMEOUT, StepStatus.RUNNING): _time_out,
    (TIMEOUT, StepStatus.CALLING): _time_out,
    (EXPIRY, StepStatus.LISTENING): _expire,
    (EXPIRY, StepStatus.AWAITING_APPROVAL): _expire,
}

_HANDLERS: dict[MessageType, Callable[[Draft, dict[str, Any]], Ignored | None]] = {
    MessageType.CANCEL: _cancel,
    MessageType.SIGNAL: _signal,
    MessageType.APPROVE: _approve,
    MessageType.RETRY: _retry,
    MessageType.OVERRIDE: _override,
    MessageType.GATE: _gate,
    MessageType.CHILD_ENDED: _child_ended,
}


def _text(body: dict[str, Any], name: str) -> str:
    return str(body.get(name) or "")
