"""A decider of a version that knew less: it has never heard of signals that a step waits for, nor of approvals.

A process of its own, since what a version knows is known to the whole of it. First line on its input: where the broker
is. It serves until its input ends, and then says what it did: how many decisions, of which runs, and how many it left
to others.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import structlog

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.control import intake
from fumehood.control.decider import Decider
from fumehood.engine import events, fold, snapshot
from fumehood.engine.definition import Definition
from tests.integration.engine_world import shape

UNHEARD_OF = ("wait_signal", "approval")
"""Kinds of steps."""
EVENTS = ("step.listening", "signal.taken", "approval.requested", "approval.given", "approval.refused", "order.refused")
MESSAGES = ("signal", "approve")


class OlderDefinition:
    """Unknown words are errors in every version."""

    @staticmethod
    def model_validate(document: dict[str, Any]) -> Definition:
        new = any(word in step for step in document["steps"] for word in UNHEARD_OF)
        return Definition.model_validate({**document, "unheard_of": True} if new else document)


def know_less() -> None:
    for name in EVENTS:
        del events.KINDS[name]
    for name in MESSAGES:
        del intake._FROM_SERVERS[name]
    fold.Definition = OlderDefinition  # type: ignore[attr-defined, assignment]
    snapshot.FORMAT -= 1


async def serve(place: dict[str, Any]) -> None:
    partitions = place.pop("partitions")
    servers = tuple(place.pop("servers"))
    broker = await NatsBroker.open(ConnectionOptions(servers, **place), shape(partitions))
    decided: set[str] = set()
    append = broker.journal.append

    async def appended(run_id: str, *args: Any, **kwargs: Any) -> int:
        seq = await append(run_id, *args, **kwargs)
        decided.add(run_id)
        return seq

    broker.journal.append = appended  # type: ignore[method-assign]
    decider = Decider(broker, now_ms=lambda: time.time_ns() // 1_000_000)
    work = [asyncio.create_task(decider.work(number)) for number in range(partitions)]
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for one in work:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    counters = decider.counters
    told = {"decided": sorted(decided), "unknown": counters.unknown, "failed": counters.failed}
    print(json.dumps(told), flush=True)
    await broker.close()


if __name__ == "__main__":
    know_less()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(serve(json.loads(sys.stdin.readline())))
