"""Following a run: a live screen on a terminal, a line for each event elsewhere, and a quiet wait."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import typer
from rich.console import Console
from rich.live import Live

from fumehood.cli import show
from fumehood.cli.client import TRIES, Api, ApiError, part
from fumehood.cli.exits import FAILED, INTERRUPTED, NoAnswerError
from fumehood.cli.happened import told
from fumehood.cli.output import Screen
from fumehood.cli.runs_view import Now, Times, View, event_line, view
from fumehood.cli.runs_watch import EVENTS, render
from fumehood.cli.stream import Event, Following, Patience, history

REFRESH_SECONDS = 0.25
"""A clock that ticks, and news, four times a second: more is not seen, less looks dead."""
CALM = 4
"""The server is asked how things stand at most so that this many times what an answer takes lies in between."""
WAITING_EVENTS = 1000
"""Read and not yet shown: a long history is not all in memory at once."""


def get_run(api: Api, run_id: str, *, tries: int = TRIES) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/v1/runs/{part(run_id)}", tries=tries)
    return run


def definition_of(api: Api, run: dict[str, Any]) -> dict[str, Any] | None:
    """The very definition that a run is pinned to; None where the key may not see workflows, or it is not there."""
    if not run.get("workflow") or not run.get("definition"):
        return None
    try:
        answer = api.get(f"/v1/workflows/{part(run['workflow'])}", {"digest": run["definition"]})
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise
    found: dict[str, Any] = answer["definition"]
    return found


def exit_code(run: dict[str, Any]) -> int:
    return 0 if run["status"] == "succeeded" else FAILED


def whole_view(api: Api, run: dict[str, Any], width: int, now: Now) -> View:
    """A run as it stands, without what happened."""
    times = Times()
    for event in history(api, run["run_id"]):
        times.take(event)
    return view(run, definition_of(api, run), times, (), now, width=width)


# --- without a screen --------------------------------------------------------------------------------------


def wait(api: Api, run_id: str) -> dict[str, Any]:
    """The run, once it has ended. On a terminal a line tells what it is at."""
    screen = Screen()
    with screen.waiting(f"waiting for {run_id}") as pulse:
        for event in Following(api, run_id, Patience(Complaints(screen.say))).events():
            pulse.phase(f"{run_id}  {told(event)}")
        return get_run(api, run_id)


def print_events(api: Api, run_id: str, *, as_json: bool, step: str | None = None) -> None:
    """A line for each event, until the run has ended."""
    out, errors = show.console(), show.console(stderr=True)
    for event in Following(api, run_id, Patience(Complaints.to(errors))).events():
        if step is None or belongs(event, step):
            print_event(event, out, as_json=as_json)


def print_event(event: Event, out: Console, *, as_json: bool) -> None:
    if as_json:
        show.line({name: value for name, value in event.items() if name != "index"})
        return
    line = event_line(event, Now(show.now()))
    out.print(show.log_line(show.local(event.get("at"), exact=True), line.step, line.text, line.style), soft_wrap=True)


def belongs(event: Event, step: str) -> bool:
    """Whether an event is about a step, one of its items, or what undoes it."""
    place = event.get("step") or ""
    return place == step or place.startswith(f"{step}--")


@dataclass(slots=True)
class Complaints:
    """Says once that a connection is gone, and once that it is back."""

    say: Callable[[str], None]
    _said: bool = False

    @classmethod
    def to(cls, out: Console) -> Self:
        return cls(lambda words: out.print(f"fumehood: {words}", soft_wrap=True))

    def __call__(self, why: str | None) -> None:
        if why is not None and not self._said:
            self.say(f"{why}; trying again")
        if why is None and self._said:
            self.say("connected again")
        self._said = why is not None


# --- the screen --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Screen:
    """What is known of the run, and when it was asked for."""

    api: Api
    run: dict[str, Any]
    definition: dict[str, Any] | None
    times: Times = field(default_factory=Times)
    last: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    trouble: str = ""
    stale: bool = False
    _next: float = 0.0

    def take(self, event: Event) -> None:
        self.times.take(event)
        self.last.append(event)
        self.stale = True

    def refresh(self, *, now: float, force: bool = False) -> None:
        """Ask again how things stand, if something happened since."""
        if not force and (not self.stale or now < self._next):
            return
        was_queued = not self.run.get("definition")
        self.run = get_run(self.api, self.run["run_id"], tries=TRIES if force else 1)
        if was_queued:
            self.definition = definition_of(self.api, self.run)
        took = time.monotonic() - now
        self.stale, self._next = False, now + max(REFRESH_SECONDS, CALM * took)

    def view(self, width: int) -> View:
        now = Now(show.now())
        return view(self.run, self.definition, self.times, self.last, now, width=width, connection=self.trouble)


def watch(api: Api, run_id: str) -> dict[str, Any]:
    """A live screen until the run has ended; its last state stays. Gives the run as it ended."""
    out = show.console()
    run = get_run(api, run_id)
    screen = _Screen(api, run, definition_of(api, run))
    news = _News(api, run_id)
    news.start()
    with Live(console=out, auto_refresh=False, transient=True) as live:
        for item in news.items():
            screen.trouble = news.trouble
            if item is not None:
                screen.take(item)
                continue
            try:
                screen.refresh(now=time.monotonic())
            except NoAnswerError as error:
                screen.trouble = error.reason
            live.update(render(screen.view(out.width), out.width, out.height), refresh=True)
    screen.refresh(now=time.monotonic(), force=True)
    out.print(render(screen.view(out.width), out.width))
    return screen.run


class _News:
    """Events as they come, read by a thread of their own, so that the screen's clock does not stand still."""

    def __init__(self, api: Api, run_id: str) -> None:
        self.trouble = ""
        self._following = Following(api, run_id, Patience(self._tell))
        self._queue: queue.Queue[Event | BaseException | None] = queue.Queue(maxsize=WAITING_EVENTS)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def items(self) -> Iterator[Event | None]:
        """Events, and None whenever it is time to draw; over with the run."""
        due = time.monotonic()
        while True:
            left = due - time.monotonic()
            if left <= 0:
                yield None
                due = time.monotonic() + REFRESH_SECONDS
                continue
            try:
                item = self._queue.get(timeout=left)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
            yield item

    def _tell(self, why: str | None) -> None:
        self.trouble = why or ""

    def _read(self) -> None:
        try:
            for event in self._following.events():
                self._queue.put(event)
            self._queue.put(None)
        except Exception as error:  # noqa: BLE001 - told to whoever draws
            self._queue.put(error)


def follow(api: Api, run_id: str, *, as_json: bool) -> None:
    """Watch a run in the way that suits the output; ends the command with how the run ended."""
    out = show.console()
    try:
        if as_json or not out.is_terminal or out.is_dumb_terminal:
            print_events(api, run_id, as_json=as_json)
            run = get_run(api, run_id)
        else:
            run = watch(api, run_id)
    except KeyboardInterrupt:
        said = f"fumehood: {run_id} goes on; `fumehood runs watch` follows it again"
        show.console(stderr=True).print(said, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(exit_code(run))
