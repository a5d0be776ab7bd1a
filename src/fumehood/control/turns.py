"""Whose turn it is: work that one server is enough for is done by one of them, whichever is first."""

from __future__ import annotations

import json

from fumehood.broker.ports import Broker, Bucket
from fumehood.errors import KeyConflictError

SLACK = 0.9
"""Part of the interval after which the next turn may begin: those who wait for it do so with clocks of their own."""


async def is_our_turn(broker: Broker, name: str, *, now_ms: int, every: float) -> bool:
    """Once in `every` seconds for all servers together. A turn that lies further ahead than that was taken by a clock
    that was wrong, and counts for nothing."""
    bucket = broker.bucket(Bucket.CLUSTER)
    entry = await bucket.get(name)
    try:
        if entry is None:
            await bucket.create(name, json.dumps(now_ms).encode())
        elif abs(now_ms - int(json.loads(entry.value))) < every * 1000 * SLACK:
            return False
        else:
            await bucket.update(name, json.dumps(now_ms).encode(), revision=entry.revision)
    except KeyConflictError:
        return False
    return True
