"""`fold`: from a journal to a state. One small function for each kind of event; nothing else ever changes a state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from fumehood.engine import events as e
from fumehood.engine.definition import Definition
from fumehood.engine.state import (
    Ending,
    Gate,
    Override,
    RunState,
    RunStatus,
    Signal,
    StepState,
    StepStatus,
    index_of,
    is_errand,
    item_id,
    owner_of,
    step_of,
)

SKIP, COMPLETE = "skip", "complete"
"""What somebody may decide about a step by hand."""

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
        pins=event.pins or {},
        steps={step.id: StepState() for step in definition.steps},
    )


def pinned(digest: str, document: dict[str, Any]) -> Definition:
    """A definition as a journal holds it. Checking it costs a millisecond, and thousands of runs share one: those that
    have the digest which they are said to have are remembered. The answer is the same with and without."""
    known = _definitions.get(digest)
    if known is None:
        try:
            known = Definition.model_validate(document)
        except ValidationError as error:  # it was accepted once: by somebody who knows more than this version
            raise e.UnknownFormatError(f"the definition {digest}") from error
        if known.digest == digest:
            _definitions[digest] = known
            if len(_definitions) > KNOWN_DEFINITIONS:
                _definitions.popitem(last=False)
    return known


def change(state: RunState, event: e.Event, at: int) -> None:
    """One event onto a state, in place."""
    _HANDLERS[type(event)](state, event, at)


def _step(state: RunState, name: str) -> StepState:
    """As it is; an errand beside the graph begins to be with the first thing that is said about it."""
    return state.steps.get(name) or StepState()


def _queued(state: RunState, event: e.StepQueued, at: int) -> None:
    before = _step(state, event.step)
    given = event.input if event.input is not None or index_of(event.step) is None else before.input
    state.steps[event.step] = replace(
        before,
        status=StepStatus.QUEUED,
        attempt=event.attempt,
        iteration=event.iteration,
        resumption=event.resumption,
        input=given,
        worker_id=None,
        wake_at=event.start_by,
        timeout_at=None,
    )


def _started(state: RunState, event: e.StepStarted, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step, status=StepStatus.RUNNING, worker_id=event.worker_id, wake_at=None, timeout_at=event.timeout_at
    )


def _continued(state: RunState, event: e.StepContinued, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step, status=StepStatus.PENDING, iteration=event.iteration, previous=event.said, timeout_at=None
    )


def _completed(state: RunState, event: e.StepCompleted, at: int) -> None:
    step = state.steps[event.step]
    _done(state, event.step, event.output, fenced=event.fenced, checkpointed=event.checkpointed)
    for index in range(step.items or 0):  # the map's own output has them now
        name = item_id(event.step, index)
        state.steps[name] = replace(state.steps[name], input=None, output=None)


def _done(state: RunState, name: str, output: Any, **changes: Any) -> None:
    state.completed += 1
    state.steps[name] = replace(
        state.steps[name],
        status=StepStatus.COMPLETED,
        output=output,
        failure=None,
        wake_at=None,
        timeout_at=None,
        previous=None,
        order=state.completed,
        **changes,
    )


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
    step = _step(state, event.step)
    for index in range(step.items or 0):  # the run may go on, but not with them
        _cancel_open(state, item_id(event.step, index))
    state.steps[event.step] = replace(
        step,
        status=StepStatus.FAILED,
        failure=event.failure,
        wake_at=None,
        timeout_at=None,
        fenced=event.fenced,
    )


def _skipped(state: RunState, event: e.StepSkipped, at: int) -> None:
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.SKIPPED)


def _sleeping(state: RunState, event: e.StepSleeping, at: int) -> None:
    state.steps[event.step] = replace(
        state.steps[event.step], status=StepStatus.SLEEPING, wake_at=event.wake_at, attempt=event.attempt
    )


def _expanded(state: RunState, event: e.MapExpanded, at: int) -> None:
    count = len(event.inputs)
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.MAPPING, items=count)
    for index, given in enumerate(event.inputs):
        state.steps[item_id(event.step, index)] = StepState(input=given)


def _resumed(state: RunState, event: e.MapResumed, at: int) -> None:
    state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.MAPPING)


def _order_refused(state: RunState, event: e.OrderRefused, at: int) -> None:
    state.refused[event.order] = event.reason


def _signalled(state: RunState, event: e.SignalReceived, at: int) -> None:
    state.signals = (*state.signals, Signal(event.name, event.data, at, of_worker=event.step is not None))


def _listening(state: RunState, event: e.StepListening, at: int) -> None:
    state.steps[event.step] = replace(
        state.steps[event.step], status=StepStatus.LISTENING, attempt=event.attempt, wake_at=event.expires_at
    )


def _taken(state: RunState, event: e.SignalTaken, at: int) -> None:
    told = list(state.signals)
    told[event.signal] = replace(told[event.signal], taken_by=event.step)
    state.signals = tuple(told)
    _done(state, event.step, told[event.signal].data, attempt=event.attempt)


def _requested(state: RunState, event: e.ApprovalRequested, at: int) -> None:
    state.steps[event.step] = replace(
        state.steps[event.step],
        status=StepStatus.AWAITING_APPROVAL,
        attempt=event.attempt,
        input=event.input,
        wake_at=event.expires_at,
    )


def _given(state: RunState, event: e.ApprovalGiven, at: int) -> None:
    output = {"approved": True, "by": event.by, "comment": event.comment, "at": at}
    _done(state, event.step, output | ({"via": event.via} if event.via else {}))


def _refused(state: RunState, event: e.ApprovalRefused, at: int) -> None:
    """Kept in the journal; the step's failure follows."""


