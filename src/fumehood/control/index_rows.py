"""What the index knows of a run and of a line of the audit log, read from what the broker holds.

Lines are written by servers of any version, and a bucket can be damaged: whatever is missing or of another kind is
absent here, and only a line without a status or a beginning is no line at all.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.broker.ports import Entry
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.summaries import ARCHIVED, LIVE, RUNNER, decode
from fumehood.engine.state import RunStatus

_STATUSES = frozenset(status.value for status in RunStatus)
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list."""

    run_id: str
    tenant: str
    workflow: str
    definition: str
    status: str
    started_at: int
    """Milliseconds, as everywhere inside."""
    ended_at: int | None = None
    by: str = ""
    error_code: str | None = None
    error_message: str | None = None
    failed_step: str | None = None
    tries: int = 0
    parent_run: str | None = None
    parent_step: str | None = None
    schedule: str | None = None
    continued_as: str | None = None
    archived: bool = False
    live: bool = False
    """Archived, but its journal may hold something."""
    labels: Mapping[str, str] = field(default_factory=dict)
    outcome: str | None = None
    """Of a run that the Runner API created: how it ended, in its words, or that it has not. The rest is its, too."""
    reason: str | None = None
    exit_code: int | None = None
    image_ref: str | None = None
    image_digest: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Who did what, when."""

    number: int
    line_id: str
    at: int
    tenant: str
    by: str
    action: str
    target: str
    request_id: str
    detail: Any = None


def run_row(run_id: str, data: bytes) -> RunRow | None:
    """A run's line; `None` where it cannot be shown."""
    line = decode(data)
    status, started_at = _text(line.get("status")), _ms(line.get("started_at"))
    if status is None or status not in _STATUSES or started_at is None:
        return None
    error, parent, runner = _object(line.get("error")), _object(line.get("parent")), _object(line.get(RUNNER))
    return RunRow(
        run_id=run_id,
        tenant=_text(line.get("tenant")) or DEFAULT_TENANT,
        workflow=_text(line.get("workflow")) or "",
        definition=_text(line.get("definition")) or "",
        status=status,
        started_at=started_at,
        ended_at=_ms(line.get("ended_at")),
        by=_text(line.get("by")) or "",
        error_code=_text(error.get("code")),
        error_message=_text(error.get("message")),
        failed_step=_text(line.get("failed_step")),
        tries=_number(line.get("tries")),
        parent_run=_text(parent.get("run_id")),
        parent_step=_text(parent.get("step")),
        schedule=_text(line.get("schedule")),
        continued_as=_text(line.get("continued_as")),
        archived=isinstance(line.get(ARCHIVED), dict),
        live=line.get(LIVE) is True,
        labels=labels(line.get("labels")),
        outcome=_text(runner.get("outcome")),
        reason=_text(runner.get("reason")),
        exit_code=_small(runner.get("exit_code")),
        image_ref=_text(runner.get("image_ref")),
        image_digest=_text(runner.get("image_digest")),
    )


def audit_row(entry: Entry) -> AuditRow | None:
    """A line of the audit log; `None` where it cannot be shown."""
    line = decode(entry.data)
    at = line.get("at")
    if type(at) is not int or not 0 <= at < _LARGEST:
        return None
    return AuditRow(
        number=entry.seq,
        line_id=entry.record_id,
        at=at,
        tenant=_text(line.get("tenant")) or DEFAULT_TENANT,
        by=_text(line.get("by")) or "",
        action=_text(line.get("action")) or "",
        target=_text(line.get("target")) or "",
        request_id=_text(line.get("request_id")) or "",
        detail=line.get("detail"),
    )


def labels(value: Any) -> dict[str, str]:
    """Those pairs that are pairs of texts."""
    pairs = ((_text(key), _text(item)) for key, item in _object(value).items())
    return {key: item for key, item in pairs if key is not None and item is not None}


def encoded(value: Any) -> str:
    """As SQLite keeps it: ASCII, whatever is in it."""
    return json.dumps(value, separators=(",", ":"))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    """A text that can be written as UTF-8: JSON may hold half a character."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _LARGEST else 0


def _small(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < _LARGEST else None


def _ms(value: Any) -> int | None:
    """Milliseconds of an RFC 3339 text."""
    try:
        at = dt.datetime.fromisoformat(value)
        return int(at.replace(microsecond=0).timestamp()) * 1000 + at.microsecond // 1000
    except (TypeError, ValueError, OverflowError):
        return None
