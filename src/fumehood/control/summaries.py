"""One line for each run: what lists of runs are made from, and where an archived run's history lies.

A line is written when a run begins, whenever it ends and when it is taken up again, by whichever decider decided that.
Deciders may be slow: a line says how many events it was made from, and an older state never replaces a newer one.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fumehood.broker.ports import Broker, Bucket, KeyValue, KvEntry
from fumehood.control import runner_view
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.engine.state import RunState
from fumehood.errors import BrokerUnavailableError, KeyConflictError
from fumehood.wire import blobref
from fumehood.wire.times import rfc3339

TRIES = 20
"""Against others who write the same line: each lost try is a decision of somebody else's."""
LONGEST_MESSAGE = 2000
"""Characters of an error that a list shows: a line must fit into its bucket, whatever a worker says."""
KEPT = 4096
"""Lines whose revision is remembered."""
ARCHIVED = "archived"
"""Where the run's history lies, as a reference to a blob."""
LIVE = "live"
"""Set on an archived run that may have something in its journal all the same: see `archive.py`."""
RUNNER = "runner"
"""What is known of a run that the Runner API created."""


def line(state: RunState) -> dict[str, Any]:
    """What lists show of a run."""
    meta, failure = state.meta, state.failure
    parent, schedule = _object(meta.get("parent")), _object(meta.get("schedule"))
    return {
        "workflow": state.definition.name,
        "definition": state.digest,
        "status": state.status.value,
        "started_at": rfc3339(state.started_at),
        "ended_at": rfc3339(state.ended_at) if state.ended_at is not None else None,
        "tenant": str(meta.get("tenant") or DEFAULT_TENANT),
        "labels": dict(_object(meta.get("labels"))),
        "by": str(meta.get("by") or ""),
        "error": {"code": failure.code, "message": failure.message[:LONGEST_MESSAGE]} if failure is not None else None,
        "failed_step": state.failed_step,
        "tries": state.tries,
        "parent": {"run_id": parent.get("run_id"), "step": parent.get("step")} if parent else None,
        "schedule": schedule.get("name"),
        "continued_as": state.continued_as,
        "events": state.events,
        **_of_runner(state),
    }


def _of_runner(state: RunState) -> dict[str, Any]:
    known = runner_view.summary(state)
    return {RUNNER: known} if known is not None else {}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


async def write(broker: Broker, state: RunState, revisions: Revisions | None = None) -> None:
    """Make the run's line say what this state says, unless it says something newer already."""
    bucket, wanted = broker.bucket(Bucket.SUMMARIES), line(state)
    known = revisions if revisions is not None else Revisions()
    revision = known.pop(state.run_id)
    try:
        if not state.status.ended and not state.tries:
            known.keep(state.run_id, await bucket.create(state.run_id, blobref.encode(wanted)))
            return
        if revision is not None:  # our own line of its beginning: nobody has written since
            await bucket.update(state.run_id, blobref.encode(wanted), revision=revision)
            return
    except KeyConflictError:
        pass
    await _compared(bucket, state.run_id, wanted)


async def _compared(bucket: KeyValue, run_id: str, wanted: Mapping[str, Any]) -> None:
    for _ in range(TRIES):
        entry = await bucket.get(run_id)
        try:
            if entry is None:
                await bucket.create(run_id, blobref.encode(wanted))
            elif (document := merged(decode(entry.value), wanted)) is not None:
                await bucket.update(run_id, blobref.encode(document), revision=entry.revision)
        except KeyConflictError:
            continue
        return
    raise BrokerUnavailableError("the run's line changes faster than it can be read")


class Revisions:
    """Lines that this process wrote when their runs began: most of those runs end here too, and nobody has to read
    first what only we have written."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def keep(self, run_id: str, revision: int) -> None:
        self._known[run_id] = revision
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def pop(self, run_id: str) -> int | None:
        return self._known.pop(run_id, None)


def merged(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line to store in the place of another; `None` where the other one is to stay. Where an archive lies is never
    forgotten: what goes on behind it is only the rest of the run's history."""
    if events_of(stored) > events_of(wanted):
        return None
    document = dict(wanted)
    if ARCHIVED in stored:
        document[ARCHIVED] = stored[ARCHIVED]
        if stored.get(LIVE) or events_of(stored) < events_of(wanted):
            document[LIVE] = True
    return document if document != stored else None


def events_of(document: Mapping[str, Any]) -> int:
    """How much a line knows; those of older versions do not say, and know less."""
    events = document.get("events")
    return events if isinstance(events, int) else -1


def decode(data: bytes) -> dict[str, Any]:
    """A line as an object; an unreadable one says nothing."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def read(broker: Broker, run_id: str) -> tuple[dict[str, Any], KvEntry | None]:
    """The run's line as the leader knows it, and the entry that holds it."""
    entry = await broker.bucket(Bucket.SUMMARIES).get(run_id)
    return ({}, None) if entry is None else (decode(entry.value), entry)
