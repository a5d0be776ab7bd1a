"""What a run printed: from the blob that its node's report names once it has ended, from the stream before.

The blob is the truth about what is kept, but there is none of a run that was cut short (its node was lost, or nobody
took its report). Then what the stream still has of it is shown, and after that the first bytes that a report bears
itself. Where nobody heard the end of a stream, nothing of it is called whole: `unheard`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker, LogEntry, LogName, LogPlace
from fumehood.control.callers import Caller
from fumehood.control.log_telling import Assembly
from fumehood.control.runs import Queued, Runs
from fumehood.engine.state import RunState, StepState
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
)
from fumehood.sandbox.head_tail import Kept, last_lines
from fumehood.sandbox.kept_logs import LARGEST, KeptLogs
from fumehood.wire.sandbox import RUN_STEP, Cut, RunReason, SandboxReport

MOST_LINES = 10_000
PAGE_RECORDS = 256
_UNCLEAR = (RunReason.NODE_LOST, RunReason.INTERNAL)
"""Reasons of reports by nodes that did not see the end."""


@dataclass(frozen=True, slots=True)
class Shown:
    """For people."""

    stdout: str = ""
    stderr: str = ""
    truncated: Cut = field(default_factory=Cut)
    """Whether anything of a stream is missing here."""


def shown(kept: KeptLogs, *, tail_lines: int | None = None, goes_on: bool = False, missing: Cut | None = None) -> Shown:
    """`missing`: what is known not to be there."""
    out, out_cut = _text(kept.stdout, tail_lines, goes_on)
    err, err_cut = _text(kept.stderr, tail_lines, goes_on)
    return Shown(out, err, _either(Cut(stdout=out_cut, stderr=err_cut), missing or Cut()))


def _either(one: Cut, other: Cut) -> Cut:
    return Cut(stdout=one.stdout or other.stdout, stderr=one.stderr or other.stderr)


def unheard(report: SandboxReport | None, heard: LogPlace, *, ran: bool) -> Cut:
    """Of which streams of a step that has ended there may have been more than what was heard. Without a report that is
    any step that `ran`."""
    if report is None:
        return Cut(stdout=ran, stderr=ran)
    return Cut(
        stdout=_goes_further(report, "stdout", heard.stdout), stderr=_goes_further(report, "stderr", heard.stderr)
    )


def _goes_further(report: SandboxReport, name: str, heard: int) -> bool:
    if report.never_ran:
        return False
    stream = report.streams.get(name)
    if stream is None:
        return report.reason in _UNCLEAR
    return stream.total_bytes is None or stream.total_bytes > heard


def _place(kept: KeptLogs) -> LogPlace:
    return LogPlace(kept.stdout.total, kept.stderr.total)


def _text(kept: Kept, tail_lines: int | None, goes_on: bool) -> tuple[str, bool]:
    whole = kept.text(goes_on=goes_on)
    text = whole if tail_lines is None else last_lines(whole, tail_lines)
    return text, kept.left_out > 0 or len(text) < len(whole)


def _check_sandbox(run: RunState | Queued, step_id: str) -> None:
    """Raise `NotFoundError` unless this step of the run is a sandbox. An item of a map never is. Of a queued run the
    definition may not be known yet."""
    defined: dict[str, Any]
    if isinstance(run, Queued):
        defined = {step["id"]: step.get("sandbox") for step in run.definition.get("steps", ())}
    else:
        defined = {step.id: step.sandbox for step in run.definition.steps}
    if defined and step_id not in defined:
        raise NotFoundError("this run has no such step")
    if defined and defined[step_id] is None:
        raise NotFoundError("this step runs in no sandbox: only sandboxes have output and receipts")


class RunLogReader:
    def __init__(self, broker: Broker, runs: Runs) -> None:
        self._broker = broker
        self._runs = runs

    async def sandbox_run(self, run_id: str, step_id: str, caller: Caller) -> RunState | None:
        """The state of a run in which this step is a sandbox, or None if the run is still queued. `NotFoundError` if
        the run belongs to another tenant or the step is not a sandbox."""
        run = await self._runs.get(run_id, caller)
        _check_sandbox(run, step_id)
        return None if isinstance(run, Queued) else run

    async def kept(
        self, run_id: str, state: RunState | None, *, step_id: str = RUN_STEP, tail_lines: int | None = None
    ) -> Shown:
        """What a step printed in its newest attempt, at most a megabyte of each stream. `state` is None for a run that
        nobody has looked at; that it is the caller's to see was checked."""
        if tail_lines is not None and not 1 <= tail_lines <= MOST_LINES:
            raise InvalidRequestError(f"tail_lines: must be between 1 and {MOST_LINES}")
        step = state.steps.get(step_id) if state is not None else None
        has_ended = step is not None and state is not None and (step.status.ended or state.status.ended)
        report = await self.report(step)
        found = await self.stored(report)
        if found is not None:
            return shown(found, tail_lines=tail_lines, missing=unheard(report, _place(found), ran=True))
        name = await self._newest(run_id, step_id, step)
        streamed = await self._assembled(name) if name is not None else None
        if streamed is None:
            ran, first = has_ended and step is not None and step.worker_id is not None, _of_report(report)
            return shown(first, tail_lines=tail_lines, missing=unheard(report, _place(first), ran=ran))
        kept = (await self._blob(streamed.blob) if streamed.blob is not None else None) or streamed.kept
        missing = _either(streamed.truncated, unheard(report, _place(kept), ran=has_ended and not streamed.ended))
        return shown(kept, tail_lines=tail_lines, goes_on=not streamed.ended, missing=missing)

    async def report(self, step: StepState | None) -> SandboxReport | None:
        """The report of the node that ran a step to its end. A step that was completed by hand has none."""
        if step is None or not step.status.ended or step.override is not None:
            return None
        said = step.failure.details if step.failure is not None else await self._runs.shown(step.output)
        return SandboxReport.read(said)

    async def stored(self, report: SandboxReport | None) -> KeptLogs | None:
        """What is kept. None where there is none, or it is there no more."""
        return None if report is None or report.logs is None else await self._blob(report.logs)

    async def _blob(self, ref: str) -> KeptLogs | None:
        try:
            return KeptLogs.decode(await self._broker.blobs(NODES_TENANT).get(ref, limit=LARGEST))
        except (BlobNotFoundError, BlobCorruptError, PayloadTooLargeError, InvalidRequestError):
            return None

    async def _newest(self, run_id: str, step_id: str, step: StepState | None) -> LogName | None:
        """The newest attempt that printed; of a step that has ended, only its last one counts."""
        attempt = await self._broker.logs.attempt(run_id, step_id)
        if attempt is None or (step is not None and step.status.ended and attempt < step.attempt):
            return None
        return LogName(run_id, step_id, attempt)

    async def _assembled(self, name: LogName) -> Assembly | None:
        made, page = Assembly(), await self._page(name, 0)
        if not page:
            return None
        while page:
            for entry in page:
                made.take(entry.record)
            page = await self._page(name, page[-1].seq)
        return made

    async def _page(self, name: LogName, after: int) -> list[LogEntry]:
        return await self._broker.logs.read(name, after=after, limit=PAGE_RECORDS)


def _of_report(report: SandboxReport | None) -> KeptLogs:
    """The first bytes, where nothing else is left."""
    if report is None:
        return KeptLogs()
    return KeptLogs(_first(report, "stdout", report.stdout), _first(report, "stderr", report.stderr))


def _first(report: SandboxReport, name: str, text: str) -> Kept:
    head, stream = text.encode(errors="replace"), report.streams.get(name)
    known = stream.total_bytes if stream is not None else None
    return Kept(head, b"", max(len(head), known or 0))
