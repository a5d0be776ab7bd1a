"""How much of anything a model is shown, and in which form.

What a program prints is a stranger's: it may be endless, no text at all, or written to fool whoever looks at it. A
model is given the beginning and the end of it, and is told what was left out and how to read that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_BYTES = 16 * 1024
"""Of each stream in an answer: some four thousand tokens."""
MOST_BYTES = 128 * 1024
LEAST_BYTES = 256
LINE_CHARS = 200
"""Of a line in a progress notification."""

_FOUL = re.compile(
    "\r\n|[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # controls, but not tab and line feed
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # unseen, or turning text
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # halves; tags, which people never see and models read
)


def visible(text: str) -> str:
    """Text in which nothing is hidden: whatever does not show itself, or changes how the rest is shown, is written out.
    Line ends, also those of Windows, and tabs stay."""
    return _FOUL.sub(lambda found: found[0] if found[0] == "\r\n" else _written(found[0]), text)


def _written(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def shown(data: bytes) -> str:
    """Bytes as a model sees them; what is no UTF-8 is U+FFFD."""
    return visible(data.decode("utf-8", "replace"))


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character whose rest is not here. What never was a character stays."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if wanted > back and back < len(data) else data
    return data


def _from_a_character(data: bytes) -> bytes:
    """Without the end of a character whose beginning is not here."""
    for at in range(min(4, len(data))):
        if data[at] & 0xC0 != 0x80:
            return data[at:]
    return data


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of a stream: all of it, or its beginning and its end."""

    text: str
    total_bytes: int
    """Of the whole stream so far."""
    truncated: bool
    """Whether some of what was asked for is not shown."""
    left_out_from: int | None = None
    """The first byte that is not shown."""
    left_out_to: int | None = None
    """The first byte that is shown again."""


class HeadTail:
    """A stream as it comes, of which only the beginning and the end are held. Bytes that nobody has any more are
    counted, and never taken for shown."""

    def __init__(self, limit: int, at: int = 0) -> None:
        """`at`: where in the stream it begins."""
        self._half = limit // 2
        self._limit = limit
        self._at = at
        self._head = bytearray()
        self._tail = bytearray()
        self._position = at
        self._tail_from = at
        self._broken = False
        """Whether nothing more belongs to the head."""

    @property
    def position(self) -> int:
        """How far the stream has come."""
        return self._position

    def skip(self, count: int) -> None:
        """So many bytes are gone: what comes now does not join what was before."""
        if count <= 0:
            return
        self._broken = True
        self._position += count
        self._tail.clear()
        self._tail_from = self._position

    def feed(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0 and not self._broken:
            self._head += data[:room]
            self._position += min(room, len(data))
            data = data[room:]
            self._tail_from = self._position
        if not data:
            return
        self._tail += data
        self._position += len(data)
        over = len(self._tail) - (self._limit - self._half)
        if over > 0:
            del self._tail[:over]
            self._tail_from += over

    def excerpt(self) -> Excerpt:
        head_end = self._at + len(self._head)
        if self._tail_from == head_end:
            return Excerpt(shown(bytes(self._head + self._tail)), self._position, False)
        head, tail = whole_characters(bytes(self._head)), _from_a_character(bytes(self._tail))
        start, end = self._at + len(head), self._position - len(tail)
        text = f"{shown(head)}\n[… bytes {start} to {end} are left out here …]\n{shown(tail)}"
        return Excerpt(text, self._position, True, start, end)


def last_line(data: bytes) -> str:
    """The last line that says something, for whoever watches."""
    lines = [line for line in re.split(r"[\r\n]", data[-4096:].decode("utf-8", "replace")) if line.strip()]
    text = visible(lines[-1].strip()) if lines else ""
    return text if len(text) <= LINE_CHARS else f"{text[: LINE_CHARS - 1]}…"


def clipped(text: str, most_bytes: int) -> tuple[str, bool]:
    """The beginning of a text, and whether there is more of it."""
    data = text.encode("utf-8", "replace")
    return (text, False) if len(data) <= most_bytes else (whole_characters(data[:most_bytes]).decode(), True)


def and_more(shown: int, most: int) -> str:
    """The last line of a list that is not whole."""
    return "… and more: a larger limit shows them" if shown < most else f"… and more: at most {most} are listed"
