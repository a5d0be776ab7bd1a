"""Commands as they are shown: what their workers said goes through as it was written."""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

from fumehood.control.console.record import Record
from fumehood.wire.command_api import CommandError, CommandStatus
from fumehood.wire.console.codes import RETRYABLE, Reason
from fumehood.wire.times import rfc3339

_NOT_JSON = CommandError(
    code=Reason.EXECUTION_FAILED.value, message="the worker answered with something that is not JSON", retryable=False
)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def command_json(record: Record) -> str:
    """What `CommandView` says, in JSON. The result is put into it as it is: taken apart and written again, a number
    could be another one, and a large result would cost what nobody needs."""
    error = error_of(record)
    said = {
        "command_id": record.command_id,
        "status": (record.status if error is None or record.reason is not None else CommandStatus.FAILED).value,
        "capability": record.capability,
        "created_at": rfc3339(record.created_ms),
    }
    if record.ended_ms is not None:
        said["ended_at"] = rfc3339(record.ended_ms)
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    if error is not None:
        return f'{text[:-1]},"error":{error.model_dump_json()}}}'
    return f'{text[:-1]},"result":{record.result_json}}}' if record.result_json is not None else text


def error_of(record: Record) -> CommandError | None:
    """Why it failed, if it did. What a worker said is looked at before it becomes part of an answer of ours."""
    if record.reason is not None:
        return CommandError(code=record.reason, message=record.message, retryable=record.reason in RETRYABLE)
    if record.result_json is not None and not _is_json(record.result_json):
        return _NOT_JSON
    return None


def _is_json(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False, cache_strings=False)
    except ValueError:
        return False
    return True


def one_line(text: str) -> bytes:
    """The same JSON without line breaks, in ASCII: many a client takes more for a line's end than the two characters
    that are. Outside of strings a line break is a blank, and inside there is none."""
    return _NOT_ASCII.sub(_escaped, text.replace("\n", " ").replace("\r", " ")).encode("ascii")


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
