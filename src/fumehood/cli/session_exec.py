"""A command in a session, watched from here: what it prints as it appears, what it is given to read, and its exit code
as ours."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from types import TracebackType
from typing import Self

from fumehood.cli.exits import CommandError
from fumehood.cli.leaving import LEAVING, Interrupts, insist, left
from fumehood.cli.output import Screen
from fumehood.cli.session_calls import Command
from fumehood.cli.session_lease import Kept
from fumehood.cli.session_pump import PIECE, Complaints, Printing, Typed
from fumehood.cli.session_view import end_of
from fumehood.cli.stream import Patience

STDIN = 0
LEAVE_SECONDS = 1.0
"""Of a request that is under way when the command has ended."""


def passing(command: Command, screen: Screen) -> Interrupts:
    """The first Ctrl-C goes to the command; the second one leaves it running."""

    def take(number: int) -> None:
        name = signal.Signals(number).name
        screen.say(f"passing {name} on to {command.command_id}; Ctrl-C again leaves it running")
        insist(lambda: command.signal(number), screen, f"{name} could not be passed on")

    return Interrupts(take)


def watched(command: Command, screen: Screen, *, reads: bool, as_json: bool) -> int:
    """The exit code of a command that was followed to its end. `reads`: our stdin is the command's. `as_json`: its
    end is shown, and not what it prints."""
    printing = Printing(command.api, command.path, Patience(Complaints(screen.say)))
    session, name = command.session.session_id, command.command_id
    later = f"`fumehood session logs {session} {name} -f` shows it, `fumehood session kill {session} {name}` ends it"
    try:
        feeding = Feeding(command, screen) if reads else nullcontext()
        with passing(command, screen), Kept(command.session, screen.say), feeding:
            show(printing, screen, quiet=as_json)
    except LEAVING as error:
        return left(error, name, screen, interrupted=f"it runs on: {later}", unread=f"{name} runs on: {later}")
    ended = printing.ended or {"command_id": name, "status": "unknown"}
    if as_json:
        screen.document(ended, command.get)
    end = end_of(ended)
    if end.line:
        screen.say(end.line)
    return end.code


def show(printing: Printing, screen: Screen, *, quiet: bool = False) -> None:
    for chunk in printing.chunks():
        if quiet:
            continue
        if chunk.lost:
            screen.say(f"{chunk.lost} bytes of {chunk.stream} are not kept any more and left out here")
        screen.show_bytes(chunk.stream, chunk.data)


class Feeding:
    """Our stdin on its way to the command, while the block runs. It is read without a buffer of Python's own, which
    nobody could leave while another thread waits in it."""

    def __init__(self, command: Command, screen: Screen) -> None:
        self._command, self._screen = command, screen
        self._typed = Typed(command.feed, Patience())
        self._sending = threading.Thread(target=self._typed.run, daemon=True)

    def __enter__(self) -> Self:
        self._sending.start()
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._typed.stop()
        self._sending.join(LEAVE_SECONDS)

    def _read(self) -> None:
        try:
            while data := os.read(STDIN, PIECE):
                if not self._typed.put(data):
                    break
        except OSError as error:
            self._screen.say(f"stdin cannot be read: {error.strerror}")
        self._typed.end()
        self._sending.join()
        if self._typed.refused is not None and not self._has_ended():
            self._screen.say(f"its input could not be sent: {self._typed.refused.detail}")

    def _has_ended(self) -> bool:
        """Whoever has ended reads nothing more, which is no trouble."""
        try:
            return bool(self._command.get()["status"] != "running")
        except CommandError:
            return True  # whoever shows the output tells what is wrong
