"""From records of a sandbox's output to what somebody is told of it, and to what is shown of it at once. Pure.

Both go by places alone: a record that begins behind what is known says what is missing, and of one that begins before
it only the rest is new. So it does not matter where records come from, how they were cut, or whether they come twice.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from fumehood.broker.ports import LogKind, LogPlace, LogRecord
from fumehood.sandbox.head_tail import HeadTail, Kept
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire import log_api
from fumehood.wire.event_api import Message
from fumehood.wire.log_api import LogPosition, LogsCut, LogsStarted, LogsText
from fumehood.wire.logs import LogCut, LogEnd, LogStart, LogStream
from fumehood.wire.sandbox import Cut

PIECE = 64 * 1024
"""Bytes of one event, as of one record."""
_STREAMS = {LogKind.OUT: LogStream.STDOUT, LogKind.ERR: LogStream.STDERR}
_KINDS = {stream: kind for kind, stream in _STREAMS.items()}


def place_of(record: LogRecord, stream: LogStream) -> int:
    return record.at.stdout if stream is LogStream.STDOUT else record.at.stderr


def _new(known: int, at: int, data: bytes) -> tuple[int, bytes]:
    """What is missing before a piece, and what of it is not known yet."""
    return (at - known, data) if at > known else (0, data[known - at :])


# --- all at once -------------------------------------------------------------------------------------------


class Assembly:
    """Head and tail of both streams, of a log that is read once through."""

    def __init__(self) -> None:
        self._streams = {stream: HeadTail() for stream in LogStream}
        self.ended = False
        self.blob: str | None = None
        """Where what is kept lies, if the log says so."""
        self.truncated = Cut()
        """What the log's end says is missing."""

    def take(self, record: LogRecord) -> None:
        if record.kind is LogKind.END:
            self.ended = True
            end = LogEnd.decode(record.data)
            self.blob = end.logs if end is not None else None
            self.truncated = end.truncated if end is not None else Cut()
            for stream, kept in self._streams.items():
                kept.lose(place_of(record, stream) - kept.total)
        elif record.kind in _STREAMS:
            stream = _STREAMS[record.kind]
            kept = self._streams[stream]
            missing, data = _new(kept.total, place_of(record, stream), record.data)
            kept.lose(missing)
            kept.push(data)

    @property
    def kept(self) -> KeptLogs:
        return KeptLogs(*(self._streams[stream].kept for stream in (LogStream.STDOUT, LogStream.STDERR)))


def as_records(kept: KeptLogs, start: LogStart | None = None) -> Iterator[LogRecord]:
    """What was kept, as the records that would have said it."""
    yield LogRecord(LogKind.START, data=start.encode() if start is not None else b"")
    yield from _pieces(LogStream.STDOUT, kept.stdout)
    yield from _pieces(LogStream.STDERR, kept.stderr)
    yield LogRecord(LogKind.END, LogPlace(kept.stdout.total, kept.stderr.total))


def _pieces(stream: LogStream, kept: Kept) -> Iterator[LogRecord]:
    for data, begin in ((kept.head, 0), (kept.tail, kept.total - len(kept.tail))):
        for at in range(0, len(data), PIECE):
            place = LogPlace(begin + at) if stream is LogStream.STDOUT else LogPlace(0, begin + at)
            yield LogRecord(_KINDS[stream], place, data[at : at + PIECE])


# --- piece by piece ----------------------------------------------------------------------------------------


class Telling:
    """One attempt, told to somebody from where he stands."""

    def __init__(self, position: LogPosition, *, is_resumed: bool = False) -> None:
        self.position = position
        """Up to where he was told."""
        self._held = dict.fromkeys(LogStream, b"")
        """The beginning of a character whose rest has not come yet."""
        self._has_begun = is_resumed
        self.ended = False
        """Whether the log said so itself."""

    @property
    def attempt(self) -> int:
        return self.position.attempt

    def _known(self, stream: LogStream) -> int:
        return self.position.of(stream) + len(self._held[stream])

    def take(self, record: LogRecord) -> Iterable[Message]:
        """What a record says that was not told."""
        match record.kind:
            case LogKind.START:
                return self._start(LogStart.decode(record.data))
            case LogKind.OUT | LogKind.ERR:
                return self._piece(_STREAMS[record.kind], record)
            case LogKind.CUT:
                return self._pause(LogCut.decode(record.data))
            case LogKind.END:
                return self._end(record)

    def _start(self, said: LogStart | None) -> Iterator[Message]:
        if self._has_begun:
            return
        self._has_begun = True
        started = LogsStarted(attempt=self.attempt)
        if said is not None:
            started = LogsStarted(attempt=self.attempt, started_at=said.started_at, node=said.node)
        yield log_api.message("start", started, self.position)

    def _piece(self, stream: LogStream, record: LogRecord) -> Iterator[Message]:
        yield from self._start(None)  # its own is gone
        missing, data = _new(self._known(stream), place_of(record, stream), record.data)
        if missing:
            yield from self._jump(stream, missing)
        yield from self._text(stream, data, whole=False)

    def _text(self, stream: LogStream, data: bytes, *, whole: bool) -> Iterator[Message]:
        data = self._held[stream] + data
        text, length = codecs.utf_8_decode(data, "replace", whole)
        self._held[stream] = data[length:]
        if length:
            offset = self.position.of(stream)
            self.position = self.position.moved(stream, offset + length)
            yield log_api.message(stream.value, LogsText(offset=offset, text=text), self.position)

    def _jump(self, stream: LogStream, missing: int) -> Iterator[Message]:
        """Over what is gone. What was held back has no rest to wait for."""
        yield from self._text(stream, b"", whole=True)
        offset = self.position.of(stream)
        self.position = self.position.moved(stream, offset + missing)
        cut = LogsCut(stream=stream, offset=offset, resumes_at=offset + missing)
        yield log_api.message("cut", cut, self.position)

    def _pause(self, said: LogCut | None) -> Iterator[Message]:
        """Told again to whoever comes back meanwhile, since his id cannot say whether he was told."""
        if said is not None and self._known(said.stream) <= said.kept:
            yield from self._start(None)
            cut = LogsCut(stream=said.stream, offset=self.position.of(said.stream))
            yield log_api.message("cut", cut, self.position)

    def _end(self, record: LogRecord) -> Iterator[Message]:
        self.ended = True
        yield from self._start(None)
        for stream in LogStream:
            missing = place_of(record, stream) - self._known(stream)
            if missing > 0:
                yield from self._jump(stream, missing)
        yield from self.close()

    def close(self) -> Iterator[Message]:
        """Nothing comes any more: what was held back is no character."""
        for stream in LogStream:
            yield from self._text(stream, b"", whole=True)

    def unheard(self, which: Cut) -> Iterator[Message]:
        """Nobody heard the end of these streams: there may have been more."""
        for stream, is_cut in ((LogStream.STDOUT, which.stdout), (LogStream.STDERR, which.stderr)):
            if is_cut:
                cut = LogsCut(stream=stream, offset=self.position.of(stream))
                yield log_api.message("cut", cut, self.position)
