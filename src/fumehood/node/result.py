"""From how a command ended to what the Worker API says about it. Pure: every row of the contract is a branch here."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
from dataclasses import dataclass

from fumehood.errors import FumehoodError, SandboxLostError
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.spec import End, Outcome, Stage, StreamEnd
from fumehood.wire.worker_api import ExitReason, JobStatus, RunJobRequest, RunJobResponse, Truncated

CANNOT_START = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILLED = 137

_NOT_FOUND_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR})
_TOO_LONG_ERRORS = frozenset({errno.E2BIG, errno.ENAMETOOLONG})
_TOO_LONG = "an argument or environment value is longer than 131,071 bytes, or all together are too long"
_SHOWN = 200
_STAGE_WORDS = {
    Stage.FORK: "no process could be made",
    Stage.USER: "the user could not be set",
    Stage.DIRECTORY: "the working directory could not be entered",
    Stage.PTY: "no terminal could be made",
}


@dataclass(frozen=True, slots=True)
class Result:
    """A finished job: the response, and why it ended as it did."""

    response: RunJobResponse
    exit_reason: ExitReason | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, exit code and reason; `note` goes to stderr, and only where the program never ran."""

    status: JobStatus
    exit_code: int | None = None
    reason: ExitReason | None = None
    note: str | None = None


def verdict(outcome: Outcome, program: str = "") -> Verdict:
    """What an end means to the caller; `program` is what the caller wanted to run."""
    match outcome.end:
        case End.EXITED:
            code = outcome.exit_code or 0
            return Verdict(JobStatus.COMPLETED if code == 0 else JobStatus.FAILED, code)
        case End.SIGNALED:
            return Verdict(JobStatus.FAILED, 128 + (outcome.signal or 0), ExitReason.SIGNAL)
        case End.TIMED_OUT:
            return Verdict(JobStatus.TIMEOUT)
        case End.OOM:
            return Verdict(JobStatus.FAILED, KILLED, ExitReason.OOM)
        case End.NOT_STARTED:
            return _not_started(outcome, program)
        case End.SANDBOX_LOST:
            return Verdict(JobStatus.FAILED, KILLED, ExitReason.SANDBOX_LOST)


def _not_started(outcome: Outcome, program: str) -> Verdict:
    number = outcome.errno or 0
    if outcome.stage is Stage.EXEC:
        code = NOT_FOUND if number in _NOT_FOUND_ERRORS else NOT_EXECUTABLE
        words = _not_executed(number, program)
    else:
        code = CANNOT_START
        stage = _STAGE_WORDS[outcome.stage] if outcome.stage is not None else "it could not be started"
        words = f"{stage}: {os.strerror(number)}"
    return Verdict(JobStatus.FAILED, code, ExitReason.NOT_STARTED, f"fumehood: {words}\n")


def _not_executed(number: int, program: str) -> str:
    """Names the program: whoever sees only this line should know which of their words was wrong."""
    name = json.dumps(program if len(program) <= _SHOWN else program[:_SHOWN] + "…", ensure_ascii=False)
    if number in _NOT_FOUND_ERRORS and "/" not in program:
        return f"{name} was not found in the image's PATH"
    if number in _NOT_FOUND_ERRORS:
        return f"{name} could not be executed, it or the interpreter that it names is missing: {os.strerror(number)}"
    return f"{name} could not be executed: {_TOO_LONG if number in _TOO_LONG_ERRORS else os.strerror(number)}"


def finished(request: RunJobRequest, outcome: Outcome, capture: Capture) -> Result:
    """The answer for a command whose end is known."""
    said = verdict(outcome, request.sandbox.command[0])
    return _result(request, said, capture, outcome.started_at, outcome.ended_at, (outcome.stdout, outcome.stderr))


def lost(request: RunJobRequest, error: SandboxLostError, capture: Capture, since: dt.datetime) -> Result:
    """The answer when nobody can know how the command ended: said as such, with the output that is certain."""
    reason = ExitReason.NODE_LOST if error.engine_lost else ExitReason.SANDBOX_LOST
    return _result(request, Verdict(JobStatus.FAILED, KILLED, reason), capture, since, _now(), (None, None))


def not_started(request: RunJobRequest, error: FumehoodError, since: dt.datetime) -> Result:
    """The answer when there never was a sandbox: the image is denied or cannot be had, or the engine refused it."""
    said = Verdict(JobStatus.FAILED, CANNOT_START, ExitReason.NOT_STARTED, f"fumehood: {error.detail}\n")
    return _result(request, said, Capture(0), since, _now(), (StreamEnd(0, ""), StreamEnd(0, "")))


def _result(
    request: RunJobRequest,
    said: Verdict,
    capture: Capture,
    started_at: dt.datetime,
    ended_at: dt.datetime,
    streams: tuple[StreamEnd | None, StreamEnd | None],
) -> Result:
    out, err = (end.total_bytes if end is not None else None for end in streams)
    response = RunJobResponse(
        task_id=request.task_id,
        job_id=request.job_id,
        status=said.status,
        exit_code=said.exit_code,
        stdout=capture.text(STDOUT, out),
        stderr=said.note if said.note is not None else capture.text(STDERR, err),
        started_at=started_at,
        ended_at=max(started_at, ended_at),
        truncated=Truncated(stdout=capture.truncated(STDOUT, out), stderr=capture.truncated(STDERR, err)),
    )
    return Result(response, said.reason)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
