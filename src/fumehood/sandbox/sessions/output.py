"""What a command prints on its way to those who read it: kept on disk, waited for, and held back for slow readers."""

from __future__ import annotations

import asyncio

from fumehood.sandbox.capture import STDOUT
from fumehood.sandbox.sessions.readers import Place, Readers
from fumehood.sandbox.sessions.spool import Spool
from fumehood.sandbox.sessions.values import Piece


class Output:
    """A `PacedSink` over a spool. `paced_seconds`: after that nobody is waited for, because the command's time is over
    and its end must not be stuck behind what it printed."""

    def __init__(self, spool: Spool, paced_seconds: float | None = None) -> None:
        self.spool = spool
        self._readers = Readers()
        self._news = asyncio.Event()
        self._moved = asyncio.Event()
        self._paced_until = None if paced_seconds is None else _now() + paced_seconds
        self.ended = False

    def expect_reader(self) -> None:
        """An earlier life of this process may have had one."""
        self._readers.expect(self.spool.written, _now())

    def write(self, stream: int, offset: int, data: bytes) -> None:
        self.spool.write(stream, offset, data)
        self._news.set()

    async def room(self) -> None:
        """Returns when more may be taken: no reader is left behind, or none is there (any more)."""
        while not self._readers.room(self.spool.written, _now()) and self._paced():
            self._moved.clear()
            try:
                async with asyncio.timeout(self._patience()):
                    await self._moved.wait()
            except TimeoutError:
                continue

    def _paced(self) -> bool:
        return not self.ended and (self._paced_until is None or _now() < self._paced_until)

    def _patience(self) -> float:
        patience = self._readers.patience(_now())
        return patience if self._paced_until is None else max(0.0, min(patience, self._paced_until - _now()))

    def end(self) -> None:
        """There is no more to come."""
        self.ended = True
        self.spool.close()
        self._news.set()
        self._moved.set()

    def release(self) -> None:
        """Nobody is waited for any more: the command was told to end, and its end is wanted soon."""
        self._paced_until = _now()
        self._moved.set()

    async def read(self, place: Place, limit: int, seconds: float) -> list[Piece]:
        """What comes behind a place in each stream, as soon as there is something. Nothing: it has ended, or the time
        is over."""
        reader = self._readers.ask(place, _now())
        self._moved.set()
        pieces = self.spool.read(place, limit)
        if not pieces and not self.ended:
            await self._wait(seconds, place)
            pieces = self.spool.read(place, limit)
        self._readers.give(reader, behind(place, pieces), _now())
        return pieces

    async def _wait(self, seconds: float, place: Place) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.ended and not self.left(place):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    def left(self, place: Place) -> bool:
        """Whether anything is kept behind a place."""
        return any(self.spool.available(place))


def behind(place: Place, pieces: list[Piece]) -> Place:
    """Where somebody is who was at a place and got these."""
    out, err = place
    for piece in pieces:
        end = piece.offset + len(piece.data)
        out, err = (end, err) if piece.stream == STDOUT else (out, end)
    return out, err


def _now() -> float:
    return asyncio.get_running_loop().time()
