"""What follows from what workers say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fumehood.engine import content
from fumehood.engine import events as e
from fumehood.engine.draft import Draft
from fumehood.engine.expression import ExpressionError
from fumehood.engine.messages import Ignored, Message, MessageType
from fumehood.engine.state import Failure, RunState, StepState, StepStatus, step_of
from fumehood.wire.sealed import is_sealed

MAX_PAUSES = 10_000
MAX_SIGNALS = 1_000
"""That wait in one run, of workers and of people each: what is told beyond is refused, or ignored and counted."""
MAX_SIGNALS_EVER = 10_000
"""Of one run, those that were taken included."""


def take(draft: Draft, message: Message) -> Ignored | None:
    step = draft.state.steps.get(message.step)
    if step is None:
        return Ignored.UNKNOWN_STEP
    reason = _unproven(draft.state, message) or _fence(step, message.body)
    remembered = message.body.get("attempt") is None or message.type is MessageType.STEP_SIGNAL
    if remembered and message.id in draft.state.consumed:
        return Ignored.DUPLICATE
    if reason is None:
        reason = _HANDLERS[message.type](draft, message.step, step, message.body)
    if reason is None and remembered:
        draft.remember(message.id)
    return reason


def _unproven(state: RunState, message: Message) -> Ignored | None:
    """What is said about a sandbox or a job is believed by people who never see it: only of whoever was handed it. What
    was proven is the hand-out that the message names, all of it; whether that is the one that is out now is fenced."""
    sealed = is_sealed(step_of(state, message.step).task_type or "")
    return Ignored.UNPROVEN if sealed and message.body.get("proven") is not True else None


def _fence(step: StepState, body: dict[str, Any]) -> Ignored | None:
    """Only whoever has this attempt and iteration may speak. A worker of the bare contract may leave them out."""
    if not step.status.handed_out:
        return Ignored.NOT_HANDED_OUT
    if body.get("attempt") not in (None, step.attempt):
        return Ignored.OTHER_ATTEMPT
    if body.get("iteration") not in (None, step.iteration):
        return Ignored.OTHER_ITERATION
    if body.get("resumption") not in (None, step.resumption):
        return Ignored.OTHER_RESUMPTION
    return None


def _started(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    if step.status is StepStatus.RUNNING:  # the first to begin; saying so again would let a worker fill the journal
        return Ignored.DUPLICATE
    until = draft.after(step_of(draft.state, name).timeout)
    draft.say(e.StepStarted(name, step.attempt, body.get("worker_id"), until))
    return None


def _completed(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    fenced, checkpointed = body.get("fenced", True), body.get("checkpointed", False)
    draft.say(e.StepCompleted(name, step.attempt, body.get("output"), fenced, checkpointed))
    return None


def _failed(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    failure = Failure(str(body.get("code") or "failed"), str(body.get("message") or ""), body.get("details"))
    fenced = body.get("fenced", True)
    draft.attempt_failed(name, step, failure, final=body.get("retryable") is False, fenced=fenced)
    return None


def _paused(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    if (body.get("resumption") or 0) != step.resumption:  # only our own workers pause this way, and they name it
        return Ignored.OTHER_RESUMPTION
    if step.resumption >= MAX_PAUSES:
        message = f"the attempt paused more than {MAX_PAUSES} times"
        draft.say(e.StepFailed(name, step.attempt, Failure("max_pauses", message)))
        return None
    draft.say(e.StepPaused(name, step.attempt, draft.now + int(body["duration_ms"])))
    return None


def _signal(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    if not has_room_for_signals(draft.state, of_workers=True):
        return Ignored.TOO_MANY
    draft.say(e.SignalReceived(str(body["name"]), body.get("data"), name))
    return None


def has_room_for_signals(state: RunState, *, of_workers: bool) -> bool:
    if len(state.signals) >= MAX_SIGNALS_EVER:
        return False
    waiting = sum(1 for one in state.signals if one.taken_by is None and one.of_worker == of_workers)
    return waiting < MAX_SIGNALS


def _continue(draft: Draft, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
    loop = step_of(draft.state, name).agent_loop
    if loop is None:  # the worker has answered and will not answer again
        message = "the worker asked for another iteration, but the step is no agent_loop"
        draft.say(e.StepFailed(name, step.attempt, Failure("not_a_loop", message)))
        return None
    if step.iteration + 1 >= loop.max_iterations:
        message = f"the loop wanted more than {loop.max_iterations} iterations"
        draft.say(e.StepFailed(name, step.attempt, Failure("max_iterations", message)))
        return None
    said = body.get("output")
    try:
        given = content.whole(step.input, draft.contents)
    except ExpressionError as error:
        draft.say(e.StepFailed(name, step.attempt, Failure("expression", str(error))))
        return None
    draft.say(e.StepContinued(name, step.iteration + 1, said))
    draft.queue(name, step.attempt, step.iteration + 1, _with_previous(given, said))
    return None


def _with_previous(given: Any, said: Any) -> Any:
    """The next iteration's input: the step's own, and what the last one said."""
    base = given if isinstance(given, dict) else {"input": given}
    return {**base, "previous": said}


_HANDLERS: dict[MessageType, Callable[[Draft, str, StepState, dict[str, Any]], Ignored | None]] = {
    MessageType.STEP_STARTED: _started,
    MessageType.STEP_COMPLETED: _completed,
    MessageType.STEP_FAILED: _failed,
    MessageType.STEP_CONTINUE: _continue,
    MessageType.STEP_PAUSED: _paused,
    MessageType.STEP_SIGNAL: _signal,
}
