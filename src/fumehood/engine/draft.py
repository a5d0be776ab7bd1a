"""A decision in the making: every event is applied at once, so that the next one sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fumehood.engine import content, expression
from fumehood.engine import events as e
from fumehood.engine.definition import undo_id
from fumehood.engine.fold import change, started
from fumehood.engine.parts import Retry
from fumehood.engine.state import Ending, Failure, RunState, RunStatus, StepState, StepStatus, step_of


class Draft:
    """`state` is there once the run has begun: what follows from messages is only asked of one that has."""

    state: RunState

    def __init__(self, run_id: str, state: RunState | None, now: int, contents: Mapping[str, Any]) -> None:
        self.run_id = run_id
        self.contents = contents
        self.now = now
        self.events: list[e.Event] = []
        self.consumed: list[str] = []
        self.has_begun = state is not None
        if state is not None:
            self.state = state.copy()
        self._meter = expression.Meter()
        self._seen = -1

    @property
    def is_ahead(self) -> bool:
        """Whether something may follow from what was said since the run was last moved on."""
        return self.has_begun and len(self.events) > self._seen

    def caught_up(self) -> None:
        self._seen = len(self.events)

    def begin(self, event: e.RunStarted) -> None:
        self.state, self.has_begun = started(self.run_id, event, self.now), True
        self.events.append(event)

    def say(self, event: e.Event) -> None:
        change(self.state, event, self.now)
        self.events.append(event)

    def remember(self, message_id: str) -> None:
        """Nothing but its id tells this message from the same one coming again."""
        self.consumed.append(message_id)
        self.state.consumed.add(message_id)

    def values(self) -> content.Sight:
        """What expressions see now."""
        return content.Sight(self.state, self.contents, self._meter)

    def after(self, duration: int | None) -> int | None:
        return self.now + duration if duration is not None else None

    # --- what several of its makers say --------------------------------------------------------------------

    def queue(self, name: str, attempt: int, iteration: int, given: Any, resumption: int = 0) -> None:
        start_by = self.after(step_of(self.state, name).start_within)
        self.say(e.StepQueued(name, attempt, iteration, given, resumption, start_by))

    def call(self, name: str, given: Any) -> None:
        """Have another run do the step's work."""
        defined = step_of(self.state, name)
        assert defined.sub_workflow is not None
        workflow = defined.sub_workflow.workflow
        digest = self.state.pins.get(workflow)
        if digest is None:
            self.say(e.StepFailed(name, 0, Failure("no_workflow", f"there was no workflow {workflow} at the start")))
            return
        attempt = self.state.steps[name].attempt + 1
        child = new_run_id(self.now, self.run_id, name, str(attempt))
        self.say(e.StepCalling(name, attempt, child, digest, given, self.after(defined.timeout)))

    def attempt_failed(
        self, name: str, step: StepState, failure: Failure, *, final: bool = False, fenced: bool = True
    ) -> None:
        retry = step_of(self.state, name).retry
        if final or step.tried >= retry.attempts or failure.code in retry.non_retryable:
            self.say(e.StepFailed(name, step.attempt, failure, fenced))
            return
        wake_at = self.now + backoff_ms(retry, self.run_id, name, step.tried)
        self.say(e.StepRetrying(name, step.attempt, failure, wake_at, fenced))

    def end(self, ending: Ending) -> None:
        """So the run ends: at once, or when what was done is undone and who wants to know has been told."""
        if self.state.ending is None and self._has_errands(ending):
            again = self.after(self.state.definition.deadline)
            self.say(e.RunEnding(ending.status.value, ending.failure, ending.step, ending.reason, ending.by, again))
        else:
            self.say(_end_event(_with_what_stayed(self.state, ending)))

    def _has_errands(self, ending: Ending) -> bool:
        handled = self.state.definition.on_failure is not None and ending.status is not RunStatus.CANCELLED
        return handled or bool(undoable(self.state))


def undoable(state: RunState) -> list[str]:
    """Steps to undo, the last one first."""
    done = [
        (state.steps[step.id].order, step.id)
        for step in state.definition.steps
        if step.compensate is not None and state.steps[step.id].status is StepStatus.COMPLETED
    ]
    return [name for _, name in sorted(done, key=lambda one: -one[0])]


def _with_what_stayed(state: RunState, ending: Ending) -> Ending:
    """What could not be undone, or was to be and is not, is for people to know."""
    begun = undoable(state) if state.ending is not None else []
    names = [name for name in begun if not _is_undone(state, name)]
    if not names:
        return ending
    said = f"not undone: {', '.join(names)}"
    if ending.failure is None:
        return replace(ending, reason=f"{ending.reason}; {said}" if ending.reason else said)
    return replace(ending, failure=Failure(ending.failure.code, f"{ending.failure.message}; {said}"))


def _is_undone(state: RunState, name: str) -> bool:
    undo = state.steps.get(undo_id(name))
    return undo is not None and undo.status is StepStatus.COMPLETED


def was_undone(state: RunState) -> bool:
    """Whether anything of what a run did was taken back, or may have been."""
    return any(undo_id(step.id) in state.steps for step in state.definition.steps if step.compensate is not None)


def _end_event(ending: Ending) -> e.Event:
    if ending.status is RunStatus.CANCELLED:
        return e.RunCancelled(ending.reason, ending.by)
    if ending.status is RunStatus.TIMED_OUT:
        return e.RunTimedOut(ending.failure)
    return e.RunFailed(ending.failure or Failure("failed"), ending.step)


def backoff_ms(retry: Retry, run_id: str, step: str, attempt: int) -> int:
    """How long an attempt waits before the next. The jitter is drawn from the names, so it is always the same."""
    plain = min(retry.backoff * retry.factor ** (attempt - 1), float(retry.max_backoff))
    drawn = int.from_bytes(hashlib.sha256(f"{run_id}/{step}/{attempt}".encode()).digest()[:8], "big") / 2**64
    return max(1, int(plain * (1 + retry.jitter * drawn)))


def new_run_id(now: int, *names: str) -> str:
    """For a run that follows from another: in the form that all have, and nobody's guess as long as that one's is."""
    return f"run-{now:012x}{hashlib.sha256('/'.join(names).encode()).hexdigest()[:20]}"
