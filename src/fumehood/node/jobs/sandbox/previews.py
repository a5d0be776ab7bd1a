"""What a command prints: all of it hashed as it comes, the first of it kept."""

from __future__ import annotations

import hashlib
import json

from fumehood.errors import WardenProtocolError
from fumehood.jobs.types.sandbox_run import PREVIEW_BYTES
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.spec import MIB, Outcome, StreamEnd

PREVIEWS_BYTES = 2 * MIB
"""Of all previews of one job, as JSON: an answer is bounded, and what is left out of it is in the hashes."""


class Printed:
    """A `Sink` for one command."""

    def __init__(self) -> None:
        self._capture = Capture(PREVIEW_BYTES)
        self._hashes = {STDOUT: hashlib.sha256(), STDERR: hashlib.sha256()}
        self._bytes = {STDOUT: 0, STDERR: 0}

    def write(self, stream: int, offset: int, data: bytes) -> None:
        """After an attachment broke, pieces may come again."""
        seen = self._bytes[stream]
        if offset > seen:
            raise WardenProtocolError(f"stream {stream} jumps from byte {seen} to {offset}")
        new = data[seen - offset :]
        self._hashes[stream].update(new)
        self._bytes[stream] += len(new)
        self._capture.write(stream, offset, data)

    def sha256(self, stream: int) -> str:
        return self._hashes[stream].hexdigest()

    def check(self, outcome: Outcome) -> None:
        """The supervisor counted and hashed at the other end: both must have seen the same."""
        for stream, told in ((STDOUT, outcome.stdout), (STDERR, outcome.stderr)):
            if told != StreamEnd(self._bytes[stream], self.sha256(stream)):
                raise WardenProtocolError("what came out of the sandbox is not what its supervisor hashed")

    def preview(self, stream: int) -> str:
        """Valid UTF-8, in whole characters, and of no more bytes than it may have."""
        text = self._capture.text(stream, self._bytes[stream])
        return text.encode()[:PREVIEW_BYTES].decode("utf-8", "ignore")


class Room:
    """For the previews of one job: the first ones have it."""

    def __init__(self, most: int = PREVIEWS_BYTES) -> None:
        self._left = most

    def taken(self, text: str) -> str | None:
        size = len(json.dumps(text))
        if size > self._left:
            return None
        self._left -= size
        return text
