"""Exit codes that scripts may rely on, and the errors that have one of their own.

Every command ends with 0, 1, 2, 3 or 130. Those that do something in a sandbox and wait for it (`run`, `session exec`)
end as the command did, and with one of the codes from 122 on where it did not end by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from fumehood.errors import FumehoodError

FAILED = 1
"""What was asked for did not come out: the server said no, or the run ended otherwise than well."""
USAGE = 2
"""A wrong word on the command line, or a wrong setting. Nothing was done."""
NO_ANSWER = 3
"""The server could not be asked, or said to come later: how things stand is not known."""

UNKNOWN: Final = 122
"""It may have run, and nobody knows how it ended: its node or its sandbox was lost, or nobody could be asked."""
TIMED_OUT: Final = 124
"""It took longer than its timeout, and was killed: as `timeout` has it."""
NOT_RUN: Final = 125
"""It was not run (denied, no such image, no server), as `docker run` has it. 126 and 127 are of a program that could
not be started, as shells have them."""
INTERRUPTED: Final = 130
"""Somebody pressed Ctrl-C."""
KILLED: Final = 137
"""It needed more memory than it had, or was killed with SIGKILL otherwise: words tell which. 128+N is signal N."""
UNREAD: Final = 141
"""Nobody reads what it prints any more: as after SIGPIPE."""
STOPPED: Final = 143
"""Somebody else stopped it: as after SIGTERM."""


class CommandError(FumehoodError):
    """A command that did not do what it was asked for; one line tells why."""

    code = "command"
    exit_code: ClassVar[int] = FAILED


class UsageError(CommandError):
    """What was typed cannot be meant."""

    code = "usage"
    exit_code = USAGE


class NoAnswerError(CommandError):
    """No server, or one that cannot say: the reason, and what to do about it where somebody starts out."""

    code = "no-answer"
    retryable = True
    exit_code = NO_ANSWER

    def __init__(self, reason: str, advice: str = "", *, may_be_done: bool = False) -> None:
        super().__init__(f"{reason}: {advice}" if advice else reason)
        self.reason = reason
        self.may_be_done = may_be_done


class UnknownEndError(CommandError):
    """It was created, or may have been, and it could not be found out how it ended."""

    code = "unknown-end"
    exit_code = UNKNOWN


@contextmanager
def unknown_if_it_may_run(look: str) -> Iterator[None]:
    """While something is started: an error after which it may run all the same becomes `UnknownEndError`. `look` is the
    command that shows whether it does."""
    try:
        yield
    except CommandError as error:
        if not error.may_be_done:
            raise
        raise UnknownEndError(f"{error.detail}; `{look}` shows whether it runs") from None
