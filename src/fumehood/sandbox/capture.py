"""Bounded capture: keeps the first bytes of each stream, on disk before they are acknowledged.

The bound is applied while reading, so that a flood never sits in memory. The kept part lies in a spool
folder as well: when the node is killed, the next one finds there exactly what it had acknowledged, and the
warden sends the rest again. Offsets make both safe: a repeated piece is trimmed, a missing one is an error,
never a silent gap.
"""

from __future__ import annotations

import codecs
import os
import shutil
from pathlib import Path
from types import TracebackType

from fumehood.errors import WardenProtocolError

STDOUT = 1
STDERR = 2


class Capture:
    """A `Sink` that keeps at most `limit` bytes of each stream."""

    def __init__(self, limit: int, spool: Path | None = None) -> None:
        self._limit = limit if spool is None else _agreed_limit(spool, limit)
        self._spool = spool
        self._kept = {STDOUT: bytearray(), STDERR: bytearray()}
        self._files: dict[int, int] = {}
        if spool is not None:
            for stream, kept in self._kept.items():
                kept += _read_if_there(spool / str(stream), self._limit)

    def write(self, stream: int, offset: int, data: bytes) -> None:
        kept = self._kept[stream]
        if len(kept) >= self._limit:
            return
        if offset > len(kept):
            raise WardenProtocolError(f"stream {stream} jumps from byte {len(kept)} to {offset}")
        new = data[len(kept) - offset : self._limit - offset]
        if new:
            self._store(stream, new)
            kept += new

    def _store(self, stream: int, data: bytes) -> None:
        if self._spool is None:
            return
        if stream not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._files[stream] = os.open(self._spool / str(stream), flags, 0o600)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._files[stream], view) :]
        except OSError:
            # Half a piece must not stay: it comes again as a whole.
            os.ftruncate(self._files[stream], len(self._kept[stream]))
            raise

    def kept(self, stream: int) -> bytes:
        return bytes(self._kept[stream])

    def text(self, stream: int, total: int | None) -> str:
        """What was kept, as text: invalid bytes become U+FFFD, a character that the bound cut in two is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self.kept(stream), final=not self.truncated(stream, total))

    def truncated(self, stream: int, total: int | None) -> bool:
        """Was anything left out? `total` is the supervisor's count. Without one nobody heard the stream's end, and
        nobody can say that this is all of it."""
        return total is None or total > len(self._kept[stream])

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def discard(self) -> None:
        """The result is stored elsewhere: the spool may go."""
        self.close()
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _agreed_limit(spool: Path, limit: int) -> int:
    """The limit that this capture began with: another one after a restart would look like a gap in the stream."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = spool / "limit"
    try:
        return int(file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        file.write_text(str(limit), encoding="ascii")
        return limit


def _read_if_there(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        return b""
