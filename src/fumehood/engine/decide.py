"""`decide`: what follows from a state and the messages that wait for it. Pure.

All waiting messages are taken in at once and then the run is moved on as far as it goes: steps whose needs are settled
are handed out, maps refilled, ends drawn. The outcome is one record. Late, repeated and foreign messages change
nothing: what is out is known by attempt and iteration, so that no message needs to be remembered to be taken only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.engine import content, expression, graph
from fumehood.engine import events as e
from fumehood.engine.definition import Retry, Step
from fumehood.engine.desired import DEADLINE, PAUSE, RETRY, SLEEP, TIMEOUT
from fumehood.engine.expression import ExpressionError
from fumehood.engine.fold import change, fold, started
from fumehood.engine.messages import WORKERS_SAY, Ignored, Message, MessageType
from fumehood.engine.state import (
    Failure,
    RunState,
    StepState,
    StepStatus,
    item_id,
    step_of,
)

SHOWN = 5
"""Steps that a sentence names."""
MAX_PAUSES = 10_000
MAX_SIGNALS = 1_000
"""Of one run: what is told beyond is ignored, and counted."""
MAX_ITEMS = 10_000
"""Items of one map: more should be another workflow's."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`record` is `None` when nothing follows: then there is nothing to append."""

    record: e.Record | None
    state: RunState | None
    ignored: tuple[tuple[str, Ignored], ...] = ()


def decide(
    run_id: str,
    state: RunState | None,
    messages: Sequence[Message],
    now: int,
    contents: Mapping[str, Any] | None = None,
) -> Decision:
    """The next record of a run, and the state that it leads to. The given state is left as it was.

    `contents` has what references stand for, by their hash; `ContentNeededError` names what else is needed.
    """
    draft = _Draft(run_id, state, now, contents or {})
    ignored = []
    for message in messages:
        reason = draft.take(message)
        if reason is not None:
            ignored.append((message.id, reason))
    draft.advance()
    if not draft.events:
        return Decision(None, state, tuple(ignored))
    record = e.Record(now, tuple(draft.events), tuple(draft.consumed))
    assert draft.state is not None
    draft.state.consumed.update(record.consumed)
    draft.state.events += len(record.events)
    draft.state.updated_at = now
    return Decision(record, draft.state, tuple(ignored))


def abandon(run_id: str, state: RunState | None, messages: Sequence[Message], now: int, failure: Failure) -> Decision:
    """The end of a run that cannot go on: what follows from these messages could not be decided or recorded."""
    draft = _Draft(run_id, state, now, {})
    for message in messages:
        if draft.state is None and message.type is MessageType.START:
            draft.take(message)
    ignored = tuple((message.id, Ignored.RUN_ENDED) for message in messages)
    if draft.state is None or draft.state.status.ended:
        return Decision(None, state, ignored)
    draft.say(e.RunFailed(failure))
    record = e.Record(now, tuple(draft.events), tuple(draft.consumed))
    return Decision(record, fold(run_id, [record], state), ignored)


def backoff_ms(retry: Retry, run_id: str, step: str, attempt: int) -> int:
    """How long an attempt waits before the next. The jitter is drawn from the names, so it is always the same."""
    plain = min(retry.backoff * retry.factor ** (attempt - 1), float(retry.max_backoff))
    drawn = int.from_bytes(hashlib.sha256(f"{run_id}/{step}/{attempt}".encode()).digest()[:8], "big") / 2**64
    return max(1, int(plain * (1 + retry.jitter * drawn)))


