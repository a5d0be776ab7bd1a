"""Who reads a command's output, and how far. Pure: whoever asks says what time it is.

Readers have no names: one that asks for what comes behind its last answer (or once more for the same) is taken for the
same reader. So several can read at once, each at its own pace, and the slowest is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

ACTIVE_SECONDS = 15.0
"""After its last question a reader is waited for so long."""
AHEAD_BYTES = 1024 * 1024
"""Of each stream that are taken beyond what the slowest reader asked for."""
RETURN_SECONDS = 10.0
"""After a restart a reader that may have been there is waited for so long."""
MOST = 8
"""Readers of one command; the one that asked longest ago is forgotten first."""

Place = tuple[int, int]
"""In stdout and in stderr."""


@dataclass(slots=True, eq=False)
class Reader:
    """One reader. What lies before `asked` it has."""

    asked: Place
    at: float
    given: Place | None = None
    """Where its next question begins, if it got its answer."""


class Readers:
    def __init__(self) -> None:
        self._readers: list[Reader] = []
        self._expected: Reader | None = None

    def expect(self, place: Place, now: float) -> None:
        """Somebody may have read up to about here, and will come back."""
        self._expected = Reader(place, now - ACTIVE_SECONDS + RETURN_SECONDS)
        self._readers.append(self._expected)

    def ask(self, place: Place, now: float) -> Reader:
        """Somebody asks for what comes behind a place."""
        self._expire(now)
        if self._expected in self._readers:
            self._readers.remove(self._expected)
        for reader in self._readers:
            if place in (reader.asked, reader.given):
                reader.asked, reader.at, reader.given = place, now, None
                return reader
        if len(self._readers) >= MOST:
            self._readers.remove(min(self._readers, key=lambda reader: reader.at))
        reader = Reader(place, now)
        self._readers.append(reader)
        return reader

    def give(self, reader: Reader, place: Place, now: float) -> None:
        """It gets everything up to a place, or as much as there still is of it."""
        reader.given, reader.at = place, now

    def room(self, written: Place, now: float) -> bool:
        """Whether more may be taken without leaving anybody behind."""
        self._expire(now)
        return all(
            wrote - has < AHEAD_BYTES
            for reader in self._readers
            for wrote, has in zip(written, reader.asked, strict=True)
        )

    def patience(self, now: float) -> float:
        """Seconds until the next reader is given up."""
        return max(0.0, min((reader.at + ACTIVE_SECONDS - now for reader in self._readers), default=0.0))

    def _expire(self, now: float) -> None:
        self._readers = [reader for reader in self._readers if now - reader.at < ACTIVE_SECONDS]
