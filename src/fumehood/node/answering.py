"""Giving a finished task's answer: the kept output as a blob, the rest of the live log, and the step's end."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from fumehood.broker.handout import Handouts
from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker, LogName
from fumehood.errors import BrokerError, BrokerFullError, LeaseLostError
from fumehood.node import report
from fumehood.node.hold import Hold
from fumehood.node.ledger import JobRecord
from fumehood.node.log_writer import LogWriter
from fumehood.node.task_output import TaskOutput
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire.logs import LogEnd, LogStart
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import Cut, RunEnd, SandboxReport, SandboxTask

RETRY_SECONDS = 1.0


class Answering:
    def __init__(self, broker: Broker, handouts: Handouts, folder: Path) -> None:
        self._broker = broker
        self._handouts = handouts
        self._folder = folder

    async def give(self, record: JobRecord, hold: Hold, writer: LogWriter | None = None) -> bool:
        """Until it was taken, however long that takes; False: it is not wanted any more."""
        payload = TaskPayload.model_validate_json(record.request_json or "")
        said = SandboxReport.model_validate_json(record.response_json or "")
        output = self._output(record)
        try:
            if output is not None:
                said = await self._with_logs(said, output)
                with contextlib.suppress(OSError):  # a disk that fails: what was told is all there is
                    await self._finish_log(payload, said, output, writer, wanted=not hold.lost.done())
            return await self._until_taken(payload, said, hold)
        finally:
            if output is not None:
                output.let_go()

    def _output(self, record: JobRecord) -> TaskOutput | None:
        folder = self._folder / (record.sandbox_id or "-")
        try:
            return TaskOutput(folder) if folder.is_dir() else None
        except OSError:
            return None

    async def _finish_log(
        self,
        payload: TaskPayload,
        said: SandboxReport,
        output: TaskOutput,
        writer: LogWriter | None,
        *,
        wanted: bool,
    ) -> None:
        """What never ran has no log. Where the report will not be taken, the receipt is in this."""
        if said.never_ran or said.started_at is None:
            return
        start = LogStart(started_at=said.started_at, node=said.node, container=said.container)
        end = LogEnd(
            reason=said.reason,
            ended_at=said.finished_at,
            stdout=output.total(STDOUT),
            stderr=output.total(STDERR),
            truncated=said.truncated,
            logs=said.logs,
            receipt=None if wanted else said.receipt,
        )
        await (writer or self.writer(payload, output)).finish(start, end)

    def writer(self, payload: TaskPayload, output: TaskOutput) -> LogWriter:
        return LogWriter(self._broker.logs, LogName(payload.run_id, payload.step_id, payload.attempt), output)

    async def _until_taken(self, payload: TaskPayload, said: SandboxReport, hold: Hold) -> bool:
        while not hold.over.done():
            try:
                await self._say(payload, said, hold)
            except LeaseLostError:
                return False
            except BrokerError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True
        return False

    async def _with_logs(self, said: SandboxReport, output: TaskOutput) -> SandboxReport:
        """The ends of both streams are kept under the hash that the report names; of nothing, nothing. An answer does
        not wait for room, nor for a disk: then it says that there is more than it has."""
        if said.logs is not None or not (output.total(STDOUT) or output.total(STDERR)):
            return said
        while True:
            try:
                kept = KeptLogs(output.kept(STDOUT), output.kept(STDERR))
                ref = await self._broker.blobs(NODES_TENANT).put(kept.encode())
            except (OSError, BrokerFullError):
                return said.model_copy(update={"truncated": Cut(stdout=True, stderr=True)})
            except BrokerError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return said.model_copy(update={"logs": ref})

    async def _say(self, payload: TaskPayload, said: SandboxReport, hold: Hold) -> None:
        wanted = SandboxTask.model_validate(payload.sandbox)
        if report.is_known_end(said) and (said.status is RunEnd.SUCCEEDED or not wanted.must_succeed):
            await self._handouts.complete(hold.lease, report.output_of(said))
        else:
            await self._handouts.fail(hold.lease, report.failure(said))
