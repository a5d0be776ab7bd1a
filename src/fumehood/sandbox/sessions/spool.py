"""A command's output on disk: the first and the last bytes of each stream, in files of one size.

A file holds the bytes of a stream from a multiple of `SEGMENT` on, so that its name and length say where it belongs:
after the death of the process the next one finds exactly what was written, and the rest comes again. Offsets make
that safe: a repeated piece is trimmed, a missing one is an error, never a silent gap. Nothing is synced: a machine that
loses its power loses its sandboxes too.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.sessions.readers import Place
from fumehood.sandbox.sessions.values import Piece

SEGMENT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is kept of each stream. A later life may have another head and tail, and the same segments."""

    head: int
    tail: int = 8 * SEGMENT
    segment: int = SEGMENT

    @property
    def most(self) -> int:
        """Bytes that both streams together come to at most: ends of segments are kept that are half out of it."""
        return 2 * (self.head + self.tail + 3 * self.segment)


class Spool:
    """Both streams of one command. The folder is made with the first byte."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder = folder
        self._streams = {number: _Stream(folder, number, bounds) for number in (STDOUT, STDERR)}

    @property
    def written(self) -> Place:
        """Bytes of each stream so far."""
        return self._streams[STDOUT].end, self._streams[STDERR].end

    @property
    def kept(self) -> int:
        """Bytes on disk."""
        return sum(stream.kept for stream in self._streams.values())

    def write(self, stream: int, offset: int, data: bytes) -> None:
        self._streams[stream].write(offset, data)

    def available(self, place: Place) -> Place:
        """Bytes of each stream that are kept behind a place."""
        out, err = place
        return self._streams[STDOUT].available(out), self._streams[STDERR].available(err)

    def read(self, place: Place, limit: int) -> list[Piece]:
        """What comes behind a place in each stream, both within one limit."""
        out, err = self.available(place)
        share = max(limit // 2, limit - err)
        sizes = min(out, share), min(err, limit - min(out, share))
        pieces = [
            stream.read(at, size) for stream, at, size in zip(self._streams.values(), place, sizes, strict=True) if size
        ]
        return [piece for piece in pieces if piece.data]

    def head(self, stream: int, limit: int) -> bytes:
        """The first bytes, as far as they are all there."""
        piece = self._streams[stream].read(0, limit)
        return piece.data if piece.offset == 0 else b""

    def close(self) -> None:
        """Let go of files; what is written stays."""
        for stream in self._streams.values():
            stream.close()

    def discard(self) -> None:
        """What was written goes; how much it was stays known."""
        shutil.rmtree(self.emptied(), ignore_errors=True)

    def emptied(self) -> Path:
        """Nothing can be read any more. The folder is to be removed, by any thread."""
        for stream in self._streams.values():
            stream.discard()
        return self._folder


class _Stream:
    """One stream: files `<number>-<index>`, the last of which grows."""

    def __init__(self, folder: Path, number: int, bounds: Bounds) -> None:
        self._folder, self._number, self._bounds = folder, number, bounds
        self._size = bounds.segment
        self._file: int | None = None
        self._segments = _found(folder, number)
        """Which there are, and their lengths."""
        self.kept = sum(self._segments.values())
        last = max(self._segments, default=0)
        self.end = last * self._size + self._segments.get(last, 0)

    def write(self, offset: int, data: bytes) -> None:
        if offset > self.end:
            raise WardenProtocolError(f"stream {self._number} jumps from byte {self.end} to {offset}")
        view = memoryview(data)[self.end - offset :]
        while view:
            index, at = divmod(self.end, self._size)
            written = self._append(index, at, view[: self._size - at])
            self._segments[index] = at + written
            self.end += written
            self.kept += written
            view = view[written:]
        self._trim()

    def _append(self, index: int, at: int, data: memoryview) -> int:
        if self._file is None or at == 0:
            self.close()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path(index), flags, 0o600)
        return os.pwrite(self._file, data, at)

    def _trim(self) -> None:
        """Between the head and the tail there is nothing."""
        for index in [index for index in self._segments if self._spare(index)]:
            self._path(index).unlink(missing_ok=True)
            self.kept -= self._segments.pop(index)

    def _spare(self, index: int) -> bool:
        return index * self._size >= self._bounds.head and (index + 1) * self._size <= self.end - self._bounds.tail

    def available(self, offset: int) -> int:
        """Bytes that can be read from an offset on, without what is gone."""
        starts = ((index * self._size, size) for index, size in self._segments.items())
        return sum(max(0, start + size - max(offset, start)) for start, size in starts)

    def read(self, offset: int, limit: int) -> Piece:
        """From an offset on, or from where there is something behind it; up to the next gap."""
        data, begin = bytearray(), None
        for index in sorted(self._segments):
            start = max(offset, index * self._size)
            end = min(index * self._size + self._segments[index], start + limit - len(data))
            if start >= end or (begin is not None and start != begin + len(data)):
                continue
            begin = start if begin is None else begin
            data += self._read_segment(index, start - index * self._size, end - start)
        return Piece(self._number, self.end if begin is None else begin, bytes(data))

    def _read_segment(self, index: int, at: int, size: int) -> bytes:
        file = os.open(self._path(index), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, size, at)
        finally:
            os.close(file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def discard(self) -> None:
        self.close()
        self._segments.clear()
        self.kept = 0

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._number}-{index}"


def _found(folder: Path, number: int) -> dict[int, int]:
    """The files of a stream that an earlier life left, with their lengths."""
    try:
        with os.scandir(folder) as entries:
            files = {entry.name: entry.stat().st_size for entry in entries}
    except FileNotFoundError:
        return {}
    named = {name.partition("-")[2]: size for name, size in files.items() if name.startswith(f"{number}-")}
    return {int(index): size for index, size in named.items() if index.isdigit()}
