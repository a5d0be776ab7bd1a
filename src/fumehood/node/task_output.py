"""What a task's command prints, on disk before it is acknowledged: its first part as it came, and a ring of its last.

The first part is what is told to others while the command runs, and the end of the ring what is told at its end, so
neither is ever held in memory, and a node that was killed finds both as they were. A stream is bounded on disk by
`LIVE_BYTES` and the ring, whatever the command prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
from pathlib import Path

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.head_tail import HEAD_BYTES, TAIL_BYTES, Kept

LIVE_BYTES = 8 * 1024 * 1024
"""Of each stream, told while it is printed."""
RING_BYTES = 2 * TAIL_BYTES
"""Larger than the tail: what a killed node had written beyond what it counted must not lie in the part that counts."""
_PIECE = RING_BYTES - TAIL_BYTES
_TOTAL = struct.Struct("<Q")


class _Stream:
    def __init__(self, folder: Path, number: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._live = os.open(folder / str(number), flags | os.O_APPEND, 0o600)
        self._ring = os.open(folder / f"{number}.ring", flags, 0o600)
        self.total = os.fstat(self._live).st_size
        if self.total >= LIVE_BYTES:
            counted = os.pread(self._ring, _TOTAL.size, 0)
            self.total = max(LIVE_BYTES, _TOTAL.unpack(counted)[0]) if len(counted) == _TOTAL.size else LIVE_BYTES

    def write(self, data: memoryview) -> None:
        live = data[: max(0, LIVE_BYTES - self.total)]
        if live:
            self._append(live)
        for start in range(len(live), len(data), _PIECE):
            self._turn(data[start : start + _PIECE])

    def _append(self, data: memoryview) -> None:
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._live, rest) :]
        except OSError:
            os.ftruncate(self._live, self.total)  # half a piece must not stay: it comes again as a whole
            raise
        self.total += len(data)

    def _turn(self, data: memoryview) -> None:
        at = (self.total - LIVE_BYTES) % RING_BYTES
        first = data[: RING_BYTES - at]
        _pwrite(self._ring, first, _TOTAL.size + at)
        _pwrite(self._ring, data[len(first) :], _TOTAL.size)
        _pwrite(self._ring, memoryview(_TOTAL.pack(self.total + len(data))), 0)
        self.total += len(data)

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the first part, or of the last `TAIL_BYTES`."""
        end = min(start + size, self.total)
        found = os.pread(self._live, max(0, min(end, LIVE_BYTES) - start), start) if start < LIVE_BYTES else b""
        at, left = max(start, LIVE_BYTES), end - max(start, LIVE_BYTES)
        while left > 0:
            place = (at - LIVE_BYTES) % RING_BYTES
            piece = os.pread(self._ring, min(left, RING_BYTES - place), _TOTAL.size + place)
            if not piece:
                raise OSError("the ring is shorter than what was written to it")
            found, at, left = found + piece, at + len(piece), left - len(piece)
        return found

    def close(self) -> None:
        os.close(self._live)
        os.close(self._ring)


def _pwrite(file: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


class TaskOutput:
    """Implements `Output`. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._streams = {number: _Stream(folder, number) for number in (STDOUT, STDERR)}
        self._open = True
        self.changed = asyncio.Event()
        """Set whenever there is more; whoever waits for it clears it."""

    def write(self, stream: int, offset: int, data: bytes) -> None:
        written = self._streams[stream]
        if offset > written.total:
            raise WardenProtocolError(f"stream {stream} jumps from byte {written.total} to {offset}")
        new = memoryview(data)[written.total - offset :]
        if new:
            written.write(new)
            self.changed.set()

    def total(self, stream: int) -> int:
        return self._streams[stream].total

    def read(self, stream: int, start: int, size: int) -> bytes:
        """A part of what can still be read: the first `LIVE_BYTES`, and the last `TAIL_BYTES`."""
        return self._streams[stream].read(start, size)

    def kept(self, stream: int) -> Kept:
        total = self.total(stream)
        if total <= HEAD_BYTES + TAIL_BYTES:
            return Kept(self.read(stream, 0, total), b"", total)
        return Kept(self.read(stream, 0, HEAD_BYTES), self.read(stream, total - TAIL_BYTES, TAIL_BYTES), total)

    def close(self) -> None:
        """Stays open: it is read until its answer was given. See `remove`."""

    def discard(self) -> None:
        """As `close`."""

    def note_expiry(self, expires_ms: int) -> None:
        """Until when its task is this node's, for the next life of it."""
        with contextlib.suppress(OSError):  # a full disk: the next life knows of less time than there is
            draft = self._folder / "expires.new"
            draft.write_text(str(expires_ms), encoding="ascii")
            draft.replace(self._folder / "expires")

    def noted_expiry(self) -> int | None:
        try:
            return int((self._folder / "expires").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """The answer was given."""
        self.let_go()
        shutil.rmtree(self._folder, ignore_errors=True)

    def let_go(self) -> None:
        """Of the files only: the next life of the node finds them."""
        if self._open:
            self._open = False
            for stream in self._streams.values():
                stream.close()
