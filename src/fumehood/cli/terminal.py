"""The person's own terminal: how large it is, how it hands over every key, and how it becomes again what it was."""

from __future__ import annotations

import os
import re
import termios
import tty
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from fumehood.settings.base import environment_for

SMALLEST, LARGEST = 1, 1000
"""Rows and columns that a sandbox's terminal may have."""
FALLBACK = (24, 80)
KNOWN = re.compile(r"(?:xterm|screen|tmux|rxvt|vt100|vt220|linux|konsole|ansi|dumb)(?:-[a-z0-9-]{1,32})?")
"""Kinds of terminals that images know, too."""
USUAL = "xterm-256color"


@dataclass(frozen=True, slots=True)
class Size:
    """In characters."""

    rows: int
    columns: int


def size_of(descriptor: int) -> Size:
    """A terminal that does not know its size (0 by 0, as some lines have it) is taken for one of 24 lines."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        rows, columns = 0, 0
    return Size(
        *(min(max(n, SMALLEST), LARGEST) if n else usual for n, usual in zip((rows, columns), FALLBACK, strict=True))
    )


def kind() -> str:
    """What it is, in a word that the program in the sandbox will know."""
    said = environment_for(None).get("TERM", "")
    return said if KNOWN.fullmatch(said) else USUAL


class RawTerminal:
    """While the block runs, every key is only data. Whatever ends the block, the terminal is what it was before: what
    was typed and not read by then is thrown away, since it was meant for the sandbox and would go to the shell here."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        self.enter()
        return self

    def enter(self) -> None:
        """Also again, after the process was stopped and somebody else had the terminal."""
        tty.setraw(self._descriptor, termios.TCSANOW)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._before is not None
        try:
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        except termios.error:
            return  # the terminal itself is gone, and there is nothing left to put right


_QUESTIONS = re.compile(
    rb"\x1b\[[>=?]?[0-9;]{0,16}[cnt]|\x1b\[\?[0-9;]{0,16}\$p|\x1b\[\?u|\x05"
    rb"|\x1b\][0-9;]{1,16};\?(?:\x07|\x1b\\)|\x1bP[+$]q[ -~]{0,256}\x1b\\"
)
"""What a terminal answers as if somebody had typed it: what it is, where its cursor stands, which colours it has."""


def without_questions(data: bytes) -> bytes:
    """What was printed before, to be shown once more: its questions were answered then, and another answer would be
    taken for keys."""
    return _QUESTIONS.sub(b"", data)


# --- what a program did to it ------------------------------------------------------------------------------

_MODES = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])|(\x1bc)|\x1b([=>])")
_BEGUN = re.compile(rb"\x1b(?:\[(?:\?[0-9;]{0,40})?)?\Z")
MOST_MODES = 64
_ON_BY_NATURE = frozenset({7, 25})
"""Long lines wrap, and there is a cursor."""


@dataclass(slots=True)
class Traces:
    """What a program changed of the terminal (the other screen, a hidden cursor, reports of the mouse), so that it can
    be undone when somebody leaves before the program does."""

    _changed: set[int] = field(default_factory=set)
    _keypad: bool = False
    _begun: bytes = b""
    """The beginning of an order whose rest has not come."""
    _any: bool = False

    def take(self, data: bytes) -> None:
        if not self._begun and b"\x1b" not in data:
            return
        self._any = True
        whole = self._begun + data
        for numbers, verb, reset, keypad in _MODES.findall(whole):
            if reset:
                self._changed.clear()
                self._keypad = False
            elif keypad:
                self._keypad = keypad == b"="
            else:
                self._set(numbers, on=verb == b"h")
        begun = _BEGUN.search(whole)
        self._begun = begun[0] if begun else b""

    def _set(self, numbers: bytes, *, on: bool) -> None:
        for number in (int(n) for n in numbers.split(b";") if n and len(n) <= 5):
            if on == (number in _ON_BY_NATURE):
                self._changed.discard(number)
            elif len(self._changed) < MOST_MODES:
                self._changed.add(number)

    def undo(self) -> bytes:
        """What to send to the terminal; nothing where nothing was done to it."""
        orders = [f"\x1b[?{number}{'h' if number in _ON_BY_NATURE else 'l'}" for number in sorted(self._changed)]
        return "".join([*orders, *(["\x1b>"] if self._keypad else []), *(["\x1b[0m"] if self._any else [])]).encode()
