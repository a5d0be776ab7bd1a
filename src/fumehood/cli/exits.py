"""Exit codes that scripts may rely on, and the errors that have one of their own."""

from __future__ import annotations

from typing import ClassVar

from fumehood.errors import FumehoodError

FAILED = 1
"""What was asked for did not come out: the server said no, or the run ended otherwise than well."""
USAGE = 2
"""A wrong word on the command line, or a wrong setting. Nothing was done."""
NO_ANSWER = 3
"""The server could not be asked, or said to come later: how things stand is not known."""


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

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}: {advice}" if advice else reason)
        self.reason = reason
