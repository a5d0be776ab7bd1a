"""A command in a session at the person's own terminal: every key goes to it, everything it draws comes back.

The command is the session's. Whoever leaves, by the detach keys, by a signal or because the line is gone, leaves it
running and may come back.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from fumehood.cli import detach_keys
from fumehood.cli.detach_keys import DetachKeys
from fumehood.cli.exits import CommandError, UnknownEndError, UsageError
from fumehood.cli.run_end import End
from fumehood.cli.session_calls import Command
from fumehood.cli.session_lease import Kept
from fumehood.cli.session_pump import Chunk, Complaints, Printing, Resizes, Typed
from fumehood.cli.session_view import end_of
from fumehood.cli.show import plain
from fumehood.cli.stream import Patience
from fumehood.cli.terminal import RawTerminal, Size, Traces, size_of, without_questions

HELD_SECONDS = 1.0
"""A key that may be the first of the detach keys goes to the program when nothing follows for so long."""
LAST_KEYS_SECONDS = 3.0
"""What was typed before the detach keys is still to arrive."""
REPLAY_BYTES = 64 * 1024
"""Of what was printed before somebody comes back: some screens full."""
LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
KEYS = 65_536


@dataclass(frozen=True, slots=True)
class Detached:
    """Somebody left, and the command goes on."""


@dataclass(frozen=True, slots=True)
class Ended:
    command: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """To leave, by a signal."""

    number: int


@dataclass(frozen=True, slots=True)
class Faulty:
    """A part of us ended that should not have."""

    error: CommandError | None = None


Why = Detached | Ended | Told | Faulty


def needs_terminal(what: str, instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{what} needs a terminal on stdin and stdout; {instead}")


class Picture:
    """The terminal's own screen, until it is given back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._closed = False
        self._traces = Traces()
        self._last = b"\n"
        self.cut_short = False
        """Somebody leaves in the middle of a line, and what follows needs one of its own."""

    def draw(self, data: bytes) -> None:
        with self._lock:
            if not self._closed:
                self._traces.take(data)
                self._last = data[-1:] or self._last
                _write(self._descriptor, data)

    def say(self, words: str) -> None:
        """A line of ours between what the program draws."""
        self.draw(f"\r\nfumehood: {plain(words)}\r\n".encode())

    def close(self) -> None:
        """Nothing is drawn any more, and what was changed is put back. A terminal that takes nothing is not waited
        for."""
        if self._lock.acquire(timeout=1.0):
            self._closed = True
            with suppress(OSError):  # a terminal that is gone has nothing to be put back
                _write(self._descriptor, self._traces.undo() + self._line())
            self._lock.release()

    def _line(self) -> bytes:
        return b"\r\n" if self.cut_short and self._last != b"\n" else b""


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


