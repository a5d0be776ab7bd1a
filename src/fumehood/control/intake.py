"""From bytes on a subject to a message of the engine's: the border where outsiders are checked.

The inbox is written by servers and timers only (the broker's permissions see to it), the history by workers. Whatever
does not parse, or is not a worker's to say, becomes nothing; it is counted, and the message is done with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from fumehood.broker.ports import Delivery, MessageKind
from fumehood.engine.events import UnknownFormatError
from fumehood.engine.messages import WORKERS_SAY, Message, MessageType
from fumehood.wire import blobref, strict_json
from fumehood.wire.protocol import LONGEST_PAUSE_MS, EventType, StepEvent

LARGEST_DETAILS = 64 * 1024
"""Of a failure: they stay in the run's state."""
_FROM_WORKERS = {
    EventType.STARTED: MessageType.STEP_STARTED,
    EventType.COMPLETED: MessageType.STEP_COMPLETED,
    EventType.FAILED: MessageType.STEP_FAILED,
    EventType.CONTINUE: MessageType.STEP_CONTINUE,
    EventType.PAUSED: MessageType.STEP_PAUSED,
    EventType.SIGNAL: MessageType.STEP_SIGNAL,
}
_FROM_SERVERS = {kind.value: kind for kind in MessageType if kind not in WORKERS_SAY}


def read(delivery: Delivery, proves: Callable[[StepEvent], bool] = lambda _: False) -> Message | None:
    """The message, or nothing for what nobody of that side may say. `proves`: whether whoever says something about a
    sandbox was handed its task; whether it is about one is only known to the run."""
    try:
        if delivery.kind is MessageKind.HISTORY:
            return _worker(delivery, proves)
        document = json.loads(delivery.data)
        kind = document.pop("type")
        if kind not in _FROM_SERVERS:
            raise UnknownFormatError(f"a message of type {kind}")
        return Message(delivery.identity, _FROM_SERVERS[kind], document)
    except UnknownFormatError:  # only servers write there: one that knows more than this one
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError):
        return None


def _worker(delivery: Delivery, proves: Callable[[StepEvent], bool]) -> Message | None:
    event = StepEvent.model_validate_json(delivery.data)
    if event.run_id != delivery.run_id:
        return None
    kind, said = _FROM_WORKERS[event.type], _SAID.get(event.type, _output)(event)
    if "output" in said and (reason := _refusal(delivery.data, said["output"])) is not None:
        kind, said = MessageType.STEP_FAILED, {**_REFUSED, "message": reason}
    body: dict[str, Any] = {
        "step": event.step_id,
        "attempt": event.attempt,
        "iteration": event.iteration,
        "resumption": event.resumption,
        "worker_id": event.worker_id,
        "fenced": event.lease_id is not None,
        "checkpointed": event.checkpointed is True,
        "proven": proves(event),
        **said,
    }
    return Message(said.get("id") or delivery.identity, kind, body)


_REFUSED = {"code": "invalid_output", "retryable": False}
_KEPT = ("step", "attempt", "iteration", "resumption", "fenced", "proven")


def _refusal(data: bytes, output: Any) -> str | None:
    """Why an output cannot be taken. A reference may stand for the whole of it, where the SDK put it; inside it is
    nobody's to write. Looked for in what was read, since JSON spells a `$` in several ways, and only where the bytes
    give reason to."""
    if (b"$blob" in data or b"\\" in data) and blobref.ref_of(output) is None and blobref.mentions_blob(output):
        return "a $blob is not a worker's to write"
    if data.count(b"[") + data.count(b"{") > strict_json.DEEPEST and not strict_json.is_flat(output):
        return "the output is nested too deeply"
    return None


def _output(event: StepEvent) -> dict[str, Any]:
    return {"output": event.payload}


def _failure(event: StepEvent) -> dict[str, Any]:
    """A failure may be a text, or an object with a code."""
    given = event.payload if isinstance(event.payload, dict) else {"message": event.payload}
    error = given.get("error", given)
    if not isinstance(error, dict):
        error = {"message": error}
    message = error.get("message")
    return {
        "code": str(error.get("code") or "failed")[:128],
        "message": "" if message is None else str(message)[:4096],
        "retryable": error.get("retryable") if isinstance(error.get("retryable"), bool) else None,
        "details": _details(error.get("details")),
    }


def _details(given: Any) -> dict[str, Any] | None:
    """What is too large, too deep or no object is left out: a failure counts without it."""
    if not isinstance(given, dict) or not strict_json.is_flat(given) or blobref.mentions_blob(given):
        return None
    try:
        return given if len(blobref.encode(given)) <= LARGEST_DETAILS else None
    except ValueError:  # something that JSON cannot carry
        return None


def _pause(event: StepEvent) -> dict[str, Any]:
    duration = event.payload["duration_ms"]
    if type(duration) is not int or not 0 < duration <= LONGEST_PAUSE_MS:
        raise ValueError("a pause out of bounds")
    return {"duration_ms": duration}


def _signal(event: StepEvent) -> dict[str, Any]:
    name, number = event.payload["name"], event.payload.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= 128 or blobref.mentions_blob(event.payload):
        raise ValueError("not a signal")
    known = isinstance(number, str) and 0 < len(number) <= 128
    return {"name": name, "data": event.payload.get("data"), "id": f"signal.{number}" if known else None}


_SAID: dict[EventType, Callable[[StepEvent], dict[str, Any]]] = {
    EventType.FAILED: _failure,
    EventType.PAUSED: _pause,
    EventType.SIGNAL: _signal,
}


def cleaned(messages: Sequence[Message]) -> list[Message]:
    """Without what cannot be written down again (not a number, half a character): a worker's answer that holds such a
    thing is a failure, anything else is nothing."""
    return [one for message in messages if (one := _cleaned(message)) is not None]


def _cleaned(message: Message) -> Message | None:
    try:
        json.dumps(message.body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        if message.type not in (MessageType.STEP_COMPLETED, MessageType.STEP_CONTINUE):
            return None
        kept = {name: message.body.get(name) for name in _KEPT}
        refused = {**_REFUSED, "message": "the output holds something that JSON cannot carry"}
        return Message(message.id, MessageType.STEP_FAILED, {**kept, **refused})
    return message


def encode(kind: MessageType, body: dict[str, Any]) -> bytes:
    """What servers and timers put into an inbox."""
    return json.dumps({"type": kind.value, **body}, separators=(",", ":"), ensure_ascii=False).encode()