class _Draft:
    """A decision in the making: every event is applied at once, so that the next one sees it."""

    def __init__(self, run_id: str, state: RunState | None, now: int, contents: Mapping[str, Any]) -> None:
        self.run_id = run_id
        self.contents = contents
        self.meter = expression.Meter()
        self.now = now
        self.state = state.copy() if state is not None else None
        self.events: list[e.Event] = []
        self.consumed: list[str] = []

    def say(self, event: e.Event) -> None:
        assert self.state is not None
        change(self.state, event, self.now)
        self.events.append(event)

    # --- taking messages in --------------------------------------------------------------------------------

    def take(self, message: Message) -> Ignored | None:
        """`None`, or why it had no effect."""
        if message.type is MessageType.START:
            return self._start(message)
        if self.state is None:
            return Ignored.NO_RUN
        if self.state.status.ended:
            return Ignored.RUN_ENDED
        if message.type in WORKERS_SAY:
            return self._worker(message)
        if message.type is MessageType.TIMER:
            return self._timer(message)
        return self._cancel(message)

    def _start(self, message: Message) -> Ignored | None:
        if self.state is not None:
            return Ignored.DUPLICATE
        body = message.body
        deadline = body["definition"].get("deadline")
        event = e.RunStarted(
            definition=body["definition"],
            digest=str(body["digest"]),
            input=body.get("input"),
            deadline_at=self.now + _deadline_ms(deadline) if deadline is not None else None,
            meta=dict(body.get("meta") or {}),
        )
        self.state = started(self.run_id, event, self.now)
        self.events.append(event)
        self.consumed.append(message.id)
        return None

    def _cancel(self, message: Message) -> Ignored | None:
        assert self.state is not None
        if message.id in self.state.consumed:
            return Ignored.DUPLICATE
        self.say(e.RunCancelled(str(message.body.get("reason", "")), str(message.body.get("by", ""))))
        self.consumed.append(message.id)
        return None

    def _worker(self, message: Message) -> Ignored | None:
        assert self.state is not None
        step = self.state.steps.get(message.step)
        if step is None:
            return Ignored.UNKNOWN_STEP
        reason = _fence(step, message.body)
        remembered = message.body.get("attempt") is None or message.type is MessageType.STEP_SIGNAL
        if remembered and message.id in self.state.consumed:
            return Ignored.DUPLICATE
        if reason is None:
            reason = _WORKER_HANDLERS[message.type](self, message.step, step, message.body)
        if reason is None and remembered:  # nothing else tells it from the same message coming again
            self.consumed.append(message.id)
            self.state.consumed.add(message.id)
        return reason

    def _timer(self, message: Message) -> Ignored | None:
        assert self.state is not None
        kind, body = message.body.get("kind"), message.body
        if kind == DEADLINE:  # the broker's clock said that it is time; ours may be behind, and this comes only once
            if self.state.deadline_at is None:
                return Ignored.STALE_TIMER
            self.say(e.RunTimedOut(Failure(DEADLINE, f"the run's deadline passed; {self._still_open()}")))
            return None
        step = self.state.steps.get(message.step)
        age = (body.get("attempt"), body.get("iteration"), body.get("resumption", 0))
        if step is None or (step.attempt, step.iteration, step.resumption) != age:
            return Ignored.STALE_TIMER
        if kind == RETRY and step.status is StepStatus.WAITING:
            self._queue(message.step, step.attempt + 1, step.iteration, step.input)
        elif kind == PAUSE and step.status is StepStatus.PAUSED:
            self._queue(message.step, step.attempt, step.iteration, step.input, step.resumption + 1)
        elif kind == SLEEP and step.status is StepStatus.SLEEPING:
            self.say(e.StepCompleted(message.step, step.attempt))
        elif kind == TIMEOUT and step.status is StepStatus.RUNNING:
            self._attempt_failed(message.step, step, Failure(TIMEOUT, "the step took longer than its timeout"))
        else:
            return Ignored.STALE_TIMER
        return None

    def _still_open(self) -> str:
        """For whoever wonders what it was waiting for."""
        assert self.state is not None
        waiting = [f"{name} was {step.status}" for name, step in self.state.steps.items() if not step.status.ended]
        more = f" and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
        return ", ".join(waiting[:SHOWN]) + more

    # --- what workers say ----------------------------------------------------------------------------------

    def on_started(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        assert self.state is not None
        if step.status is StepStatus.RUNNING:  # the first to begin; saying so again would let a worker fill the journal
            return Ignored.DUPLICATE
        timeout = step_of(self.state, name).timeout
        until = self.now + timeout if timeout is not None else None
        self.say(e.StepStarted(name, step.attempt, body.get("worker_id"), until))
        return None

    def on_completed(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        fenced, checkpointed = body.get("fenced", True), body.get("checkpointed", False)
        self.say(e.StepCompleted(name, step.attempt, body.get("output"), fenced, checkpointed))
        return None

    def on_failed(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        failure = Failure(str(body.get("code") or "failed"), str(body.get("message") or ""))
        fenced = body.get("fenced", True)
        self._attempt_failed(name, step, failure, final=body.get("retryable") is False, fenced=fenced)
        return None

    def on_paused(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        if (body.get("resumption") or 0) != step.resumption:  # only our own workers pause this way, and they name it
            return Ignored.OTHER_RESUMPTION
        if step.resumption >= MAX_PAUSES:
            message = f"the attempt paused more than {MAX_PAUSES} times"
            self.say(e.StepFailed(name, step.attempt, Failure("max_pauses", message)))
            return None
        self.say(e.StepPaused(name, step.attempt, self.now + int(body["duration_ms"])))
        return None

    def on_signal(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        assert self.state is not None
        if len(self.state.signals) >= MAX_SIGNALS:
            return Ignored.TOO_MANY
        self.say(e.SignalReceived(str(body["name"]), body.get("data"), name))
        return None

    def on_continue(self, name: str, step: StepState, body: dict[str, Any]) -> Ignored | None:
        assert self.state is not None
        loop = step_of(self.state, name).agent_loop
        if loop is None:  # the worker has answered and will not answer again
            message = "the worker asked for another iteration, but the step is no agent_loop"
            self.say(e.StepFailed(name, step.attempt, Failure("not_a_loop", message)))
            return None
        if step.iteration + 1 >= loop.max_iterations:
            message = f"the loop wanted more than {loop.max_iterations} iterations"
            self.say(e.StepFailed(name, step.attempt, Failure("max_iterations", message)))
            return None
        said = body.get("output")
        try:
            given = content.whole(step.input, self.contents)
        except ExpressionError as error:
            self.say(e.StepFailed(name, step.attempt, Failure("expression", str(error))))
            return None
        self.say(e.StepContinued(name, step.iteration + 1, said))
        self._queue(name, step.attempt, step.iteration + 1, _with_previous(given, said))
        return None

    def _attempt_failed(
        self, name: str, step: StepState, failure: Failure, *, final: bool = False, fenced: bool = True
    ) -> None:
        assert self.state is not None
        retry = step_of(self.state, name).retry
        if final or step.attempt >= retry.attempts or failure.code in retry.non_retryable:
            self.say(e.StepFailed(name, step.attempt, failure, fenced))
            return
        wake_at = self.now + backoff_ms(retry, self.run_id, name, step.attempt)
        self.say(e.StepRetrying(name, step.attempt, failure, wake_at, fenced))

    # --- moving on -----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """As far as it goes without anybody's help."""
        while self.state is not None and not self.state.status.ended and self._move():
            pass

    def _move(self) -> bool:
        """One round over all steps; whether anything changed."""
        assert self.state is not None
        before = len(self.events)
        for defined in self.state.definition.steps:
            step = self.state.steps[defined.id]
            if step.status is StepStatus.PENDING and self._needs_settled(defined):
                self._activate(defined)
            elif step.status is StepStatus.MAPPING:
                self._tend_map(defined, step)
            if self.state.steps[defined.id].status is StepStatus.FAILED:
                failed = self.state.steps[defined.id].failure or Failure("failed")
                self.say(e.RunFailed(failed, defined.id))
                return False
        if all(self.state.steps[defined.id].status.settled for defined in self.state.definition.steps):
            self._succeed()
        return len(self.events) > before

    def _needs_settled(self, defined: Step) -> bool:
        assert self.state is not None
        return all(self.state.steps[needed].status.settled for needed in defined.needs)

    def _activate(self, defined: Step) -> None:
        assert self.state is not None
        try:
            if defined.when is not None and not self._is_true(defined.when):
                self.say(e.StepSkipped(defined.id))
                return
            _BEGINNINGS[defined.kind](self, defined)
        except ExpressionError as error:
            self.say(e.StepFailed(defined.id, 0, Failure("expression", str(error))))

    def _values(self) -> content.Sight:
        """What expressions see now."""
        assert self.state is not None
        return content.Sight(self.state, self.contents, self.meter)

    def _is_true(self, condition: str) -> bool:
        return self._values().truth(condition)

    def begin_task(self, defined: Step) -> None:
        assert self.state is not None
        given = self.state.input
        if defined.with_ is not None:
            given = self._values().fill(defined.with_)
        self._queue(defined.id, 1, 0, given)

    def begin_sleep(self, defined: Step) -> None:
        self.say(e.StepSleeping(defined.id, self.now + (defined.sleep or 0)))

    def begin_map(self, defined: Step) -> None:
        assert defined.map is not None
        items = self._values().listed(defined.map.over)
        if not isinstance(items, list):
            raise ExpressionError(f"map.over is {type(items).__name__}, not a list")
        if len(items) > MAX_ITEMS:
            raise ExpressionError(f"map.over has {len(items)} items, more than {MAX_ITEMS}")
        if defined.with_ is not None:
            items = self._values().each(defined.with_, items)
        self.say(e.MapExpanded(defined.id, items))

    def _tend_map(self, defined: Step, step: StepState) -> None:
        """Hand out items up to the bound; when all have ended, so has the map."""
        assert self.state is not None
        assert defined.map is not None
        names = [item_id(defined.id, index) for index in range(step.items or 0)]
        items = [self.state.steps[name] for name in names]
        failed = next((item for item in items if item.status is StepStatus.FAILED), None)
        if failed is not None:
            self.say(e.StepFailed(defined.id, 0, failed.failure or Failure("failed")))
            return
        if all(item.status is StepStatus.COMPLETED for item in items):
            self.say(e.StepCompleted(defined.id, 0, [item.output for item in items]))
            return
        busy = sum(1 for item in items if not item.status.ended and item.status is not StepStatus.PENDING)
        room = (defined.map.concurrency or len(items)) - busy
        waiting = [name for name, item in zip(names, items, strict=True) if item.status is StepStatus.PENDING]
        for name in waiting[: max(0, room)]:
            self._queue(name, 1, 0, None)  # what it is given stands in the map's own event

    def _queue(self, name: str, attempt: int, iteration: int, given: Any, resumption: int = 0) -> None:
        self.say(e.StepQueued(name, attempt, iteration, given, resumption))

    def _succeed(self) -> None:
        assert self.state is not None
        definition = self.state.definition
        try:
            if definition.output is not None:
                output = self._values().fill(definition.output)
            else:
                ends = graph.leaves({step.id: step.needs for step in definition.steps})
                output = {name: self.state.steps[name].output for name in ends}
        except ExpressionError as error:
            self.say(e.RunFailed(Failure("expression", f"output: {error}")))
            return
        self.say(e.RunSucceeded(output))


_WORKER_HANDLERS: dict[MessageType, Callable[[_Draft, str, StepState, dict[str, Any]], Ignored | None]] = {
    MessageType.STEP_STARTED: _Draft.on_started,
    MessageType.STEP_COMPLETED: _Draft.on_completed,
    MessageType.STEP_FAILED: _Draft.on_failed,
    MessageType.STEP_CONTINUE: _Draft.on_continue,
    MessageType.STEP_PAUSED: _Draft.on_paused,
    MessageType.STEP_SIGNAL: _Draft.on_signal,
}

_BEGINNINGS: dict[str, Callable[[_Draft, Step], None]] = {
    "task": _Draft.begin_task,
    "sandbox": _Draft.begin_task,
    "agent_loop": _Draft.begin_task,
    "map": _Draft.begin_map,
    "sleep": _Draft.begin_sleep,
}


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


def _with_previous(given: Any, said: Any) -> Any:
    """The next iteration's input: the step's own, and what the last one said."""
    base = given if isinstance(given, dict) else {"input": given}
    return {**base, "previous": said}


def _deadline_ms(value: Any) -> int:
    return int(value)
