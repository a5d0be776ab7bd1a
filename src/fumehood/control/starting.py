"""A start that may have been sent before: by an idempotency key, a schedule, or a run that calls another.

A run's id is used once, for ever. While a run has a journal, a second start of it changes nothing; but a run that was
archived has none any more, and its line among the summaries is what is left to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fumehood.broker.ports import Broker, Bucket
from fumehood.control import intake
from fumehood.engine.messages import MessageType


async def send_start(broker: Broker, run_id: str, body: Mapping[str, Any], traceparent: str | None = None) -> None:
    """For a run that is new: its id was made just now."""
    headers = {"traceparent": traceparent} if traceparent else None
    data = intake.encode(MessageType.START, dict(body))
    await broker.mailboxes.send(run_id, f"{run_id}.start", data, headers=headers)


async def ensure_started(broker: Broker, run_id: str, body: Mapping[str, Any], traceparent: str | None = None) -> None:
    """For a run that may be there already."""
    if await broker.bucket(Bucket.SUMMARIES).get(run_id) is None:
        await send_start(broker, run_id, body, traceparent)
