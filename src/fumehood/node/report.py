"""From how a command ended to what is said about it to the engine. Pure: each end is a branch here."""

from __future__ import annotations

import codecs
import datetime as dt
from collections.abc import Mapping
from typing import Any

from fumehood.errors import FumehoodError, ImageError, PolicyDeniedError, SandboxLostError
from fumehood.node import result
from fumehood.node.task_output import TaskOutput
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.head_tail import broken_start
from fumehood.sandbox.spec import End, Outcome, StreamEnd
from fumehood.wire.sandbox import POLICY_DENIED, Cut, RunEnd, RunReason, SandboxReport, StreamReport

SHOWN_BYTES = 64 * 1024
"""Of each stream, in the report itself."""
TAIL_BYTES = 4 * 1024
"""Of stderr, in the failure of a step. Written as JSON it is at most six times as long, for which details have room."""

_ENDS: Mapping[End, tuple[RunEnd, RunReason]] = {
    End.SIGNALED: (RunEnd.FAILED, RunReason.SIGNAL),
    End.TIMED_OUT: (RunEnd.TIMED_OUT, RunReason.TIMEOUT),
    End.OOM: (RunEnd.FAILED, RunReason.OOM),
    End.NOT_STARTED: (RunEnd.FAILED, RunReason.IMAGE_ERROR),
    End.SANDBOX_LOST: (RunEnd.FAILED, RunReason.INTERNAL),
}


def finished(outcome: Outcome, program: str, output: TaskOutput, known: Mapping[str, Any]) -> SandboxReport:
    """The supervisor's word. `known`: what the report says whatever the end."""
    verdict = result.verdict(outcome, program)
    status, reason = _end(outcome)
    return SandboxReport(
        status=status,
        reason=reason,
        detail=(verdict.note or "").removeprefix("fumehood: ").strip(),
        exit_code=verdict.exit_code,
        signal=outcome.signal,
        started_at=outcome.started_at,
        never_ran=outcome.end is End.NOT_STARTED,
        finished_at=max(outcome.started_at, outcome.ended_at),
        stdout=_shown(output, STDOUT),
        stderr=_shown(output, STDERR),
        stderr_tail=None if status is RunEnd.SUCCEEDED else _tail(output, STDERR),
        truncated=cut(output, outcome.stdout, outcome.stderr),
        may_be_tried_again=outcome.end is End.SANDBOX_LOST,
        streams={"stdout": _stream(outcome.stdout), "stderr": _stream(outcome.stderr)},
        **known,
    )


def _end(outcome: Outcome) -> tuple[RunEnd, RunReason]:
    if outcome.killed_by_owner and outcome.end in (End.EXITED, End.SIGNALED):
        return RunEnd.STOPPED, RunReason.STOPPED
    if outcome.end is End.EXITED:
        return (RunEnd.FAILED if outcome.exit_code else RunEnd.SUCCEEDED), RunReason.EXIT
    return _ENDS[outcome.end]


def lost(error: SandboxLostError, output: TaskOutput, known: Mapping[str, Any]) -> SandboxReport:
    """Nobody can know how it ended; the output that is certain is kept. That it is all there was, nobody says."""
    return SandboxReport(
        status=RunEnd.FAILED,
        reason=RunReason.NODE_LOST if error.engine_lost else RunReason.INTERNAL,
        detail=error.detail,
        may_be_tried_again=True,
        finished_at=dt.datetime.now(dt.UTC),
        stdout=_shown(output, STDOUT),
        stderr=_shown(output, STDERR),
        stderr_tail=_tail(output, STDERR),
        truncated=Cut(stdout=True, stderr=True),
        **known,
    )


def not_started(error: FumehoodError, known: Mapping[str, Any]) -> SandboxReport:
    """There never was a sandbox for it."""
    return SandboxReport(
        status=RunEnd.FAILED,
        reason=RunReason.IMAGE_ERROR if isinstance(error, ImageError) else RunReason.INTERNAL,
        detail=error.detail,
        never_ran=True,
        denied=error.reason if isinstance(error, PolicyDeniedError) else None,
        may_be_tried_again=error.retryable,
        finished_at=dt.datetime.now(dt.UTC),
        **known,
    )


def is_known_end(report: SandboxReport) -> bool:
    """Whether the command ran and it is known how it ended; what never ran, or was lost, is none."""
    return not report.never_ran and not _is_unclear(report)


def output_of(report: SandboxReport) -> dict[str, Any]:
    """The report as the output of a step."""
    return report.model_dump(mode="json", exclude={"stderr_tail"})


def failure(report: SandboxReport) -> dict[str, Any]:
    """The report as the failure of a step."""
    details = report.model_dump(mode="json", exclude={"stdout", "stderr"})
    return {
        "code": POLICY_DENIED if report.denied is not None else report.reason.value,
        "message": _words(report),
        "retryable": report.may_be_tried_again,
        "details": details,
    }


def _is_unclear(report: SandboxReport) -> bool:
    return report.reason in (RunReason.NODE_LOST, RunReason.INTERNAL)


def _words(report: SandboxReport) -> str:
    if report.detail:
        return report.detail
    return {
        RunReason.EXIT: f"the command ended with exit code {report.exit_code}",
        RunReason.OOM: "the command needed more memory than it may have",
        RunReason.SIGNAL: f"the command was ended by signal {report.signal}",
        RunReason.TIMEOUT: "the command took longer than its timeout",
        RunReason.STOPPED: "the command was stopped",
    }.get(report.reason, report.reason.value)


def cut(output: TaskOutput, stdout: StreamEnd | None, stderr: StreamEnd | None) -> Cut:
    """Of which streams something is missing: what is not kept, and what nobody heard the end of."""
    return Cut(stdout=_is_cut(output, STDOUT, stdout), stderr=_is_cut(output, STDERR, stderr))


def _is_cut(output: TaskOutput, stream: int, end: StreamEnd | None) -> bool:
    return end is None or end.total_bytes > output.total(stream) or output.kept(stream).left_out > 0


def _stream(end: StreamEnd | None) -> StreamReport:
    return StreamReport() if end is None else StreamReport(total_bytes=end.total_bytes, sha256=end.sha256 or None)


def _shown(output: TaskOutput, stream: int) -> str:
    """The beginning, as text; a character that the bound cuts in two is left out."""
    total = output.total(stream)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(output.read(stream, 0, SHOWN_BYTES), final=total <= SHOWN_BYTES)


def _tail(output: TaskOutput, stream: int) -> str:
    """The last lines, as text."""
    start = max(0, output.total(stream) - TAIL_BYTES)
    data = output.read(stream, start, TAIL_BYTES)
    if not start:
        return data.decode("utf-8", "replace")
    text = data[broken_start(data) :].decode("utf-8", "replace")
    _, _, rest = text.partition("\n")
    return rest if rest.strip() else text