@dataclass(slots=True)
class Visit:
    """One stay at a command's terminal."""

    command: Command
    keys: str = detach_keys.DEFAULT
    stdin: int = 0
    stdout: int = 1
    _over: queue.SimpleQueue[Why] = field(default_factory=queue.SimpleQueue)
    _seen_before: int = 0
    """Bytes that were printed before this stay."""

    def begin(self) -> Why:
        """At a command that has just been started."""
        return self._stay(Printing(self.command.api, self.command.path), typed_before=0, nudge=False)

    def come_back(self, view: dict[str, Any]) -> Why:
        """At one that runs already: the last of what it printed, and then what it prints."""
        printing = Printing(self.command.api, self.command.path)
        self._seen_before = int(view["stdout_bytes"])
        printing.places["stdout"] = max(0, self._seen_before - REPLAY_BYTES)
        return self._stay(printing, typed_before=int(view["stdin_bytes"]), nudge=True)

    def _stay(self, printing: Printing, *, typed_before: int, nudge: bool) -> Why:
        picture, keys = Picture(self.stdout), DetachKeys(detach_keys.parsed(self.keys))
        printing.patience = Patience(Complaints(picture.say))
        typed = Typed(self.command.feed, Patience(), offset=typed_before)
        resizes = Resizes(self.command.resize, Patience())
        with ExitStack() as stack:
            raw = stack.enter_context(RawTerminal(self.stdin))
            stack.callback(picture.close)
            stack.enter_context(self._signals(raw, resizes))
            stack.callback(resizes.stop)
            stack.callback(typed.stop)
            stack.callback(lambda: setattr(printing, "stopped", True))
            stack.enter_context(Kept(self.command.session, picture.say))
            first = _redrawn(size_of(self.stdout)) if nudge else ()
            self._thread(lambda: self._show(printing, picture))
            self._thread(lambda: self._read(keys, typed))
            self._thread(lambda: _until_refused(lambda: resizes.run(first)))
            self._thread(typed.run)
            why = self._over.get()
            picture.cut_short = not isinstance(why, Ended)
            if isinstance(why, Detached):
                typed.went_out(LAST_KEYS_SECONDS)
        return why

    @staticmethod
    def _thread(body: Callable[[], None]) -> None:
        threading.Thread(target=body, daemon=True).start()

    # --- its parts ---------------------------------------------------------------------------------------------

    def _show(self, printing: Printing, picture: Picture) -> None:
        why: Why = Faulty()
        try:
            for chunk in _from_a_line(printing):
                again = printing.places["stdout"] <= self._seen_before
                picture.draw(without_questions(chunk.data) if again else chunk.data)
            why = Ended(printing.ended or {})
        except CommandError as error:
            why = Faulty(error)
        except OSError:
            why = Told(signal.SIGHUP)  # the terminal is gone
        finally:
            self._over.put(why)

    def _read(self, keys: DetachKeys, typed: Typed) -> None:
        why: Why = Told(signal.SIGHUP)
        try:
            while True:
                ready, _, _ = select.select([self.stdin], [], [], HELD_SECONDS if keys.held else None)
                if not ready:
                    typed.put(keys.let_go())
                    continue
                data = os.read(self.stdin, KEYS)
                if not data:
                    return
                passed, left = keys.feed(data)
                if passed:
                    typed.put(passed)
                if left:
                    why = Detached()
                    return
        except OSError:
            return  # the terminal is gone, as after its end
        finally:
            self._over.put(why)

    @contextmanager
    def _signals(self, raw: RawTerminal, resizes: Resizes) -> Iterator[None]:
        """What a handler does is to put something into a queue: it may come in the middle of anything."""

        def leave(number: int, frame: FrameType | None) -> None:
            self._over.put(Told(number))

        def look(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGCONT:
                raw.enter()
            resizes.want(size_of(self.stdout))

        handlers = {**dict.fromkeys(LEAVING, leave), signal.SIGWINCH: look, signal.SIGCONT: look}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _redrawn(size: Size) -> tuple[Size, Size]:
    """A program that draws its own screen does so again when the size changes, so it changes."""
    return Size(size.rows, max(1, size.columns - 1)), size


def _until_refused(run: Callable[[], None]) -> None:
    try:
        run()
    except CommandError:
        return  # the command has ended, or nobody answers: whoever shows its output tells


def _from_a_line(printing: Printing) -> Iterator[Chunk]:
    """Whoever comes in the middle begins with a whole line: the rest of one may be half of an order to the terminal."""
    begun = printing.places["stdout"] == 0
    for chunk in printing.chunks():
        if begun and not chunk.lost:
            yield chunk
            continue
        _, line, rest = chunk.data.partition(b"\n")
        begun = True
        yield Chunk(chunk.stream, rest if line else chunk.data)


def told(why: Why, command: Command) -> End:
    """What a stay comes to: an exit code, and a line about what goes on."""
    session, name = command.session.session_id, command.command_id
    back = f"it runs on, and `fumehood session attach {session} {name}` comes back to it"
    match why:
        case Ended(command=view):
            return end_of(view)
        case Detached():
            return End(0, f"left {name}: {back}")
        case Told(number=number):
            return End(128 + number, f"told to leave {name}: {back}")
        case Faulty(error=error):
            reason = error.detail if error else "an internal error of the command line"
            back = f"`fumehood session attach {session} {name}` reconnects if it is still running"
            raise UnknownEndError(f"{name} was started, but its state could not be read: {reason}; {back}")
