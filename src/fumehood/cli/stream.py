"""A run's events, each once and in order, for as long as the run takes.

They come as server-sent events. A stream that breaks is taken up again behind the last event that came; where there is
no stream, the history is asked for again and again. Whoever reads sees no difference but the delay.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fumehood.cli.client import Api, ApiError, BusyError, part
from fumehood.cli.exits import CommandError, NoAnswerError

POLL_SECONDS = 0.5
PAGE = 500
SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 5.0
GIVE_UP_SECONDS = 300.0
"""A server that is restarted or moved is back by then."""
LARGEST_EVENT = 8 * 1024 * 1024
"""Bytes: far above what a journal takes in one record."""

NO_STREAM = (404, 405, 406)
_PLACE = re.compile(r"(\d{1,18})-(\d{1,9})")

END = "end"
"""The last event of a stream whose run has ended; it is none of the run's own."""
TERMINAL = frozenset({"run.succeeded", "run.failed", "run.timed_out", "run.cancelled"})

Event = dict[str, Any]
"""As the API has it: `type`, `seq`, `at`, and what the event's type says."""


def history(api: Api, run_id: str, *, after: int = 0) -> Iterator[Event]:
    """What was decided until now."""
    behind: int | None = after
    while behind is not None:
        page = api.get(f"/v1/runs/{part(run_id)}/history", {"after": behind, "limit": PAGE})
        for record in page["records"]:
            yield from _events(run_id, record)
        behind = page.get("next")


def _events(run_id: str, record: dict[str, Any]) -> Iterator[Event]:
    """As a stream has them."""
    for index, event in enumerate(record["events"]):
        told = {"child_run_id" if name == "run_id" else name: value for name, value in event.items()}
        yield {"seq": record["seq"], "at": record["at"], "run_id": run_id, **told, "index": index}


@dataclass(slots=True)
class Patience:
    """With a server that does not answer. `trouble` is told why nothing comes, and with None that it does again."""

    trouble: Callable[[str | None], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _wait: float = SHORTEST_WAIT_SECONDS
    _heard: float | None = None

    def went_well(self) -> None:
        self._heard, self._wait = self.clock(), SHORTEST_WAIT_SECONDS
        self.trouble(None)

    def went_wrong(self, error: NoAnswerError) -> None:
        """Waits before the next try, a little longer each time; raises the error when it has lasted too long."""
        if self._heard is None:
            self._heard = self.clock()
        if self.clock() - self._heard > GIVE_UP_SECONDS:
            raise error
        self.trouble(error.reason)
        asked = error.after_seconds if isinstance(error, BusyError) else 0.0
        self.sleep(min(max(self._wait, asked), LONGEST_WAIT_SECONDS))
        self._wait = min(self._wait * 2, LONGEST_WAIT_SECONDS)


@dataclass(slots=True)
class Following:
    """One reader of one run."""

    api: Api
    run_id: str
    patience: Patience = field(default_factory=Patience)
    _place: tuple[int, int] = (0, -1)
    _type: str = ""
    """Of the last event that came, and where it stands."""
    _ended: bool = False
    _polling: bool = False

    def events(self) -> Iterator[Event]:
        """All of them, from the first on; over when the run is."""
        while True:
            try:
                for event in self._some():
                    self.patience.went_well()
                    yield event
            except NoAnswerError as error:
                if self._ended:
                    return
                self.patience.went_wrong(error)
            except ApiError as error:
                if self._polling or error.status not in NO_STREAM:
                    raise
                self._polling = True  # the history says whether it is the stream that is not there, or the run
            else:
                if self._ended or self._type in TERMINAL:
                    return
                self.patience.went_well()
                self.patience.sleep(POLL_SECONDS if self._polling else SHORTEST_WAIT_SECONDS)

    def _some(self) -> Iterator[Event]:
        """Those that can be had without asking again."""
        for event in self._polled() if self._polling else self._streamed():
            place = (event["seq"], event.pop("index"))
            if place > self._place:
                self._place, self._type = place, event["type"]
                yield event

    def _polled(self) -> Iterator[Event]:
        return history(self.api, self.run_id, after=max(0, self._place[0] - 1))

    def _streamed(self) -> Iterator[Event]:
        behind = f"{self._place[0]}-{self._place[1]}" if self._type else None
        with self.api.stream(f"/v1/runs/{part(self.run_id)}/events", last_event_id=behind) as chunks:
            for frame in frames(chunks):
                self._ended = frame.event == END
                if frame.data is None or frame.place is None:
                    self.patience.went_well()
                    continue
                seq, index = frame.place
                yield {**frame.data, "type": frame.event, "seq": seq, "index": index}


# --- the format --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream; one without data only says that the other side is alive."""

    id: str
    event: str
    data: Event | None

    @property
    def place(self) -> tuple[int, int] | None:
        found = _PLACE.fullmatch(self.id)
        return (int(found[1]), int(found[2])) if found else None


def frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Server-sent events of the bytes they came in. An event that is not whole when the bytes end did not come."""
    fields: dict[str, list[str]] = {}
    for line in _lines(chunks):
        if line:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        data = "\n".join(fields.get("data", ()))
        yield Frame(fields.get("id", [""])[-1], fields.get("event", [""])[-1], _object(data) if data else None)
        fields = {}


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split at newlines only: JSON may hold other characters that Python takes for the end of a line."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > LARGEST_EVENT:
            raise CommandError("the server sent an event that has no end")


def _object(text: str) -> Event:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CommandError("the server sent an event that cannot be understood")
    return found
