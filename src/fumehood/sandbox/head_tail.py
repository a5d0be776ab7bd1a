"""The beginning and the end of a stream of any length, in memory of a fixed size, and as text with the cut marked."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

HEAD_BYTES = TAIL_BYTES = 512 * 1024
"""Of each stream that are kept of what a sandbox prints."""
MARK = "\n[… {} bytes left out …]\n"
_CHARACTER = 3
"""Bytes of a character that are at most there where it is not whole."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a stream."""

    head: bytes = b""
    tail: bytes = b""
    """Its last bytes, behind those of the head."""
    total: int = 0
    """Bytes of the whole stream."""

    @property
    def left_out(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    def text(self, *, goes_on: bool = False) -> str:
        """Invalid bytes become U+FFFD, and a character that the cut went through is left out and counted with what is;
        so is one at the very end of a stream that goes on."""
        if not self.left_out:
            return _decoded(self.head + self.tail, whole=not goes_on)
        head, rest = codecs.utf_8_decode(self.head, "replace", False)
        tail = self.tail[broken_start(self.tail) :]
        left_out = self.total - rest - len(tail)
        return head + MARK.format(left_out) + _decoded(tail, whole=not goes_on)


class HeadTail:
    """Fed with a stream piece by piece. Never holds more than the head and twice the tail."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_limit, self._tail_limit = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._closed = False
        """Whether the head takes no more."""
        self.total = 0

    def push(self, data: bytes) -> None:
        self.total += len(data)
        taken = 0 if self._closed else self._head_limit - len(self._head)
        self._head += data[:taken]
        rest = memoryview(data)[taken:]
        if rest:
            self._closed = True
            self._tail += rest[-self._tail_limit :] if self._tail_limit else b""
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def lose(self, count: int) -> None:
        """So many bytes were there, and nobody has them: the head ends before them, and the tail begins behind them."""
        if count > 0:
            self.total += count
            self._closed = True
            self._tail.clear()

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        return bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""

    @property
    def kept(self) -> Kept:
        return Kept(self.head, self.tail, self.total)


def broken_end(data: bytes) -> int:
    """Bytes at the end that are the beginning of a character, whose rest may follow."""
    end = data[-_CHARACTER:]
    return len(end) - codecs.utf_8_decode(end, "replace", False)[1]


def broken_start(data: bytes) -> int:
    """Bytes at the start that can only be the rest of a character that began before."""
    start = data[:_CHARACTER]
    return next((at for at, byte in enumerate(start) if byte & 0xC0 != 0x80), len(start))


def _decoded(data: bytes, *, whole: bool) -> str:
    return codecs.utf_8_decode(data, "replace", whole)[0]


def last_lines(text: str, count: int) -> str:
    """The last lines of a text. The line break at its end ends the last one and begins none."""
    at = len(text) - text.endswith("\n")
    for _ in range(count):
        at = text.rfind("\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :]
