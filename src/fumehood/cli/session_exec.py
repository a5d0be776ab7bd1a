"""A command in a session, watched from here: what it prints as it appears, what it is given to read, and its exit code
as ours."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import Any, Self

from fumehood.cli.client import ApiError
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.output import Screen
from fumehood.cli.run import UnknownEndError, give_up_stdout
from fumehood.cli.run_end import INTERRUPTED, UNREAD
from fumehood.cli.session_calls import Command
from fumehood.cli.session_lease import Kept
from fumehood.cli.session_pump import PIECE, Complaints, Printing, Typed
from fumehood.cli.session_view import end_of
from fumehood.cli.stream import Patience

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDIN = 0
LEAVE_SECONDS = 1.0
"""Of a request that is under way when the command has ended."""


class Passed:
    """The first Ctrl-C (or SIGTERM) goes to the command, and whoever reads reads on; the second one is a
    KeyboardInterrupt, and leaves the command running."""

    def __init__(self, command: Command, screen: Screen) -> None:
        self._command, self._screen = command, screen
        self._before: dict[int, Any] = {}
        self._once = False

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._once:
            raise KeyboardInterrupt
        self._once = True
        threading.Thread(target=self._pass, args=(number,), daemon=True).start()  # nothing may be printed in here

    def _pass(self, number: int) -> None:
        name = signal.Signals(number).name
        self._screen.say(f"passing {name} on to {self._command.command_id}; Ctrl-C again leaves it running")
        patience = Patience()
        while True:
            try:
                self._command.signal(number)
            except NoAnswerError as error:
                try:
                    patience.went_wrong(error)
                except NoAnswerError:
                    self._screen.say(f"{name} could not be passed on: {error.reason}")
                    return
            except CommandError as error:
                self._screen.say(f"{name} could not be passed on: {error.detail}")
                return
            else:
                return


def watched(command: Command, screen: Screen, *, reads: bool, quiet: bool = False) -> int:
    """The exit code of a command that was followed to its end. `reads`: our stdin is the command's."""
    printing = Printing(command.api, command.path, Patience(Complaints(screen.say)))
    session, name = command.session.session_id, command.command_id
    later = f"`fumehood session logs {session} {name} -f` shows it, `fumehood session kill {session} {name}` ends it"
    try:
        feeding = Feeding(command, screen) if reads else nullcontext()
        with Passed(command, screen), Kept(command.session, screen.say), feeding:
            show(printing, screen, quiet=quiet)
    except KeyboardInterrupt:
        screen.say(f"not waiting for {name} any more; it runs on: {later}")
        return INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()
        screen.say(f"nobody reads the output; {name} runs on: {later}")
        return UNREAD
    except (ApiError, NoAnswerError) as error:
        raise UnknownEndError(f"{name} was started, and how it goes cannot be asked: {error.detail}") from None
    end = end_of(printing.ended or {"command_id": name, "status": "unknown"})
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
