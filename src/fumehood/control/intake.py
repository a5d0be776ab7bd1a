"""From bytes on a subject to a message of the engine's: the border where outsiders are checked.

The inbox is written by servers and timers only (the broker's permissions see to it), the history by workers. Whatever
does not parse, or is not a worker's to say, becomes nothing; it is counted, and the message is done with.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from fumehood.broker.ports import Delivery, MessageKind
from fumehood.engine.messages import Message, MessageType
from fumehood.wire.protocol import EventType, StepEvent

_FROM_WORKERS = {
    EventType.STARTED: MessageType.STEP_STARTED,
    EventType.COMPLETED: MessageType.STEP_COMPLETED,
    EventType.FAILED: MessageType.STEP_FAILED,
    EventType.CONTINUE: MessageType.STEP_CONTINUE,
}
_FROM_SERVERS = {
    kind.value: kind for kind in (MessageType.START, MessageType.CANCEL, MessageType.TIMER, MessageType.LEASE_EXPIRED)
}


def read(delivery: Delivery) -> Message | None:
    """The message, or nothing for what nobody of that side may say."""
    try:
        if delivery.kind is MessageKind.HISTORY:
            return _worker(delivery)
        document = json.loads(delivery.data)
        kind = _FROM_SERVERS[document.pop("type")]
        return Message(delivery.identity, kind, document)
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError):
        return None


def _worker(delivery: Delivery) -> Message | None:
    event = StepEvent.model_validate_json(delivery.data)
    if event.run_id != delivery.run_id:
        return None
    body: dict[str, Any] = {
        "step": event.step_id,
        "attempt": event.attempt,
        "iteration": event.iteration,
        "worker_id": event.worker_id,
        **_payload(event),
    }
    return Message(delivery.identity, _FROM_WORKERS[event.type], body)


def _payload(event: StepEvent) -> dict[str, Any]:
    """A failure may be a text, or an object with a code; everything else is the output."""
    if event.type is not EventType.FAILED:
        return {"output": event.payload}
    given = event.payload if isinstance(event.payload, dict) else {"message": event.payload}
    error = given.get("error", given)
    if not isinstance(error, dict):
        error = {"message": error}
    message = error.get("message")
    return {
        "code": str(error.get("code") or "failed")[:128],
        "message": "" if message is None else str(message)[:4096],
        "retryable": error.get("retryable") if isinstance(error.get("retryable"), bool) else None,
    }


def encode(kind: MessageType, body: dict[str, Any]) -> bytes:
    """What servers and timers put into an inbox."""
    return json.dumps({"type": kind.value, **body}, separators=(",", ":"), ensure_ascii=False).encode()
