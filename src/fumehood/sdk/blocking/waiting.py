# Made by scripts/derive-sync from sdk/aio/waiting.py; edit that, not this.
"""Waiting for something of the server's to end: told by its events, else by asking again and again.

However long that takes and whatever becomes of the server meanwhile, nothing but the server's own word counts for an
end.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from fumehood.errors import FumehoodError, UnexpectedAnswerError, WaitTimeoutError
from fumehood.sdk import problems
from fumehood.sdk.asking import ANSWER_SECONDS, Patience
from fumehood.sdk.blocking import here
from fumehood.sdk.blocking.transport import Transport

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""Between two looks."""


class Waiting:
    """Something that ends some day. `path` is where it is asked about, and `events` beside it."""

    _noun: ClassVar[str] = "run"
    _has_events: ClassVar[bool] = True

    def __init__(self, transport: Transport, path: str, said: dict[str, Any]) -> None:
        self._transport, self._path = transport, path
        self._said = said
        self._id = str(said[f"{self._noun}_id"])
        self._seen: str | None = None
        """The last event that was heard: a second wait does not hear them all again."""

    @property
    def id(self) -> str:
        """Its name."""
        return self._id

    @property
    def has_ended(self) -> bool:
        """Whether it had when it was last asked about."""
        raise NotImplementedError

    def _look(self, seconds: float | None = None) -> None:
        said = self._transport.get(self._path, seconds=seconds)
        if said.get(f"{self._noun}_id") != self._id:
            raise UnexpectedAnswerError(
                f"{self._transport.url} was asked about {self._id}, and told of another"
            ).advise()
        self._said = said

    def _until_ended(self, timeout: float | None) -> None:
        """`WaitTimeoutError` where that takes longer."""
        until = None if timeout is None else time.monotonic() + timeout
        patience, pause, listens = Patience(), SHORTEST_SECONDS, self._has_events
        while not self._ended_now(patience, until):
            if until is not None and time.monotonic() >= until:
                raise self._not_ended(timeout or 0.0)
            if listens:
                listens = self._listened(until)
            here.sleep(_bounded(pause, until))
            pause = SHORTEST_SECONDS if listens else min(pause * 1.5, LONGEST_SECONDS)

    def _ended_now(self, patience: Patience, until: float | None) -> bool:
        """A server that is away for a while, a restart say, is asked again."""
        seconds = None if until is None else max(1.0, min(ANSWER_SECONDS, until - time.monotonic()))
        try:
            self._look(seconds)
        except FumehoodError as error:
            pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
            if pause is None or not problems.is_passing(error):
                raise
            here.sleep(_bounded(pause, until))
            return False
        patience.went_well()
        return self.has_ended

    def _listened(self, until: float | None) -> bool:
        """Until there is nothing more to be heard; false where nothing can be: then the answers to questions have to
        do, which also say why."""
        events = self._transport.events(f"{self._path}/events", last_event_id=self._seen, patient=True, until=until)
        try:
            with here.until(until), here.closing(events) as told:
                for event in told:
                    self._seen = event.id or self._seen
        except FumehoodError as error:
            if problems.is_passing(error):
                raise
            return False
        return True

    def _not_ended(self, seconds: float) -> WaitTimeoutError:
        said = f"{self.id} has not ended within {seconds:g} s: it is {self._said.get('status', 'not known')}"
        return WaitTimeoutError(said).advise("it goes on: wait again, or end it with cancel()")


def _bounded(pause: float, until: float | None) -> float:
    return pause if until is None else max(0.0, min(pause, until - time.monotonic()))
