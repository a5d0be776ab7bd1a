# Made by scripts/derive-sync from sdk/aio/following.py; edit that, not this.
"""What goes to and fro between a caller and a command in a sandbox: each byte once and in order, whatever becomes of
the connection or of the server that it goes through.

Both directions count bytes from the beginning. What was not answered is sent again from the same place, and the other
side skips what it has; what is read again is skipped here.
"""

from __future__ import annotations

import time
from collections.abc import Generator

from fumehood.errors import FumehoodError, NoAnswerError, WaitTimeoutError
from fumehood.sdk import problems
from fumehood.sdk.asking import Patience
from fumehood.sdk.blocking import here
from fumehood.sdk.blocking.transport import Transport
from fumehood.sdk.printing import Printing
from fumehood.sdk.values import CommandInfo, Output
from fumehood.wire.console.codes import PIECE_BYTES

FEED_SECONDS = 60.0
"""For one answer: a program that does not read is waited for by the server, for some seconds."""
NO_ROOM_SECONDS = 0.05
LEASE_SECONDS = 300
"""That a sandbox has from now on, at least, while somebody waits for a command in it, and when it is made."""
KEEP_SECONDS = 15.0
"""Between two extensions: a lease is a minute at least, so that the second try is in time, too."""


class Keeping:
    """A sandbox does not end under somebody who waits for a command in it: while he does, its lease is extended. `path`
    is the sandbox's."""

    def __init__(self, transport: Transport, path: str) -> None:
        self._transport, self._path = transport, path
        self._at = time.monotonic()
        self._refused = False

    def look(self) -> None:
        """Now and then, by whoever waits."""
        if self._refused or time.monotonic() - self._at < KEEP_SECONDS:
            return
        self._at = time.monotonic()
        try:
            self._transport.post(f"{self._path}:extend", {"lease_seconds": LEASE_SECONDS})
        except FumehoodError as error:
            self._refused = not problems.is_passing(error)  # whoever reads the output tells what is wrong


class Following:
    """One reader of what one command prints. `path` is the command's."""

    def __init__(self, transport: Transport, path: str, keeping: Keeping) -> None:
        self._transport, self._path, self._keeping = transport, path, keeping
        self.printing = Printing()
        self.ended: CommandInfo | None = None
        """The command, once it has ended and nothing is left to be read."""

    def pieces(self) -> Generator[Output, None]:
        """From where it stands to the command's end."""
        events = self._transport.events(
            f"{self._path}/output", query=lambda: self.printing.places, patient=True, signs=True
        )
        with here.closing(events) as told:
            for event in told:
                self._keeping.look()
                if event.event == "output":
                    for piece in self.printing.take(event.data):
                        yield piece
                elif event.event == "end":
                    self.ended = CommandInfo.of(event.data)
        if self.ended is None or not self.ended.has_ended:
            raise NoAnswerError(f"{self._transport.url} does not say how the command ended").advise(
                "ask with commands.attach(…).wait()"
            )
        for piece in self.printing.rest():
            yield piece


class Feeding:
    """Input on its way to a command."""

    def __init__(self, transport: Transport, path: str, offset: int = 0) -> None:
        self._transport, self._path = transport, path
        self.offset = offset
        """Bytes that were taken, by whomever they were sent."""
        self.stopped = False
        """Nobody needs it any more."""

    def go_on(self, until: float) -> None:
        """Behind what was taken, by whomever it was sent: somebody else may have, and an own piece whose answer nobody
        waited for may have arrived. From a stale place, the beginning of what comes next would be skipped. A server
        that is away is waited for, `until` when."""
        patience = Patience()
        while True:
            try:
                self.offset = CommandInfo.of(self._transport.get(self._path)).stdin_bytes
                return
            except FumehoodError as error:
                pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
                if pause is None or time.monotonic() >= until or not problems.is_passing(error):
                    raise
            here.sleep(pause)

    def give(self, data: bytes, *, eof: bool = False, until: float | None = None) -> None:
        """All of it, in pieces; `until` when, by the monotonic clock. What was taken by then is counted."""
        begin, patience = self.offset, Patience()
        end = begin + len(data)
        while not self.stopped:
            at = self.offset - begin
            piece = data[at : at + PIECE_BYTES]
            last = eof and at + len(piece) == len(data)
            try:
                taken = self._sent(piece, last)
            except FumehoodError as error:
                pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
                if pause is None or not problems.is_passing(error):
                    raise
                here.sleep(pause)
            else:
                patience.went_well()
                moved, self.offset = taken > self.offset, max(self.offset, taken)
                if self.offset >= end and (last or not eof):
                    return
                if not moved:
                    here.sleep(NO_ROOM_SECONDS)
            if until is not None and time.monotonic() >= until:
                raise WaitTimeoutError(f"the command took {self.offset - begin} bytes of {len(data)} in time").advise(
                    "send the rest later, or see whether it reads its input at all"
                )

    def _sent(self, piece: bytes, last: bool) -> int:
        query = {"offset": self.offset, "eof": "true" if last else None}
        said = self._transport.post(f"{self._path}/stdin", content=piece, query=query, again=True, seconds=FEED_SECONDS)
        return int(said["stdin_bytes"])
