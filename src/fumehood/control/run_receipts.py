"""Receipts of sandboxes that the engine handed out: what the node signed that ran a step, as it was given.

A node signs what it reports. Where nobody took the report, since the run was stopped before, the last record of the
step's output has it. Where there is neither, nobody signed anything, and the reason is told.
"""

from __future__ import annotations

from typing import Any

from fumehood.broker.ports import Broker, LogKind, LogName
from fumehood.control.callers import Caller
from fumehood.control.run_logs import RunLogReader
from fumehood.control.runs import Runs
from fumehood.engine.state import RunState, StepState
from fumehood.errors import NotFoundError
from fumehood.wire import receipts
from fumehood.wire.logs import LogEnd
from fumehood.wire.sandbox import RunReason

NOT_ENDED = "it has not ended, so that there is no receipt yet"
NODE_LOST = "its node was lost: nobody knows how it ended, and nobody signed it"
BY_HAND = "somebody else said how this step ended: no node signed it"
NEVER_RAN = "no node ever had it, so that there is nothing to sign"
UNSIGNED = "its node gave no receipt: it was not heard any more, or is of a version that gives none"
_LOST = frozenset({RunReason.NODE_LOST.value, "lease_expired"})


class RunReceipts:
    def __init__(self, broker: Broker, runs: Runs) -> None:
        self._broker = broker
        self._reader = RunLogReader(broker, runs)

    async def of_step(self, run_id: str, step_id: str, caller: Caller) -> dict[str, Any]:
        """`NotFoundError` where there is none, or none yet; another tenant's run is none, too."""
        state = await self._reader.sandbox_run(run_id, step_id, caller)
        if state is None:
            raise NotFoundError(NOT_ENDED)
        return await self.of(state, step_id)

    async def of(self, state: RunState, step_id: str) -> dict[str, Any]:
        """The same, of a step that is known to be a sandbox, in a run that is the caller's to see."""
        step = state.steps.get(step_id, StepState())
        if not step.status.ended and not state.status.ended:
            raise NotFoundError(NOT_ENDED)
        if step.override is not None:
            raise NotFoundError(BY_HAND)
        found = await self._reported(step) or await self._left_behind(state.run_id, step_id, step.attempt)
        if found is None:
            raise NotFoundError(_reason(step))
        return found

    async def _reported(self, step: StepState) -> dict[str, Any] | None:
        report = await self._reader.report(step)
        return None if report is None else receipts.read(report.receipt)

    async def _left_behind(self, run_id: str, step_id: str, attempt: int) -> dict[str, Any] | None:
        if not attempt:
            return None
        last = await self._broker.logs.last(LogName(run_id, step_id, attempt))
        end = LogEnd.decode(last.record.data) if last is not None and last.record.kind is LogKind.END else None
        return None if end is None else receipts.read(end.receipt)


def _reason(step: StepState) -> str:
    if not step.attempt:
        return NEVER_RAN
    return NODE_LOST if step.failure is not None and step.failure.code in _LOST else UNSIGNED
