"""Moving a run on as far as it goes without anybody's help.

Steps whose needs are settled begin, maps are refilled, ends are drawn, and what was done is undone where the run does
not succeed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fumehood.engine import events as e
from fumehood.engine import graph
from fumehood.engine.definition import HANDLER, Step, undo_id
from fumehood.engine.draft import Draft, new_run_id, undoable
from fumehood.engine.expression import ExpressionError
from fumehood.engine.parts import Concurrency, Errand
from fumehood.engine.state import Ending, Failure, RunStatus, StepState, StepStatus, item_id, owner_of

MAX_ITEMS = 10_000
"""Items of one map: more should be another workflow's."""
MAX_ITEMS_OF_RUN = 20_000
"""Items of all maps of a run: every message to it looks at the open ones."""
MAX_DEPTH = 16
"""Runs that call each other: more is a circle."""
LONGEST_KEY = 1024
"""Characters of a concurrency key."""
EXPRESSION = "expression"


def advance(draft: Draft) -> None:
    while draft.is_ahead and not draft.state.status.ended and _move(draft):
        pass
    draft.caught_up()


def _move(draft: Draft) -> bool:
    """One round; whether anything changed."""
    before = len(draft.events)
    if draft.state.ending is not None:
        _wind_down(draft, draft.state.ending)
    elif _is_let_in(draft):
        _go_round(draft)
    return len(draft.events) > before


def _go_round(draft: Draft) -> None:
    """Over all steps."""
    state, room = draft.state, _room(draft)
    for defined in state.definition.in_order:
        step = state.steps[defined.id]
        if step.status is StepStatus.PENDING and _needs_settled(draft, defined):
            _activate(draft, defined, has_room=room > 0)
            room -= state.steps[defined.id].status.at_work
        elif step.status is StepStatus.MAPPING:
            _tend_map(draft, defined, step)
        elif step.status is StepStatus.LISTENING:
            _listen(draft, defined, step)
        ended = state.steps[defined.id]
        if ended.status is StepStatus.FAILED and not defined.goes_on:
            failure = ended.failure or Failure("failed")
            draft.end(Ending(RunStatus.FAILED, failure.without_details(), defined.id))
            return
    if all(_is_settled(state.steps[defined.id], defined) for defined in state.definition.steps):
        _succeed(draft)


def _is_settled(step: StepState, defined: Step) -> bool:
    return step.status.settled or (step.status is StepStatus.FAILED and defined.goes_on)


def _needs_settled(draft: Draft, defined: Step) -> bool:
    state = draft.state
    return all(_is_settled(state.steps[needed], state.definition.step(needed)) for needed in defined.needs)


# --- gates -------------------------------------------------------------------------------------------------


def _is_let_in(draft: Draft) -> bool:
    """Whether the run itself may go on: it has the key that it wants, or wants none."""
    concurrency = draft.state.definition.concurrency
    if concurrency is None:
        return True
    gate = draft.state.gates.get("")
    if gate is None:
        try:
            _ask(draft, "", concurrency)
        except ExpressionError as error:
            draft.end(Ending(RunStatus.FAILED, Failure(EXPRESSION, f"concurrency: {error}")))
        return False
    return gate.held


def _ask(draft: Draft, step: str, wanted: Concurrency) -> None:
    given = draft.values().fill(wanted.key)
    key = given if isinstance(given, str) else json.dumps(given, sort_keys=True, separators=(",", ":"))
    if len(key) > LONGEST_KEY:
        raise ExpressionError(f"the key has more than {LONGEST_KEY} characters")
    draft.say(e.GateAsked(key, wanted.limit, step, wanted.on_conflict == "queue"))


def _room(draft: Draft) -> int:
    """How many more steps may be at work."""
    most, steps = draft.state.definition.max_parallel, draft.state.steps
    if most is None:
        return len(steps) + 1
    return most - sum(steps[defined.id].status.at_work for defined in draft.state.definition.steps)


