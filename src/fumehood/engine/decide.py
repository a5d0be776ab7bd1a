"""`decide`: what follows from a state and the messages that wait for it. Pure.

All waiting messages are taken in at once and then the run is moved on as far as it goes. The outcome is one record.
Late, repeated and foreign messages change nothing: what is out is known by attempt and iteration, so that no message of
a worker needs to be remembered to be taken only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.engine import events as e
from fumehood.engine import moving, orders, workers
from fumehood.engine.desired import DEADLINE, EXPIRY
from fumehood.engine.draft import Draft
from fumehood.engine.fold import fold
from fumehood.engine.messages import ORDERS, WORKERS_SAY, Ignored, Message, MessageType
from fumehood.engine.state import Failure, RunState


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
    draft = Draft(run_id, state, now, contents or {})
    ignored = []
    for message in messages:
        if _looks_at_the_whole(message):  # what was heard before it has its effect before it
            moving.advance(draft)
        reason = _take(draft, message)
        if reason is not None:
            ignored.append((message.id, reason))
    moving.advance(draft)
    if not draft.events:
        return Decision(None, state, tuple(ignored))
    record = e.Record(now, tuple(draft.events), tuple(draft.consumed))
    draft.state.consumed.update(record.consumed)
    draft.state.events += len(record.events)
    draft.state.updated_at = now
    return Decision(record, draft.state, tuple(ignored))


def abandon(run_id: str, state: RunState | None, messages: Sequence[Message], now: int, failure: Failure) -> Decision:
    """The end of a run that cannot go on: what follows from these messages could not be decided or recorded."""
    draft = Draft(run_id, state, now, {})
    for message in messages:
        if not draft.has_begun and message.type is MessageType.START:
            _take(draft, message)
    ignored = tuple((message.id, Ignored.RUN_ENDED) for message in messages)
    if not draft.has_begun or draft.state.status.ended:
        return Decision(None, state, ignored)
    draft.say(e.RunFailed(failure))
    record = e.Record(now, tuple(draft.events), tuple(draft.consumed))
    return Decision(record, fold(run_id, [record], state), ignored)


def _looks_at_the_whole(message: Message) -> bool:
    """An end of somebody's patience, or somebody's decision: a signal that came in time must have been taken."""
    if message.type is MessageType.TIMER:
        return message.body.get("kind") in (DEADLINE, EXPIRY)
    return message.type in ORDERS and message.type is not MessageType.SIGNAL


def _take(draft: Draft, message: Message) -> Ignored | None:
    """`None`, or why it had no effect."""
    if message.type is MessageType.START:
        return _start(draft, message)
    if not draft.has_begun:
        return Ignored.NO_RUN
    if message.type not in WORKERS_SAY:
        return orders.take(draft, message)
    return Ignored.RUN_ENDED if draft.state.status.ended else workers.take(draft, message)


def _start(draft: Draft, message: Message) -> Ignored | None:
    if draft.has_begun:
        return Ignored.DUPLICATE
    body = message.body
    deadline = body["definition"].get("deadline")
    event = e.RunStarted(
        definition=body["definition"],
        digest=str(body["digest"]),
        input=body.get("input"),
        deadline_at=draft.after(int(deadline)) if deadline is not None else None,
        meta=dict(body.get("meta") or {}),
        pins=dict(body["pins"]) if body.get("pins") else None,
    )
    draft.begin(event)
    draft.remember(message.id)
    return None
