"""What goes to and fro between somebody and a command in a session: each byte once and in order, whatever becomes of
the connection or of the server that it goes through.

Both directions count bytes from the beginning. What was not answered is sent again from the same place, and the other
side skips what it has; what is read again is skipped here.
"""

from __future__ import annotations

import base64
import binascii
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.cli.client import Api
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.stream import SHORTEST_WAIT_SECONDS, Event, Patience, frames
from fumehood.cli.terminal import Size

STREAMS = ("stdout", "stderr")
PIECE = 512 * 1024
"""Of input in one request, the most that a server takes."""
MOST_WAITING = 2 * PIECE
"""Typed or read, and not yet taken by the other side."""
NO_ROOM_SECONDS = 0.05
COMPLAIN_SECONDS = 2.0
"""A server that is restarted, or a worker that is handed over, is back sooner; nobody need hear of it."""


@dataclass(slots=True)
class Complaints:
    """Says once that nothing comes, when that has lasted, and then once that it does again."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = None
    _said: bool = False

    def __call__(self, why: str | None) -> None:
        if why is None:
            if self._said:
                self.say("connected again")
            self._since, self._said = None, False
            return
        self._since = self.clock() if self._since is None else self._since
        if not self._said and self.clock() - self._since >= COMPLAIN_SECONDS:
            self._said = True
            self.say(f"{why}; trying again")


# --- output ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of a stream, behind those that came before."""

    stream: str
    data: bytes
    lost: int = 0
    """Bytes in between that nobody has kept."""


@dataclass(slots=True)
class Printing:
    """One reader of what one command prints. `path` is the command's."""

    api: Api
    path: str
    patience: Patience = field(default_factory=Patience)
    places: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """Where to go on in each stream."""
    until: Mapping[str, int] | None = None
    """Where to stop; without it, at the command's end."""
    ended: Event | None = None
    """The command, once it has ended and nothing is left to be read."""
    stopped: bool = False
    """Nobody reads any more; said by another thread."""

    def chunks(self) -> Iterator[Chunk]:
        while not self._is_over():
            try:
                some = False
                for frame in self._streamed():
                    some = True
                    self.patience.went_well()
                    if (chunk := self._taken(frame)) is not None:
                        yield chunk
                    if self._is_over():
                        return
                if not some:
                    raise NoAnswerError(f"{self.api.url} has no news of the command")
            except NoAnswerError as error:
                self.patience.went_wrong(error)
            else:
                self.patience.sleep(SHORTEST_WAIT_SECONDS)

    def _is_over(self) -> bool:
        reached = self.until is not None and all(self.places[name] >= end for name, end in self.until.items())
        return reached or self.stopped or self.ended is not None

    def _streamed(self) -> Iterator[tuple[str, Event]]:
        places = "&".join(f"{name}={place}" for name, place in self.places.items())
        with self.api.stream(f"{self.path}/output?{places}") as pieces:
            for frame in frames(pieces):
                yield frame.event, frame.data or {}

    def _taken(self, frame: tuple[str, Event]) -> Chunk | None:
        event, data = frame
        if event == "end":
            self.ended = data
        return self._new(data) if event == "output" else None

    def _new(self, data: Event) -> Chunk | None:
        stream, offset, content = _piece(data)
        have = self.places[stream]
        content, offset = content[max(0, have - offset) :], max(offset, have)
        if not content:
            return None
        self.places[stream] = offset + len(content)
        return Chunk(stream, content, offset - have)


def _piece(data: Event) -> tuple[str, int, bytes]:
    stream, offset, text = data.get("stream"), data.get("offset"), data.get("data")
    if stream not in STREAMS or not isinstance(offset, int) or not isinstance(text, str):
        raise CommandError("the server sent output that cannot be understood")
    try:
        return stream, offset, base64.b64decode(text, validate=True)
    except binascii.Error:
        raise CommandError("the server sent output that cannot be understood") from None


# --- input -------------------------------------------------------------------------------------------------

