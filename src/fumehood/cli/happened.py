"""What an event of a run says to people, on one line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from fumehood.cli.show import clock, failure, moment, plain

Event = Mapping[str, Any]

STYLES: Mapping[str, str] = {
    "run.succeeded": "bold green",
    "run.failed": "bold red",
    "run.timed_out": "bold red",
    "run.cancelled": "bold yellow",
    "run.ending": "red",
    "step.failed": "red",
    "approval.refused": "red",
    "order.refused": "yellow",
    "step.retrying": "yellow",
    "step.completed": "green",
    "approval.given": "green",
    "signal.taken": "green",
    "approval.requested": "magenta",
    "step.listening": "magenta",
}


def said(event: Event, zone: dt.tzinfo | None = None) -> str:
    """A type that this version does not know is told by its name."""
    make = _SENTENCES.get(event["type"])
    text = event["type"].replace(".", " ").replace("_", " ") if make is None else make(event, zone)
    return plain(text)


def told(event: Event) -> str:
    """With the step that it is about."""
    where = place(event)
    return f"{where} {said(event)}" if where else said(event)


def place(event: Event) -> str:
    """The step that it is about; nothing where that is the run, also where the run ends because of a step."""
    return "" if event["type"].startswith("run.") else plain(str(event.get("step") or ""))


Zone = dt.tzinfo | None


def _until(event: Event, name: str, zone: Zone, word: str = "until") -> str:
    at, said_at = moment(event.get(name)), moment(event.get("at"))
    if at is None:
        return ""
    return f" {word} {clock(at, (said_at or at).astimezone(zone).date(), zone)}"


def _by(event: Event, more: str) -> str:
    """Who did it, and what they had to say."""
    who, words = event.get("by"), event.get(more)
    return (f" by {who}" if who else "") + (f": {words}" if words else "")


def _why(event: Event) -> str:
    told = failure(event.get("failure"))
    return f": {told}" if told else ""


def _started(event: Event, zone: Zone) -> str:
    by = event.get("meta", {}).get("by")
    return "started" + (f" by {by}" if by else "") + _until(event, "deadline_at", zone, "with a deadline at")


def _queued(event: Event, _: Zone) -> str:
    again = f", iteration {event['iteration'] + 1}" if event.get("iteration") else ""
    resumed = ", after a pause" if event.get("resumption") else ""
    return f"queued, attempt {event.get('attempt', 1)}{again}{resumed}"


def _taken_up(event: Event, _: Zone) -> str:
    return "started" + (f" by {event['worker_id']}" if event.get("worker_id") else "")


def _retrying(event: Event, zone: Zone) -> str:
    return f"attempt {event.get('attempt')} failed{_why(event)}; again{_until(event, 'wake_at', zone, 'at')}"


def _asked(event: Event, _: Zone) -> str:
    return f"waits for its turn with the concurrency key {event.get('key')}"


def _order_refused(event: Event, _: Zone) -> str:
    """An order's name is the run's, what kind of order it is, and which one."""
    kind = str(event.get("order", "")).removeprefix(f"{event.get('run_id')}.").partition(".")[0]
    why = str(event.get("reason", "")).replace("_", " ")
    return "did not do what it was told" + (f", {kind}" if kind else "") + (f": {why}" if why else "")


def _overridden(event: Event, _: Zone) -> str:
    done = {"skip": "skipped", "complete": "completed"}.get(event.get("action", ""), event.get("action", "changed"))
    return f"{done} by hand{_by(event, 'reason')}"


def _ending(event: Event, _: Zone) -> str:
    status = str(event.get("status", "ended")).replace("_", " ")
    return f"ends as {status}, once what was done is undone{_why(event)}{_by(event, 'reason')}"


def _succeeded(event: Event, _: Zone) -> str:
    following = event.get("continued_as")
    return "succeeded" + (f", and goes on as {following}" if following else "")


def _failed(event: Event, _: Zone) -> str:
    step = f" in {event['step']}" if event["type"] == "run.failed" and event.get("step") else ""
    return f"failed{step}{_why(event)}"


_SENTENCES: Mapping[str, Callable[[Event, Zone], str]] = {
    "run.started": _started,
    "run.ending": _ending,
    "run.retried": lambda event, _: f"retried{_by(event, 'reason')}",
    "run.succeeded": _succeeded,
    "run.failed": _failed,
    "run.timed_out": lambda event, _: f"timed out{_why(event)}",
    "run.cancelled": lambda event, _: f"cancelled{_by(event, 'reason')}",
    "step.queued": _queued,
    "step.started": _taken_up,
    "step.continued": lambda event, _: f"asks to be called again, iteration {event.get('iteration', 0) + 1}",
    "step.completed": lambda *_: "completed",
    "step.retrying": _retrying,
    "step.paused": lambda event, zone: f"paused{_until(event, 'wake_at', zone)}",
    "step.failed": _failed,
    "step.skipped": lambda *_: "skipped",
    "step.sleeping": lambda event, zone: f"sleeps{_until(event, 'wake_at', zone)}",
    "step.listening": lambda event, zone: (
        f"waits for the signal {event.get('signal')}{_until(event, 'expires_at', zone)}"
    ),
    "step.calling": lambda event, _: f"is done by {event.get('child_run_id')}",
    "step.overridden": _overridden,
    "map.expanded": lambda event, _: f"{len(event.get('inputs', ()))} items",
    "map.resumed": lambda *_: "goes on with the items that are not done",
    "order.refused": _order_refused,
    "signal.received": lambda event, _: f"got the signal {event.get('name')}{_by(event, '')}",
    "signal.taken": lambda *_: "has its signal",
    "approval.requested": lambda event, zone: f"waits for an approval{_until(event, 'expires_at', zone)}",
    "approval.given": lambda event, _: f"approved{_by(event, 'comment')}",
    "approval.refused": lambda event, _: f"rejected{_by(event, 'comment')}",
    "gate.asked": _asked,
    "gate.passed": lambda *_: "has its turn",
}
