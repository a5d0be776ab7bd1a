"""Every run's line written anew from its journal: for a bucket of lines that was lost or damaged.

Archived runs have no journal: their lines are all that knows of them, and come back with a backup only.
"""

from __future__ import annotations

import asyncio

import structlog

from fumehood.broker.ports import Broker
from fumehood.control import loading, summaries

PAGE = 512
"""Records read at once."""
AT_ONCE = 16
"""Runs at the same time: enough to keep the broker busy, few enough to leave others their turn."""
_log = structlog.get_logger()


async def rewrite(broker: Broker) -> int:
    """All runs, once each; how many lines could not be written. What happens to a run meanwhile is written by whoever
    decides it, and an older line never replaces a newer one."""
    failed = 0
    for partition in range(broker.partitions):
        failed += await _partition(broker, partition)
    return failed


async def _partition(broker: Broker, partition: int) -> int:
    seen: set[str] = set()
    room = asyncio.Semaphore(AT_ONCE)
    after = failed = 0

    async def one(run_id: str) -> bool:
        async with room:
            return await _run(broker, run_id)

    while page := await broker.journal.tail(partition, after=after, limit=PAGE):
        after = page[-1][1].seq
        new = list(dict.fromkeys(run_id for run_id, _ in page if run_id not in seen))
        seen.update(new)
        failed += (await asyncio.gather(*map(one, new))).count(False)
    return failed


async def _run(broker: Broker, run_id: str) -> bool:
    try:
        state, _ = await loading.load(broker, run_id)
        if state is not None:
            await summaries.write(broker, state)
    except Exception:  # noqa: BLE001 - one run that cannot be read must not keep all others out of every list
        _log.exception("index.run_failed", run_id=run_id)
        return False
    return state is not None
