"""A run as it is seen to grow, and what must never happen to it, event by event.

Each event is looked at against the state before it. None of this asks the engine what should follow: it only uses its
fold, which is held against a fold of the whole journal at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fumehood.engine import events as e
from fumehood.engine.definition import HANDLER, undo_id
from fumehood.engine.desired import desired
from fumehood.engine.events import Event, Record
from fumehood.engine.fold import apply, fold
from fumehood.engine.state import RunState, RunStatus, StepState, StepStatus, index_of, is_errand, owner_of

BEGINNINGS = (
    e.StepQueued,
    e.StepSleeping,
    e.StepListening,
    e.ApprovalRequested,
    e.StepCalling,
    e.MapExpanded,
    e.MapResumed,
)
COMPLETIONS = (e.StepCompleted, e.SignalTaken, e.ApprovalGiven)
ENDS = (e.RunSucceeded, e.RunFailed, e.RunTimedOut, e.RunCancelled)
_NOT_UNDONE = "not undone: "


class BrokenError(AssertionError):
    """Something that must never happen happened."""


@dataclass(slots=True)
class End:
    """How a run ended once."""

    at: int
    status: RunStatus
    output: Any
    code: str | None


@dataclass(slots=True)
class Call:
    """What became of a run that a step called, as the step tells it."""

    step: str
    child: str
    at: int
    """When the step stopped waiting for it."""
    event: Event


@dataclass(slots=True)
class Watched:
    run_id: str
    said: Callable[[str, str, int], list[Any]]
    """What workers answered for a step and an attempt of this run."""
    state: RunState | None = None
    records: list[Record] = field(default_factory=list)
    log: list[tuple[int, Event]] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    """Steps of the graph and items, in order."""
    handed_out: set[tuple[str, int, int, int]] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    """What people said, each thing once."""

    @property
    def now(self) -> RunState:
        if self.state is None:
            raise BrokenError(f"{self.run_id} has a journal and no state")
        return self.state

    def take(self, record: Record) -> None:
        self.records.append(record)
        before = self.state.copy() if self.state is not None else None
        for event in record.events:
            if self.state is not None:
                self._check(self.state, event, record.at)
            self.state = apply(self.run_id, self.state, Record(record.at, (event,), record.consumed))
            self.log.append((record.at, event))
            if isinstance(event, ENDS):
                now, failure = self.now, self.now.failure
                self.ends.append(End(record.at, now.status, now.output, failure.code if failure else None))
        self._check_whole(before, self.now)

    def fold_anew(self) -> None:
        if fold(self.run_id, self.records) != self.state:
            raise BrokenError(f"{self.run_id}: a state that its journal does not fold to")

    def held(self) -> list[tuple[str, str, int]]:
        """The concurrency keys that the run and its steps hold, and how many may."""
        name = self.now.definition.name
        return [(f"{name}/{claim.step}", claim.key, claim.limit) for claim in desired(self.state).claims if claim.held]

    # --- one event -----------------------------------------------------------------------------------------

    def _check(self, state: RunState, event: Event, at: int) -> None:
        if state.status.ended and not isinstance(event, e.RunRetried):
            raise self._broken("went on after its end", event)
        if isinstance(event, BEGINNINGS):
            self._check_beginning(state, event)
        if isinstance(event, e.StepQueued):
            self._check_new(event)
            if event.step.endswith(undo_id("")):
                self._check_undo(state, event)
        if isinstance(event, COMPLETIONS) or (isinstance(event, e.StepOverridden) and event.action == "complete"):
            self._check_completion(event)
        if isinstance(event, e.SignalTaken):
            self._check_signal(state, event)
        if isinstance(event, e.RunRetried):
            self._check_retry(state, event)
        elif isinstance(event, ENDS):
            self._check_end(state, event)
        self._check_tag(event)

    def _check_beginning(self, state: RunState, event: Any) -> None:
        if is_errand(event.step):
            if state.ending is None:
                raise self._broken("an errand without an end", event)
            return
        owner = owner_of(event.step)
        if state.ending is not None or state.steps[event.step].status.ended:
            raise self._broken("began with what has ended", event)
        for gate, wanted in (("", state.definition.concurrency), (owner, state.definition.step(owner).concurrency)):
            if wanted is not None and (gate not in state.gates or not state.gates[gate].held):
                raise self._broken("began without its key", event)

    def _check_new(self, event: e.StepQueued) -> None:
        handed_out = (event.step, event.attempt, event.iteration, event.resumption)
        if handed_out in self.handed_out:
            raise self._broken("the same task once more", event)
        self.handed_out.add(handed_out)

    def _check_undo(self, state: RunState, event: e.StepQueued) -> None:
        """The last thing first, one after the other."""
        owner = owner_of(event.step)
        later = self.completed[self.completed.index(owner) + 1 :]
        for name in later:
            undo = state.steps.get(undo_id(name))
            wanted = "--" not in name and state.definition.step(name).compensate is not None
            if wanted and (undo is None or not undo.status.ended):
                raise self._broken(f"undone before {name}", event)

    def _check_completion(self, event: Any) -> None:
        if event.step in self.completed:
            raise self._broken("completed twice", event)
        if event.step != HANDLER:  # that one in each try
            self.completed.append(event.step)
        drawn = isinstance(event, e.StepCompleted) and isinstance(event.output, dict) and "drawn" in event.output
        if drawn and event.output not in self.said(self.run_id, event.step, event.attempt):
            raise self._broken("has an output that no worker of that attempt gave", event)

    def _check_signal(self, state: RunState, event: e.SignalTaken) -> None:
        """The oldest one that nobody has."""
        wait = state.definition.step(event.step).wait_signal
        fitting = [
            number
            for number, signal in enumerate(state.signals)
            if wait is not None and signal.name == wait.name and signal.taken_by is None
        ]
        if event.signal != next(iter(fitting), None):
            raise self._broken("took a signal that was not its", event)

    def _check_retry(self, state: RunState, event: Event) -> None:
        if not state.status.ended or state.status is RunStatus.SUCCEEDED:
            raise self._broken("taken up although it did not fail", event)
        if any(undo_id("") in name for name in state.steps):
            raise self._broken("taken up after it was undone", event)

    def _check_end(self, state: RunState, event: Any) -> None:
        """Everything that can be undone is, or the end says that it is not."""
        if isinstance(event, e.RunSucceeded):
            return
        undone = all(step.status.ended for name, step in state.steps.items() if name.endswith(undo_id("")))
        told = state.steps.get(HANDLER, StepState()).status not in (StepStatus.PENDING, StepStatus.CANCELLED)
        if undone and not told and state.definition.on_failure and not isinstance(event, e.RunCancelled):
            raise self._broken("told nobody", event)
        said = event.reason if isinstance(event, e.RunCancelled) else getattr(event.failure, "message", "")
        known = said.partition(_NOT_UNDONE)[2].split(", ")
        for step in state.definition.steps:
            undo = state.steps.get(undo_id(step.id), StepState())
            to_undo = step.compensate is not None and step.id in self.completed
            if to_undo and undo.status is not StepStatus.COMPLETED and step.id not in known:
                raise self._broken(f"{step.id} was not undone", event)

    def _check_tag(self, event: Event) -> None:
        tag = _tag(event)
        if tag is not None and tag in self.tags:
            raise self._broken("was told the same twice", event)
        if tag is not None:
            self.tags.add(tag)

    # --- one decision --------------------------------------------------------------------------------------

    def _check_whole(self, before: RunState | None, after: RunState) -> None:
        if not after.status.ended:
            self._check_open(after)
        for name, step in (before.steps if before is not None else {}).items():
            if step.status is StepStatus.CALLING and step.child is not None:
                now = after.steps[name]
                if now.status is not StepStatus.CALLING or now.child != step.child:
                    self.calls.append(Call(name, step.child, self.records[-1].at, self._about(name)))

    def _about(self, step: str) -> Event:
        """What the last decision said about a step first, or about the whole run."""
        events = self.records[-1].events
        return next((event for event in events if getattr(event, "step", None) == step), events[-1])

    def _check_open(self, state: RunState) -> None:
        untaken = {signal.name for signal in state.signals if signal.taken_by is None}
        for defined in state.definition.steps:
            step = state.steps[defined.id]
            listens = step.status is StepStatus.LISTENING and defined.wait_signal is not None
            if listens and defined.wait_signal is not None and defined.wait_signal.name in untaken:
                raise BrokenError(f"{self.run_id}: {defined.id} waits for a signal that is there")
        for name, step in state.steps.items():
            if index_of(name) is not None and state.steps[owner_of(name)].status.ended and not step.status.ended:
                raise BrokenError(f"{self.run_id}: {name} goes on, and its map has ended")
        most = state.definition.max_parallel
        busy = sum(state.steps[defined.id].status.at_work for defined in state.definition.steps)
        if most is not None and busy > most:
            raise BrokenError(f"{self.run_id}: {busy} steps at work, more than {most}")

    def _broken(self, what: str, event: Event) -> BrokenError:
        return BrokenError(f"{self.run_id}: {getattr(event, 'step', '')} {what}: {event}")


def _tag(event: Event) -> str | None:
    """What tells one thing that somebody said from all others."""
    if isinstance(event, e.SignalReceived) and isinstance(event.data, str):
        return event.data
    if isinstance(event, e.ApprovalGiven | e.ApprovalRefused):
        return event.comment
    if isinstance(event, e.StepOverridden):
        return f"{event.reason} by hand"
    if isinstance(event, e.RunRetried):
        return event.reason
    return None
