"""`fold`: from a journal to a state. One small function for each kind of event; nothing else ever changes a state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fumehood.engine import events as e
from fumehood.engine.definition import Definition
from fumehood.engine.state import RunState, RunStatus, Signal, StepState, StepStatus, index_of, item_id

KNOWN_DEFINITIONS = 256
_definitions: OrderedDict[str, Definition] = OrderedDict()


def fold(run_id: str, records: Iterable[e.Record], state: RunState | None = None) -> RunState | None:
    """The state after these records, from nothing or from a snapshot (which is left as it was)."""
    working = state.copy() if state is not None else None
    for record in records:
        working = apply(run_id, working, record)
    return working


def apply(run_id: str, state: RunState | None, record: e.Record) -> RunState | None:
    """One record onto a state that the caller gives away."""
    for event in record.events:
        if isinstance(event, e.RunStarted):
            state = started(run_id, event, record.at)
        elif state is not None:
            change(state, event, record.at)
    if state is not None:
        state.consumed.update(record.consumed)
        state.events += len(record.events)
        state.updated_at = record.at
    return state


def started(run_id: str, event: e.RunStarted, at: int) -> RunState:
    definition = pinned(event.digest, event.definition)
    return RunState(
        run_id=run_id,
        definition=definition,
        input=event.input,
        started_at=at,
        deadline_at=event.deadline_at,
        digest=event.digest,
        meta=event.meta,
        steps={step.id: StepState() for step in definition.steps},
    )


def pinned(digest: str, document: dict[str, Any]) -> Definition:
    """A definition as a journal holds it. Checking it costs a millisecond, and thousands of runs share one: those that
    have the digest which they are said to have are remembered. The answer is the same with and without."""
    known = _definitions.get(digest)
    if known is None:
        known = Definition.model_validate(document)
        if known.digest == digest:
            _definitions[digest] = known
            if len(_definitions) > KNOWN_DEFINITIONS:
                _definitions.popitem(last=False)
    return known


def change(state: RunState, event: e.Event, at: int) -> None:
    """One event onto a state, in place."""
    _HANDLERS[type(event)](state, event, at)


def _queued(state: RunState, event: e.StepQueued, at: int) -> None:
    before = state.steps[event.step]
    given = event.input if event.input is not None or index_of(event.step) is None else before.input
    state.steps[event.step] = replace(
        before,
        status=StepStatus.QUEUED,
        attempt=event.attempt,
        iteration=event.iteration,
        resumption=event.resumption,
        input=given,
        worker_id=None,
        wake_at=None,
        timeout_at=None,
    )


def _started(state: RunState, event: e.StepStarted, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step, status=StepStatus.RUNNING, worker_id=event.worker_id, timeout_at=event.timeout_at
    )


def _continued(state: RunState, event: e.StepContinued, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step, status=StepStatus.PENDING, iteration=event.iteration, previous=event.said, timeout_at=None
    )


def _completed(state: RunState, event: e.StepCompleted, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step,
        status=StepStatus.COMPLETED,
        output=event.output,
        failure=None,
        wake_at=None,
        timeout_at=None,
        previous=None,
        fenced=event.fenced,
        checkpointed=event.checkpointed,
    )
    for index in range(step.items or 0):  # the map's own output has them now
        name = item_id(event.step, index)
        state.steps[name] = replace(state.steps[name], input=None, output=None)


def _retrying(state: RunState, event: e.StepRetrying, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step,
        status=StepStatus.WAITING,
        failure=event.failure,
        wake_at=event.wake_at,
        timeout_at=None,
        fenced=event.fenced,
    )


def _paused(state: RunState, event: e.StepPaused, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(step, status=StepStatus.PAUSED, wake_at=event.wake_at, timeout_at=None)


def _failed(state: RunState, event: e.StepFailed, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step, status=StepStatus.FAILED, failure=event.failure, wake_at=None, timeout_at=None, fenced=event.fenced
    )


def _skipped(state: RunState, event: e.StepSkipped, at: int) -> None:
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.SKIPPED)


def _sleeping(state: RunState, event: e.StepSleeping, at: int) -> None:
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.SLEEPING, wake_at=event.wake_at)


def _expanded(state: RunState, event: e.MapExpanded, at: int) -> None:
    count = len(event.inputs)
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.MAPPING, items=count)
    for index, given in enumerate(event.inputs):
        state.steps[item_id(event.step, index)] = StepState(input=given)


def _signalled(state: RunState, event: e.SignalReceived, at: int) -> None:
    state.signals = (*state.signals, Signal(event.name, event.data, at))


def _ended(status: RunStatus) -> Callable[[RunState, Any, int], None]:
    def end(state: RunState, event: Any, at: int) -> None:
        state.status, state.ended_at = status, at
        state.output = getattr(event, "output", None)
        state.failure = getattr(event, "failure", None)
        for name, step in state.steps.items():
            if not step.status.ended:
                state.steps[name] = replace(step, status=StepStatus.CANCELLED, wake_at=None, timeout_at=None)

    return end


_HANDLERS: dict[type[e.Event], Callable[[RunState, Any, int], None]] = {
    e.StepQueued: _queued,
    e.StepStarted: _started,
    e.StepContinued: _continued,
    e.StepCompleted: _completed,
    e.StepRetrying: _retrying,
    e.StepPaused: _paused,
    e.StepFailed: _failed,
    e.StepSkipped: _skipped,
    e.StepSleeping: _sleeping,
    e.MapExpanded: _expanded,
    e.SignalReceived: _signalled,
    e.RunSucceeded: _ended(RunStatus.SUCCEEDED),
    e.RunFailed: _ended(RunStatus.FAILED),
    e.RunTimedOut: _ended(RunStatus.TIMED_OUT),
    e.RunCancelled: _ended(RunStatus.CANCELLED),
}
