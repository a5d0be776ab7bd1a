"""Where a run stands, made ready for people: each step with its place in the graph, and what it waits for.

How things stand is the server's word, and the events tell when: whatever a later engine adds, a status is shown as it
was said, and never worked out here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.cli import graph, happened
from fumehood.cli.show import clock, failure, labels, lasted, moment, plain

Document = Mapping[str, Any]

ENDED = frozenset({"succeeded", "failed", "timed_out", "cancelled"})
"""Of a run."""
STEP_ENDED = frozenset({"completed", "failed", "skipped", "cancelled"})
BESIDE = "--"
"""In the name of what is no step of the graph: what undoes one, the handler of failures, an item of a map."""
BAR = 10
"""Cells of the bar that shows how far a map has come."""
_DONE = frozenset({"step.completed", "step.skipped", "signal.taken", "approval.given", "step.overridden"})


@dataclass(slots=True)
class Times:
    """When each step began, and when it was last heard of, in the run's present try."""

    began: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)

    def take(self, event: Document) -> None:
        if event["type"] == "run.retried":
            self.began = {step: at for step, at in self.began.items() if step in self._done}
        step, at = event.get("step"), event.get("at")
        if not step or at is None or event["type"].startswith("run."):
            return
        self.began.setdefault(step, at)
        self.last[step] = at
        (self._done.add if event["type"] in _DONE else self._done.discard)(step)


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step. `before` and `after` are what stands around its symbol."""

    name: str
    status: str
    before: str = ""
    after: str = ""
    kind: str = ""
    note: str = ""
    """Its progress, what it waits for, or why it failed."""
    worker: str = ""
    took: str = ""


@dataclass(frozen=True, slots=True)
class EventLine:
    at: str
    step: str
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All that the screen says."""

    run_id: str
    workflow: str
    status: str
    took: str = ""
    facts: tuple[str, ...] = ()
    """About the run, beside its status."""
    trouble: str = ""
    """Why it failed, will fail, or does not go on."""
    steps: tuple[StepLine, ...] = ()
    events: tuple[EventLine, ...] = ()
    connection: str = ""
    """Why this may be out of date."""


@dataclass(frozen=True, slots=True)
class Now:
    """The reader's clock."""

    at: dt.datetime
    zone: dt.tzinfo | None = None

    def clock(self, at: dt.datetime) -> str:
        return clock(at, self.at.astimezone(self.zone).date(), self.zone)

    def until(self, text: str | None) -> str:
        """A time to come, and how long that is."""
        at = moment(text)
        if at is None:
            return ""
        left = (at - self.at).total_seconds()
        return f"until {self.clock(at)}" + (f" (in {lasted(left)})" if left > 0 else "")


def view(
    run: Document,
    definition: Document | None,
    times: Times,
    events: Iterable[Document],
    now: Now,
    *,
    width: int,
    connection: str = "",
) -> View:
    """`width` decides whether there is room for the graph."""
    return View(
        run_id=plain(run["run_id"]),
        workflow=plain(run.get("workflow") or ""),
        status=plain(run["status"]),
        took=_between(run.get("started_at"), run.get("ended_at"), now),
        facts=tuple(_facts(run, now)),
        trouble=_trouble(run),
        steps=tuple(_lines(run, definition, times, now, width)),
        events=tuple(event_line(event, now) for event in events),
        connection=plain(connection),
    )


def event_line(event: Document, now: Now) -> EventLine:
    at = moment(event.get("at"))
    said = happened.said(event, now.zone)
    return EventLine(now.clock(at) if at else "", happened.place(event), said, happened.STYLES.get(event["type"], ""))


def _between(began: str | None, ended: str | None, now: Now) -> str:
    start = moment(began)
    return "" if start is None else lasted(((moment(ended) or now.at) - start).total_seconds())


# --- the run -----------------------------------------------------------------------------------------------


def _facts(run: Document, now: Now) -> Iterable[str]:
    started, deadline = moment(run.get("started_at")), moment(run.get("deadline_at"))
    if started:
        yield f"started {now.clock(started)}" + (f" by {plain(run['started_by'])}" if run.get("started_by") else "")
    if deadline and run["status"] not in ENDED:
        yield f"deadline {now.clock(deadline)}"
    if run.get("tries"):
        yield f"try {run['tries'] + 1}"
    parent = run.get("parent")
    if parent:
        yield plain(f"for the step {parent.get('step')} of {parent.get('run_id')}")
    for name, word in (
        ("schedule", "scheduled by"),
        ("continued_from", "goes on from"),
        ("continued_as", "goes on as"),
    ):
        if run.get(name):
            yield plain(f"{word} {run[name]}")
    if run.get("labels"):
        yield plain(labels(run["labels"]))


def _trouble(run: Document) -> str:
    if run.get("error"):
        return plain(f"{run['failed_step']}: " if run.get("failed_step") else "") + failure(run["error"])
    ending = run.get("ending")
    if ending and run["status"] not in ENDED:
        why = failure(ending.get("error"))
        how = plain(str(ending.get("status", "ended"))).replace("_", " ")
        return f"ends as {how}, once what was done is undone" + (f": {why}" if why else "")
    if run.get("blocked_on"):
        return plain(f"waits for its turn with the concurrency key {run['blocked_on']}")
    return ""


