"""One line at the bottom of a terminal that says what is waited for, and for how long.

It is drawn on stderr, and only where that is a terminal; whatever else is written there comes first and takes it away,
so that no byte of a run's output ever mixes with it. Elsewhere nothing at all is written.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, Self, TextIO

from rich.cells import set_cell_size
from rich.filesize import decimal

from fumehood.cli.show import lasted, plain
from fumehood.settings.base import environment_for

TICK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 0.4
"""What is over sooner need not be told, and a program that prints all the time is its own sign of life."""
ERASE: Final = "\r\x1b[2K"
FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NARROWEST: Final = 20


def on_terminal(stream: TextIO | None = None) -> bool:
    """Whether somebody looks who can see a line being drawn over."""
    return (stream or sys.stderr).isatty() and environment_for(None).get("TERM", "") not in ("", "dumb")


class Pulse:
    """While the block runs. `lock` is held by whoever else writes to the terminal, and `free` tells whether the cursor
    is at the beginning of a line then."""

    def __init__(
        self,
        phase: str = "",
        *,
        lock: threading.Lock | None = None,
        free: Callable[[], bool] = lambda: True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._shown = on_terminal(self._stream)
        self._lock, self._free, self._clock = lock or threading.Lock(), free, clock
        self._phase, self._began = plain(phase), clock()
        self._quiet_since = self._began
        self._drawn = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_shown(self) -> bool:
        """Whether it is worth anybody's while to find out more."""
        return self._shown and not self._over.is_set()

    def phase(self, words: str) -> None:
        self._phase = plain(words)

    def stop(self) -> None:
        self._over.set()
        with self._lock:
            self.clear()

    def clear(self) -> None:
        """Take the line away: with the lock held, before anything else is written."""
        self._quiet_since = self._clock()
        if self._drawn:
            self._drawn = False
            self._write(ERASE)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(TICK_SECONDS):
            number += 1
            with self._lock:
                if self._over.is_set():
                    return
                if self._phase and self._free() and self._clock() - self._quiet_since >= PATIENCE_SECONDS:
                    self._draw(FRAMES[number % len(FRAMES)])

    def _draw(self, frame: str) -> None:
        room = max(NARROWEST, _columns(self._stream) - 1)
        words = f"{frame} {self._phase}  {lasted(self._clock() - self._began)}"
        self._write(ERASE + set_cell_size(words, room).rstrip())
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or knows no such character
            self._over.set()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Transfer:
    """Bytes on their way, in words: how many, of how many, and how fast."""

    def __init__(self, pulse: Pulse, verb: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pulse, self._verb, self._clock = pulse, verb, clock
        self._began = clock()
        self._told = self._began

    def pieces(self, name: str, pieces: Iterable[bytes], total: int | None = None) -> Iterator[bytes]:
        """The same pieces, told as they go."""
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            self.moved(name, done, total)

    def moved(self, name: str, done: int, total: int | None = None) -> None:
        """`done`: all bytes until now. A line ten times a second is enough."""
        now = self._clock()
        if now - self._told < TICK_SECONDS:
            return
        self._told = now
        rate = done / max(now - self._began, TICK_SECONDS)
        of = f" of {decimal(total)}" if total is not None and total >= done else ""
        self._pulse.phase(f"{self._verb} {name}  {decimal(done)}{of}  {decimal(round(rate))}/s")