def _calling(state: RunState, event: e.StepCalling, at: int) -> None:
    step = state.steps[event.step]
    state.steps[event.step] = replace(
        step,
        status=StepStatus.CALLING,
        attempt=event.attempt,
        child=event.run_id,
        digest=event.digest,
        former=step.former if step.child is None else (*step.former, step.child),
        input=event.input,
        wake_at=None,
        timeout_at=event.timeout_at,
    )


def _asked(state: RunState, event: e.GateAsked, at: int) -> None:
    state.gates[event.step] = Gate(event.key, event.limit, event.queue)
    if event.step:
        state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.BLOCKED)


def _passed(state: RunState, event: e.GatePassed, at: int) -> None:
    state.gates[event.step] = replace(state.gates[event.step], held=True)
    if event.step:
        state.steps[event.step] = replace(state.steps[event.step], status=StepStatus.PENDING)


def _overridden(state: RunState, event: e.StepOverridden, at: int) -> None:
    step = state.steps[event.step]
    for index in range(step.items or 0):
        _cancel_open(state, item_id(event.step, index))
    decided = Override(event.action, event.by, event.reason)
    if event.action == SKIP:
        state.steps[event.step] = replace(
            step, status=StepStatus.SKIPPED, failure=None, wake_at=None, timeout_at=None, override=decided
        )
    else:
        _done(state, event.step, event.output, override=decided)


def _cancel_open(state: RunState, name: str) -> None:
    step = state.steps[name]
    if not step.status.ended:
        state.steps[name] = replace(step, status=StepStatus.CANCELLED, wake_at=None, timeout_at=None)


def _ending(state: RunState, event: e.RunEnding, at: int) -> None:
    state.ending = Ending(RunStatus(event.status), event.failure, event.step, event.reason, event.by)
    state.deadline_at = event.deadline_at
    for name in list(state.steps):
        if not is_errand(name):  # those of an earlier try wait to be done again
            _cancel_open(state, name)


def _retried(state: RunState, event: e.RunRetried, at: int) -> None:
    """What was completed or skipped stays so; everything else begins anew, with attempts that nobody has had."""
    state.tries += 1
    state.status, state.ended_at, state.deadline_at = RunStatus.RUNNING, None, event.deadline_at
    state.failure, state.failed_step, state.ending, state.gates = None, None, None, {}
    before = dict(state.steps)
    for name, step in before.items():
        if _is_open_again(state, name, before):
            asks = index_of(name) is None and step_of(state, name).concurrency is not None
            state.steps[name] = _anew(step, asks=asks)


def _is_open_again(state: RunState, name: str, before: Mapping[str, StepState]) -> bool:
    """Not what went on although it failed; an item only where its map is; an errand is done again where it is needed
    again."""
    status = before[name].status
    if is_errand(name):
        return True
    if index_of(name) is not None and not _is_open_again(state, owner_of(name), before):
        return False
    return status is StepStatus.CANCELLED or (status is StepStatus.FAILED and not step_of(state, name).goes_on)


def _anew(step: StepState, *, asks: bool) -> StepState:
    """A map goes on with the items that are not done; one that needs a concurrency key asks for it first."""
    return StepState(
        status=StepStatus.PENDING if step.items is None or asks else StepStatus.MAPPING,
        attempt=step.attempt,
        base=step.attempt,
        items=step.items,
        input=step.input,
        child=step.child,
        former=step.former,
    )


def _ended(status: RunStatus) -> Callable[[RunState, Any, int], None]:
    def end(state: RunState, event: Any, at: int) -> None:
        state.status, state.ended_at = status, at
        state.output = getattr(event, "output", None)
        state.failure = getattr(event, "failure", None)
        state.failed_step = getattr(event, "step", None)
        state.continued_as = getattr(event, "continued_as", None)
        state.continued_input = getattr(event, "continued_input", None)
        for name in state.steps:
            _cancel_open(state, name)

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
    e.MapResumed: _resumed,
    e.OrderRefused: _order_refused,
    e.SignalReceived: _signalled,
    e.StepListening: _listening,
    e.SignalTaken: _taken,
    e.ApprovalRequested: _requested,
    e.ApprovalGiven: _given,
    e.ApprovalRefused: _refused,
    e.StepCalling: _calling,
    e.GateAsked: _asked,
    e.GatePassed: _passed,
    e.StepOverridden: _overridden,
    e.RunEnding: _ending,
    e.RunRetried: _retried,
    e.RunSucceeded: _ended(RunStatus.SUCCEEDED),
    e.RunFailed: _ended(RunStatus.FAILED),
    e.RunTimedOut: _ended(RunStatus.TIMED_OUT),
    e.RunCancelled: _ended(RunStatus.CANCELLED),
}