# --- its steps ---------------------------------------------------------------------------------------------


def _lines(run: Document, definition: Document | None, times: Times, now: Now, width: int) -> Iterable[StepLine]:
    told: Mapping[str, Document] = run.get("steps", {})
    wanted = graph.needs(definition) if definition is not None else {step: [] for step in told if BESIDE not in step}
    known = {step["id"]: step for step in definition["steps"]} if definition is not None else {}
    rails = graph.fitting_rails(wanted, width) if definition is not None else []
    places = {rail.step: (rail.before, rail.after) for rail in rails}
    reach = max((len(rail.before) + len(rail.after) for rail in rails), default=0)
    beside = [name for name in told if name not in wanted]
    for name in [rail.step for rail in rails] or list(wanted):
        before, after = places.get(name, ("", ""))
        yield _line(name, told.get(name, {}), known.get(name, {}), (before, after), run, times, now)
    for name in beside:
        yield _line(name, told[name], {}, ("", " " * reach), run, times, now)


def _line(
    name: str, step: Document, defined: Document, rail: tuple[str, str], run: Document, times: Times, now: Now
) -> StepLine:
    status = plain(step.get("status", "pending"))
    ended = times.last.get(name) if status in STEP_ENDED else None
    if status == "cancelled":
        ended = run.get("ended_at") or ended
    note = _NOTES.get(status, _nothing)
    return StepLine(
        name=plain(name),
        status=status,
        before=rail[0],
        after=rail[1],
        kind=graph.kind(defined),
        note=plain("; ".join(part for part in (note(step, defined, now), _override(step)) if part)),
        worker=plain(step.get("worker_id") or ""),
        took="" if status in ("pending", "skipped") else _between(times.began.get(name), ended, now),
    )


def _nothing(step: Document, defined: Document, now: Now) -> str:
    return ""


def _progress(step: Document, defined: Document, now: Now) -> str:
    """Which try this is, and how far it has come."""
    attempts, words = graph.attempts(defined), []
    if step.get("attempt", 1) > 1 or attempts > 1:
        words.append(f"attempt {step.get('attempt', 1)}" + (f" of {attempts}" if attempts > 1 else ""))
    if "agent_loop" in defined:
        words.append(
            f"iteration {step.get('iteration', 0) + 1} of at most {defined['agent_loop'].get('max_iterations', 100)}"
        )
    return ", ".join(words)


def _queued(step: Document, defined: Document, now: Now) -> str:
    return ", ".join(part for part in ("no worker has it yet", _progress(step, defined, now)) if part)


def _retry(step: Document, defined: Document, now: Now) -> str:
    at, why = moment(step.get("wake_at")), failure(step.get("error"))
    left = 0.0 if at is None else (at - now.at).total_seconds()
    return (f"again in {lasted(left)}" if left > 0 else "again now") + (f"; {why}" if why else "")


def _failed(step: Document, defined: Document, now: Now) -> str:
    return failure(step.get("error"))


def _until(step: Document, defined: Document, now: Now) -> str:
    return now.until(step.get("wake_at"))


def _signal(step: Document, defined: Document, now: Now) -> str:
    name = step.get("signal") or defined.get("wait_signal", {}).get("name", "")
    return f"for the signal {name} {now.until(step.get('wake_at'))}".rstrip()


def _approval(step: Document, defined: Document, now: Now) -> str:
    asked = (step.get("approval") or {}).get("message", "")
    return f"waits for somebody {now.until(step.get('wake_at'))}".rstrip() + (f": {asked}" if asked else "")


def _child(step: Document, defined: Document, now: Now) -> str:
    return step.get("child") or "another run"


def _blocked(step: Document, defined: Document, now: Now) -> str:
    return f"for its turn with the key {step.get('blocked_on', '')}".rstrip()


def _items(step: Document, defined: Document, now: Now) -> str:
    items = step.get("items")
    return f"{items['ended']}/{items['total']} items" if items else ""


def _bar(step: Document, defined: Document, now: Now) -> str:
    items = step.get("items")
    done = 0 if not items or not items["total"] else BAR * items["ended"] // items["total"]
    return f"{'█' * done}{'░' * (BAR - done)} {_items(step, defined, now)}"


def _override(step: Document) -> str:
    by_hand = step.get("override")
    return "" if not by_hand else f"by hand, {by_hand.get('by', '')}: {by_hand.get('reason', '')}"


_NOTES: Mapping[str, Callable[[Document, Document, Now], str]] = {
    "queued": _queued,
    "running": _progress,
    "waiting": _retry,
    "paused": _until,
    "sleeping": _until,
    "mapping": _bar,
    "listening": _signal,
    "awaiting_approval": _approval,
    "calling": _child,
    "blocked": _blocked,
    "completed": _items,
    "failed": _failed,
}
