"""How a command's end and output are told by the contract: pure functions."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass

from fumehood.errors import CommandFailedError
from fumehood.sandbox.sessions.values import Captured, ProcessFacts
from fumehood.sandbox.spec import End, Stage
from fumehood.wire.console.codes import Reason

SIGNAL_BASE = 128
"""Engines and shells tell a signal as an exit code: 128 and its number."""
SIGKILL = 9
OUTPUT_GONE = "it has ended, but its output is gone"


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended, in the words of both results."""

    stdout: str
    stderr: str
    exit_code: int
    stdout_truncated: bool
    stderr_truncated: bool


def ended_of(process: ProcessFacts, captured: Captured, limit: int) -> Ended:
    """`CommandFailedError` where a result would claim what nobody knows."""
    exit_code = exit_code_of(process)
    _check_whole(captured, limit)
    stdout, stdout_truncated = cut(captured.stdout, captured.stdout_total, limit)
    stderr, stderr_truncated = cut(captured.stderr, captured.stderr_total, limit)
    return Ended(stdout, stderr, exit_code, stdout_truncated, stderr_truncated)


def _check_whole(captured: Captured, limit: int) -> None:
    """Where the beginning of a stream is lost, no result tells of it: it would look like all that there was."""
    streams = ((captured.stdout, captured.stdout_total), (captured.stderr, captured.stderr_total))
    if any(len(kept) < min(total, limit) for kept, total in streams):
        raise CommandFailedError(Reason.EXECUTION_FAILED, OUTPUT_GONE)


def cut(kept: bytes, total: int, limit: int) -> tuple[str, bool]:
    """The first `limit` bytes of a stream as text, and whether there were more.

    What is no UTF-8 becomes U+FFFD, as JSON needs it. Only where the cut goes through a character, its first bytes are
    left out: the program never wrote half of it.
    """
    truncated = total > limit
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept[:limit], final=not truncated)
    return text, truncated


def exit_code_of(process: ProcessFacts) -> int:
    """A number, as an engine tells it. Where there is none, the command failed: what is not known is never 0."""
    outcome = process.outcome
    assert outcome is not None
    if outcome.end is End.EXITED and outcome.exit_code is not None:
        return outcome.exit_code
    if outcome.end is End.SIGNALED and outcome.signal is not None:
        return SIGNAL_BASE + outcome.signal
    if outcome.end is End.OOM:
        return SIGNAL_BASE + SIGKILL
    if outcome.end is End.TIMED_OUT:
        raise CommandFailedError(Reason.DEADLINE_EXCEEDED, "it did not end in time, and was ended")
    if outcome.end is End.NOT_STARTED:
        raise CommandFailedError(Reason.EXECUTION_FAILED, f"it could not be started: {detail_of(process)}")
    raise CommandFailedError(
        Reason.EXECUTION_FAILED,
        f"its sandbox ended, and nothing is known of how the command did: {detail_of(process) or 'no reason is known'}",
    )


def detail_of(process: ProcessFacts) -> str:
    """Why it did not start, or was lost; for people."""
    outcome = process.outcome
    if process.detail or outcome is None or outcome.end is not End.NOT_STARTED:
        return process.detail
    reason = os.strerror(outcome.errno) if outcome.errno is not None else "no reason is known"
    program = process.argv[0] if process.argv else "the program"
    what = "its working directory" if outcome.stage is Stage.DIRECTORY else program
    return f"{what}: {reason} ({outcome.stage or 'start'})"