# --- steps that begin --------------------------------------------------------------------------------------


def _activate(draft: Draft, defined: Step, *, has_room: bool) -> None:
    gate = draft.state.gates.get(defined.id)
    try:
        if gate is None and defined.when is not None and not draft.values().truth(defined.when):
            draft.say(e.StepSkipped(defined.id))
        elif defined.kind not in _ONLY_WAITING and not has_room:
            return
        elif gate is None and defined.concurrency is not None:
            _ask(draft, defined.id, defined.concurrency)
        else:
            _BEGINNINGS[defined.kind](draft, defined)
    except ExpressionError as error:
        draft.say(e.StepFailed(defined.id, 0, Failure(EXPRESSION, str(error))))


def _given(draft: Draft, defined: Step) -> Any:
    return draft.state.input if defined.with_ is None else draft.values().fill(defined.with_)


def _begin_task(draft: Draft, defined: Step) -> None:
    draft.queue(defined.id, draft.state.steps[defined.id].attempt + 1, 0, _given(draft, defined))


def _begin_sleep(draft: Draft, defined: Step) -> None:
    attempt = draft.state.steps[defined.id].attempt + 1 if draft.state.tries else 0
    draft.say(e.StepSleeping(defined.id, draft.now + (defined.sleep or 0), attempt))


def _begin_map(draft: Draft, defined: Step) -> None:
    assert defined.map is not None
    if draft.state.steps[defined.id].items is not None:  # in an earlier try: it goes on with what is not done
        draft.say(e.MapResumed(defined.id))
        return
    items = draft.values().listed(defined.map.over)
    if not isinstance(items, list):
        raise ExpressionError(f"map.over is {type(items).__name__}, not a list")
    if len(items) > MAX_ITEMS:
        raise ExpressionError(f"map.over has {len(items)} items, more than {MAX_ITEMS}")
    others = sum(draft.state.steps[other.id].items or 0 for other in draft.state.definition.steps)
    if others + len(items) > MAX_ITEMS_OF_RUN:
        raise ExpressionError(f"the maps of this run have more than {MAX_ITEMS_OF_RUN} items together")
    if defined.with_ is not None:
        items = draft.values().each(defined.with_, items)
    draft.say(e.MapExpanded(defined.id, items))


def _begin_signal(draft: Draft, defined: Step) -> None:
    assert defined.wait_signal is not None
    attempt = draft.state.steps[defined.id].attempt + 1
    expires_at = draft.after(defined.wait_signal.timeout)
    draft.say(e.StepListening(defined.id, attempt, defined.wait_signal.name, expires_at))


def _begin_approval(draft: Draft, defined: Step) -> None:
    assert defined.approval is not None
    attempt = draft.state.steps[defined.id].attempt + 1
    expires_at = draft.after(defined.approval.timeout)
    draft.say(e.ApprovalRequested(defined.id, attempt, _given(draft, defined), expires_at))


def _begin_call(draft: Draft, defined: Step) -> None:
    if int(draft.state.meta.get("depth") or 0) >= MAX_DEPTH:
        message = f"more than {MAX_DEPTH} workflows call each other"
        draft.say(e.StepFailed(defined.id, 0, Failure("too_deep", message)))
        return
    draft.call(defined.id, _given(draft, defined))


_ONLY_WAITING = frozenset({"sleep", "wait_signal", "approval"})
"""Kinds that take none of the places that `max_parallel` gives."""
_BEGINNINGS: dict[str, Callable[[Draft, Step], None]] = {
    "task": _begin_task,
    "sandbox": _begin_task,
    "agent_loop": _begin_task,
    "map": _begin_map,
    "sleep": _begin_sleep,
    "wait_signal": _begin_signal,
    "approval": _begin_approval,
    "sub_workflow": _begin_call,
}


# --- steps under way ---------------------------------------------------------------------------------------


