"""A command as everybody can ask about it, and what becomes of one whose worker went away. Pure."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from fumehood.control.console.presence import Entry
from fumehood.wire import receipts
from fumehood.wire.base import WireModel
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import Error, Result

ORPHAN_SECONDS = 30.0
"""A sandbox without its owner lives no longer than this."""
LOST_SECONDS = ORPHAN_SECONDS + 15.0
"""A worker that was away for so long: nothing of what it ran can be running any more."""
OVERDUE_MS = 15_000
"""Past its time, for a worker to end a command, and for clocks that differ."""
LONGEST_CODE, LONGEST_MESSAGE = 64, 4096
INLINE_BYTES = 8 * 1024
"""Of a result; what is larger lies beside the record, where the oldest makes room."""


class Record(WireModel):
    """What is stored."""

    model_config = ConfigDict(extra="ignore", strict=False, frozen=True)

    command_id: str
    tenant: str
    by: str
    capability: str
    status: CommandStatus
    created_ms: int
    timeout_ms: int
    dispatched_ms: int = 0
    """When it was given to a worker; before that, when that was tried."""
    key: str = ""
    """Under which the caller's idempotency key is kept; empty: none was given."""
    request_sha256: str = ""
    """Of a command that was given a key: the same key means the same request."""
    worker: str = ""
    epoch: str = ""
    cancelled: bool = False
    """Somebody wants it ended."""
    ended_ms: int | None = None
    result_json: str | None = None
    result_ref: str | None = None
    reason: Annotated[str | None, Field(description="Of a failure: one of the protocol's codes")] = None
    message: str = ""
    receipt: str = ""
    """What the worker signed about its end, as JSON; empty where it did not end there, or is of an older version."""


class Fate(StrEnum):
    """Of a command that was dispatched over one stream."""

    WAIT = "wait"
    LOST = Reason.WORKER_LOST.value
    REPLACED = Reason.WORKER_REPLACED.value


def fate(command_id: str, epoch: str, worker: Entry | None, away_seconds: float, *, overdue: bool) -> Fate:
    """What can be said of it, by where its worker is now.

    A worker that came back says what it brought along; what it does not name it does not have, and never will. One that
    is away may come back as long as its sandboxes may live. And it may be alive, with nobody who hears it: then it ends
    a command when the time of that is over, and before that nobody can say that nothing runs (`overdue`).
    """
    if worker is None:
        return Fate.LOST if away_seconds >= LOST_SECONDS and overdue else Fate.WAIT
    if worker.epoch == epoch or command_id in worker.holding:
        return Fate.WAIT
    return Fate.REPLACED


def is_overdue(record: Record, now_ms: int) -> bool:
    """Whether its worker must have ended it, wherever that is."""
    return now_ms > record.dispatched_ms + record.timeout_ms + OVERDUE_MS


def ended(record: Record, result: Result, now_ms: int, *, ref: str | None = None) -> Record:
    """The record with its end. What was cancelled and had ended by itself before that is what it is."""
    record = record.model_copy(update={"receipt": _receipt(result)})
    if result.WhichOneof("end") == "error":
        return failed(record, result.error.code[:LONGEST_CODE], result.error.message[:LONGEST_MESSAGE], now_ms)
    try:
        json.loads(result.payload_json)
        content = None if ref is not None else result.payload_json.decode()
    except (ValueError, RecursionError):
        return failed(record, Reason.EXECUTION_FAILED, "the worker's answer is no JSON", now_ms)
    return record.model_copy(
        update={"status": CommandStatus.SUCCEEDED, "ended_ms": now_ms, "result_json": content, "result_ref": ref}
    )


def _receipt(result: Result) -> str:
    """What has not the form of a receipt is none: whoever reads it need not be careful."""
    read = receipts.decoded(result.receipt)
    return "" if read is None else receipts.encoded(read).decode()


def failed(record: Record, reason: str, message: str, now_ms: int) -> Record:
    status = CommandStatus.FAILED
    if reason == Reason.DEADLINE_EXCEEDED:
        status = CommandStatus.CANCELLED if record.cancelled else CommandStatus.TIMED_OUT
    return record.model_copy(update={"status": status, "ended_ms": now_ms, "reason": reason, "message": message})


def error_result(command_id: str, reason: str, message: str) -> Result:
    return Result(command_id=command_id, error=Error(code=reason, message=message))


def read(data: bytes) -> Record | None:
    try:
        return Record.model_validate_json(data)
    except ValidationError:
        return None
