"""What a command prints, put together from pieces: each byte once and in order, however often they come. Pure."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Iterator
from typing import Any

from fumehood.errors import UnexpectedAnswerError
from fumehood.sdk.values import Output

STREAMS = ("stdout", "stderr")


class Printing:
    """One reader's place in both streams. What comes twice is skipped, what is missing is counted."""

    def __init__(self) -> None:
        self.places = dict.fromkeys(STREAMS, 0)
        self._decoders = {name: _decoder() for name in STREAMS}

    def take(self, data: Any) -> Iterator[Output]:
        """What an event has beyond what was seen."""
        stream, offset, content = _piece(data)
        have = self.places[stream]
        content, offset = content[max(0, have - offset) :], max(offset, have)
        if not content:
            return
        lost = offset - have
        text = self._decoders[stream].decode(b"", final=True) if lost else ""
        self.places[stream] = offset + len(content)
        yield Output(stream, content, text + self._decoders[stream].decode(content), offset, lost)

    def rest(self) -> Iterator[Output]:
        """At the end: characters that never became whole."""
        for name, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                yield Output(name, b"", text, self.places[name])


class Kept:
    """The beginning of a stream, up to so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()
        self._missing = False

    def add(self, piece: Output) -> None:
        """What comes behind a hole is kept, too: the flag says that there is one."""
        self._missing = self._missing or piece.lost > 0 or len(self._data) + len(piece.data) > self._most
        self._data += piece.data[: self._most - len(self._data)]

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def is_truncated(self, total: int) -> bool:
        """Whether something of so many bytes is missing."""
        return self._missing or len(self._data) < total


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def _piece(data: Any) -> tuple[str, int, bytes]:
    try:
        stream, offset, text = data["stream"], data["offset"], data["data"]
        if stream in STREAMS and isinstance(offset, int):
            return stream, offset, base64.b64decode(text, validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        pass
    raise UnexpectedAnswerError("the server sent output that cannot be understood").advise()