Send = Callable[[int, bytes, bool], int]
"""Gives the bytes at an offset to the command, and says how many it has in all; with True, those were the last."""


class Typed:
    """What was typed, or read, on its way to the command. While one request is under way the next keys gather, and go
    together in the next one. `run` is the body of a thread; the rest may be called from any other."""

    def __init__(self, send: Send, patience: Patience, *, offset: int = 0) -> None:
        self._send, self._patience, self._offset = send, patience, offset
        self._waiting = bytearray()
        self._ends = False
        self._over = False
        self._change = threading.Condition()
        self.refused: CommandError | None = None
        """Why nothing is taken any more, where that was not the plan."""

    def put(self, data: bytes) -> bool:
        """Waits for room. False: nobody takes it any more."""
        with self._change:
            self._change.wait_for(lambda: self._over or len(self._waiting) < MOST_WAITING)
            if not self._over:
                self._waiting += data
                self._change.notify_all()
            return not self._over

    def end(self) -> None:
        """Nothing more comes, and the command is to know."""
        with self._change:
            self._ends = True
            self._change.notify_all()

    def stop(self) -> None:
        """Nobody takes anything any more; what is under way may still arrive."""
        with self._change:
            self._over = True
            self._change.notify_all()

    def went_out(self, seconds: float) -> bool:
        """Whether all of it has been taken, within the time."""
        with self._change:
            return self._change.wait_for(lambda: self._over or not self._waiting, seconds)

    def run(self) -> None:
        while (following := self._next()) is not None:
            data, last = following
            try:
                taken = self._send(self._offset, data, last)
                self._patience.went_well()
            except NoAnswerError as error:
                self._wait(error)
            except CommandError as error:
                self._close(error)
            else:
                self._took(taken, len(data), last=last)

    def _next(self) -> tuple[bytes, bool] | None:
        with self._change:
            self._change.wait_for(lambda: self._over or self._ends or bool(self._waiting))
            if self._over:
                return None
            return bytes(self._waiting[:PIECE]), self._ends and len(self._waiting) <= PIECE

    def _wait(self, error: NoAnswerError) -> None:
        try:
            self._patience.went_wrong(error)
        except NoAnswerError:
            self._close(error)

    def _took(self, taken: int, sent: int, *, last: bool) -> None:
        moved = min(max(0, taken - self._offset), sent)
        with self._change:
            del self._waiting[:moved]
            self._offset = max(self._offset, taken)  # somebody else may be typing, too
            self._over = self._over or (last and moved == sent)
            self._change.notify_all()
        if sent and not moved:
            self._patience.sleep(NO_ROOM_SECONDS)

    def _close(self, error: CommandError) -> None:
        with self._change:
            self.refused, self._over = error, True
            self._change.notify_all()


# --- size --------------------------------------------------------------------------------------------------


class Resizes:
    """Tells the command how large the terminal is. Of several sizes only the last one matters. `run` is the body of a
    thread; `want` may be called by a handler of a signal, since its queue may be entered twice."""

    def __init__(self, send: Callable[[Size], Any], patience: Patience) -> None:
        self._send, self._patience = send, patience
        self._wanted: queue.SimpleQueue[Size | None] = queue.SimpleQueue()

    def want(self, size: Size) -> None:
        self._wanted.put(size)

    def stop(self) -> None:
        self._wanted.put(None)

    def run(self, first: Sequence[Size] = ()) -> None:
        """Those that come first are all sent, one after the other."""
        for size in first:
            self._sent(size)
        while (newest := self._newest()) is not None:
            self._sent(newest)

    def _newest(self) -> Size | None:
        newest = self._wanted.get()
        while newest is not None and not self._wanted.empty():
            newest = self._wanted.get()
        return newest

    def _sent(self, size: Size) -> None:
        while True:
            try:
                self._send(size)
            except NoAnswerError as error:
                self._patience.went_wrong(error)
                if not self._wanted.empty():
                    return
            else:
                self._patience.went_well()
                return
