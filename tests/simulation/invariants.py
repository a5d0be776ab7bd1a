"""What must hold between runs, and what must be left when all have ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fumehood.broker.lease import Lease
from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control.rates import Limit
from fumehood.engine import events as e
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunStatus
from tests.simulation.people import Order
from tests.simulation.watching import ENDS, BrokenError, Watched
from tests.simulation.workflows import TASK_TYPES

LEASES = (Bucket.LEASES, Bucket.NODE_LEASES)
SURELY_MS = 300_000
"""When a message has surely arrived, in any weather."""
_OVER = (*ENDS, e.RunEnding)


# --- at any moment -----------------------------------------------------------------------------------------


def check_keys(runs: Iterable[Watched]) -> None:
    """By what the journals say: no more hold a key than may, whatever the lock's own value is."""
    held: Counter[tuple[str, str]] = Counter()
    limits: dict[tuple[str, str], int] = {}
    for run in runs:
        for lock, key, limit in run.held():
            held[lock, key] += 1
            limits[lock, key] = limit
    for name, count in held.items():
        if count > limits[name]:
            raise BrokenError(f"{count} hold the key {name}, which {limits[name]} may")


def check_rate(published: Sequence[int], limit: Limit, began: int) -> None:
    """A task may be late, and then several come together; but none comes before its turn."""
    for number, at in enumerate(published, 1):
        if number > limit.burst + (at - began) * limit.count / limit.per_ms + 1:
            raise BrokenError(f"{number} tasks within {at - began} ms, more than {limit.rate}")


def check_calls(runs: Mapping[str, Watched], caller: Watched, since: int) -> None:
    """A step ends as the run did that it called."""
    for call in caller.calls[since:]:
        child = runs.get(call.child)
        ends = child.ends if child is not None else []
        if isinstance(call.event, e.StepCompleted):
            if all((end.status, end.output) != (RunStatus.SUCCEEDED, call.event.output) for end in ends):
                raise BrokenError(f"{caller.run_id}: {call.step} has an output that {call.child} never gave: {ends}")
        elif isinstance(call.event, e.StepFailed | e.StepRetrying):
            code = call.event.failure.code
            codes = {end.code or f"child_{end.status.value}" for end in ends if end.status is not RunStatus.SUCCEEDED}
            if code not in codes | {"timeout"}:
                raise BrokenError(f"{caller.run_id}: {call.step} failed with {code}, {call.child} with {codes}")


# --- at the end --------------------------------------------------------------------------------------------


async def check_tidy(calm: MemoryBroker, run: Watched, now_ms: int) -> None:
    run_id = run.run_id
    if left := await calm.timers.pending(run_id):
        raise BrokenError(f"{run_id} has ended, and a timer is still set: {left}")
    if left_tasks := await calm.tasks.pending(run_id, TASK_TYPES):
        raise BrokenError(f"{run_id} has ended, and tasks of it are still in the queue: {left_tasks}")
    leases = [one for name in LEASES for one in await calm.bucket(name).entries(run_id)]
    for entry in leases:
        lease = Lease.decode(entry)
        if lease is None or (lease.held and now_ms < lease.expires_ms):
            raise BrokenError(f"{run_id} has ended, and somebody still holds a task of it: {lease}")
    summary = await calm.bucket(Bucket.SUMMARIES).get(run_id)
    if summary is None or json.loads(summary.value)["status"] != run.now.status.value:
        raise BrokenError(f"{run_id} has ended, and its summary does not say so")


async def check_all_tidy(calm: MemoryBroker, runs: Mapping[str, Watched]) -> None:
    if locks := await calm.bucket(Bucket.LOCKS).entries():
        raise BrokenError(f"all runs have ended, and somebody still holds a key: {locks}")
    for run in runs.values():
        run.fold_anew()
        if not run.now.status.ended:
            raise BrokenError(f"{run.run_id} has not ended")
        if run.now.continued_as is not None and run.now.continued_as not in runs:
            raise BrokenError(f"{run.run_id} was to go on as {run.now.continued_as}")
        for call in run.calls:
            _check_stopped(runs.get(call.child), call.at)


def _check_stopped(child: Watched | None, at: int) -> None:
    """A run that nobody waits for ends soon, unless somebody took it up again by hand."""
    if child is None or any(isinstance(event, e.RunRetried) for _, event in child.log):
        return
    over = next((when for when, event in child.log if isinstance(event, _OVER)), None)
    if over is None or over > at + SURELY_MS:
        raise BrokenError(f"{child.run_id} went on after whoever called it stopped waiting")


def check_approvals(run: Watched, told: Mapping[str, Mapping[str, Any]]) -> None:
    """Whoever is said to have decided did so, about this and at this time."""
    for _, event in run.log:
        if isinstance(event, e.ApprovalGiven | e.ApprovalRefused):
            said = told.get(event.comment, {})
            meant = (said.get("step"), said.get("attempt"), said.get("by"), said.get("approved"))
            if meant != (event.step, event.attempt, event.by, isinstance(event, e.ApprovalGiven)):
                raise BrokenError(f"{run.run_id}: nobody said {event}")


def check_order(run: Watched | None, order: Order) -> None:
    """What was told, and was taken by the broker, has been heard in time, or came to a run that had ended."""
    if run is None or _was_over(run, order):
        return
    found = {
        MessageType.SIGNAL: (e.SignalReceived,),
        MessageType.CANCEL: _OVER,
        MessageType.RETRY: (e.RunRetried,),
        MessageType.APPROVE: (e.ApprovalGiven, e.ApprovalRefused, e.StepFailed, e.StepOverridden),
    }.get(order.kind, ())
    until = order.accepted_at + SURELY_MS
    step = order.body.get("step")
    heard = any(
        order.seen_at <= at <= until and isinstance(event, found) and step in (None, getattr(event, "step", None))
        for at, event in run.log
    )
    if found and not heard and order.body["by"] != "eve":
        raise BrokenError(f"{run.run_id} never heard of {order}")


def _was_over(run: Watched, order: Order) -> bool:
    """Whether a run had ended, or was ending, at any time from which the order was meant until it surely arrived. A
    retry is meant for one that has."""
    if order.kind is MessageType.RETRY:
        return False
    over = False
    for at, event in run.log:
        if at > order.accepted_at + SURELY_MS:
            break
        if at >= order.seen_at and over:
            return True
        if isinstance(event, _OVER):
            over = True
        elif isinstance(event, e.RunRetried):
            over = False
        if at >= order.seen_at and over:
            return True
    return over
