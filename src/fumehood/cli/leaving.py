"""How somebody who watches goes: with Ctrl-C, by reading no more of what is printed, or because the server is away.
What he watched is the server's, and goes on without him."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

from fumehood.cli.exits import INTERRUPTED, UNREAD, CommandError, NoAnswerError, UnknownEndError
from fumehood.cli.output import Screen
from fumehood.cli.stream import Patience

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LEAVING: Final = (KeyboardInterrupt, BrokenPipeError, CommandError)
Leaving = KeyboardInterrupt | BrokenPipeError | CommandError


class Interrupts:
    """The first Ctrl-C (or SIGTERM) is passed on beside, and lets whoever reads go on reading; the second one is a
    KeyboardInterrupt. What was read is so never torn in the middle."""

    def __init__(self, take: Callable[[int], None]) -> None:
        self._take = take
        self._before: dict[int, Any] = {}
        self.asked = False

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        threading.Thread(target=self._take, args=(number,), daemon=True).start()  # nothing may be printed in here


def insist(ask: Callable[[], object], screen: Screen, in_vain: str) -> None:
    """Ask until there is an answer, or say that it was in vain, and why."""
    patience = Patience()
    while True:
        try:
            ask()
        except NoAnswerError as error:
            try:
                patience.went_wrong(error)
            except NoAnswerError:
                screen.say(f"{in_vain}: {error.reason}")
                return
        except CommandError as error:
            screen.say(f"{in_vain}: {error.detail}")
            return
        else:
            return


def left(error: Leaving, name: str, screen: Screen, *, interrupted: str, unread: str) -> int:
    """The exit code of whoever goes before the end. He is told what becomes of it, and how it is seen or ended."""
    if isinstance(error, KeyboardInterrupt):
        screen.say(f"not waiting for {name} any more; {interrupted}")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        give_up_stdout()
        screen.say(f"nobody reads the output; {unread}")
        return UNREAD
    raise UnknownEndError(f"{name} was started, but its state could not be read: {error.detail}") from None


def give_up_stdout() -> None:
    """Else the interpreter complains about it when it ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