def _tend_map(draft: Draft, defined: Step, step: StepState) -> None:
    """Hand out items up to the bound; when all have ended, so has the map."""
    assert defined.map is not None
    names = [item_id(defined.id, index) for index in range(step.items or 0)]
    items = [draft.state.steps[name] for name in names]
    failed = next((item for item in items if item.status is StepStatus.FAILED), None)
    if failed is not None:
        failure = failed.failure or Failure("failed")
        draft.say(e.StepFailed(defined.id, 0, failure.without_details()))
        return
    if all(item.status is StepStatus.COMPLETED for item in items):
        draft.say(e.StepCompleted(defined.id, 0, [item.output for item in items]))
        return
    busy = sum(1 for item in items if not item.status.ended and item.status is not StepStatus.PENDING)
    room = (defined.map.concurrency or len(items)) - busy
    waiting = [(name, item) for name, item in zip(names, items, strict=True) if item.status is StepStatus.PENDING]
    for name, item in waiting[: max(0, room)]:
        draft.queue(name, item.attempt + 1, 0, None)  # what it is given stands in the map's own event


def _listen(draft: Draft, defined: Step, step: StepState) -> None:
    """The oldest signal by this name that nobody has taken."""
    assert defined.wait_signal is not None
    for number, signal in enumerate(draft.state.signals):
        if signal.name == defined.wait_signal.name and signal.taken_by is None:
            draft.say(e.SignalTaken(defined.id, step.attempt, number))
            return


# --- ends --------------------------------------------------------------------------------------------------


def _succeed(draft: Draft) -> None:
    definition = draft.state.definition
    try:
        if definition.output is not None:
            output = draft.values().fill(definition.output)
        else:
            ends = graph.leaves({step.id: step.needs for step in definition.steps})
            output = {name: draft.state.steps[name].output for name in ends}
    except ExpressionError as error:
        draft.end(Ending(RunStatus.FAILED, Failure(EXPRESSION, f"output: {error}")))
        return
    try:
        successor, given = _successor(draft, output)
    except ExpressionError as error:
        draft.end(Ending(RunStatus.FAILED, Failure(EXPRESSION, f"continue_as_new: {error}")))
        return
    draft.say(e.RunSucceeded(output, successor, given))


def _successor(draft: Draft, output: Any) -> tuple[str | None, Any]:
    wanted = draft.state.definition.continue_as_new
    if wanted is None or not draft.values().truth(wanted.when, {"output": output}):
        return None, None
    given = draft.values().fill(wanted.input, {"output": output}) if wanted.input is not None else draft.state.input
    return new_run_id(draft.now, draft.run_id, "continued"), given


def _wind_down(draft: Draft, ending: Ending) -> None:
    """One errand after the other: undo, last things first; tell; end. An errand that fails keeps no other back."""
    definition = draft.state.definition
    errands = [(undo_id(name), definition.step(name).compensate) for name in undoable(draft.state)]
    if ending.status is not RunStatus.CANCELLED:
        errands.append((HANDLER, definition.on_failure))
    for name, errand in errands:
        if errand is not None and not _is_done(draft, name, errand, ending):
            return
    draft.end(ending)


def _is_done(draft: Draft, name: str, errand: Errand, ending: Ending) -> bool:
    step = draft.state.steps.get(name, StepState())
    if step.status is StepStatus.PENDING:
        failure = ending.failure or Failure(ending.status.value)
        told = {"code": failure.code, "message": failure.message, "step": ending.step, "status": ending.status.value}
        seen = {"failure": told} if name == HANDLER else {}
        default = told if name == HANDLER else draft.state.steps[owner_of(name)].output
        try:
            given = draft.values().fill(errand.with_, seen) if errand.with_ is not None else default
        except ExpressionError as error:
            draft.say(e.StepFailed(name, step.attempt, Failure(EXPRESSION, str(error))))
        else:
            draft.queue(name, step.attempt + 1, 0, given)
    return draft.state.steps[name].status.ended
