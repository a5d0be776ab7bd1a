"""What a run printed: from the blob that its node's report names once it has ended, from the stream before.

The blob is the truth about what is kept, but there is none of a run that was cut short (its node was lost, or nobody
took its report). Then what the stream still has of it is shown, and after that the first bytes that a report bears
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker, LogEntry, LogName
from fumehood.control.log_telling import Assembly
from fumehood.control.runs import Runs
from fumehood.engine.state import RunState, StepState
from fumehood.errors import BlobCorruptError, BlobNotFoundError, InvalidRequestError, PayloadTooLargeError
from fumehood.sandbox.head_tail import Kept, last_lines
from fumehood.sandbox.kept_logs import LARGEST, KeptLogs
from fumehood.wire.sandbox import RUN_STEP, Cut, SandboxReport

MOST_LINES = 10_000
PAGE_RECORDS = 256


@dataclass(frozen=True, slots=True)
class Shown:
    """For people."""

    stdout: str = ""
    stderr: str = ""
    truncated: Cut = field(default_factory=Cut)
    """Whether anything of a stream is missing here."""


def shown(kept: KeptLogs, *, tail_lines: int | None = None, goes_on: bool = False) -> Shown:
    out, out_cut = _text(kept.stdout, tail_lines, goes_on)
    err, err_cut = _text(kept.stderr, tail_lines, goes_on)
    return Shown(out, err, Cut(stdout=out_cut, stderr=err_cut))


def _text(kept: Kept, tail_lines: int | None, goes_on: bool) -> tuple[str, bool]:
    whole = kept.text(goes_on=goes_on)
    text = whole if tail_lines is None else last_lines(whole, tail_lines)
    return text, kept.left_out > 0 or len(text) < len(whole)


class RunLogReader:
    def __init__(self, broker: Broker, runs: Runs) -> None:
        self._broker = broker
        self._runs = runs

    async def kept(
        self, run_id: str, state: RunState | None, *, step_id: str = RUN_STEP, tail_lines: int | None = None
    ) -> Shown:
        """What a step printed in its newest attempt, at most a megabyte of each stream. `state` is None for a run that
        nobody has looked at; that it is the caller's to see was checked."""
        if tail_lines is not None and not 1 <= tail_lines <= MOST_LINES:
            raise InvalidRequestError(f"tail_lines: must be between 1 and {MOST_LINES}")
        step = state.steps.get(step_id) if state is not None else None
        report = await self.report(step)
        found = await self.stored(report)
        if found is not None:
            return shown(found, tail_lines=tail_lines)
        name = await self._newest(run_id, step_id, step)
        streamed = await self._assembled(name) if name is not None else None
        if streamed is None:
            return shown(_of_report(report), tail_lines=tail_lines)
        kept = await self._blob(streamed.blob) if streamed.blob is not None else None
        return shown(kept or streamed.kept, tail_lines=tail_lines, goes_on=not streamed.ended)

    async def report(self, step: StepState | None) -> SandboxReport | None:
        """What the node said that ran a step to its end."""
        if step is None or not step.status.ended:
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
