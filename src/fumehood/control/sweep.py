"""The sweep: looks at runs that have been quiet for long and puts back what should be out and is not.

The decider heals its own crashes, because nothing is acked before its effects are done. The sweep is for what nobody
can heal that way: a worker that acked a task and died before it answered, a queue that was emptied by hand, storage
that was restored from a backup. It is slow on purpose: a few runs at a time, each once in a while, by one server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog

from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import loading
from fumehood.control.effects import Performer
from fumehood.control.turns import is_our_turn
from fumehood.engine.state import RunStatus

EVERY_SECONDS = 600.0
QUIET_SECONDS = 300.0
"""A run that moved within this time is its decider's: what it wants may be on its way."""
AT_ONCE = 8
TURN = "sweep"
"""The key by which servers agree whose turn it is."""
_log = structlog.get_logger()


class Sweeper:
    def __init__(
        self,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        every: float = EVERY_SECONDS,
        quiet: float = QUIET_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._every = every
        self._quiet = quiet
        self._sleep = sleep
        self._performer = Performer(broker, Handouts(broker, now_ms=now_ms), now_ms=now_ms)
        self.replaced = 0
        self.failed = 0

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if await is_our_turn(self._broker, TURN, now_ms=self._now_ms(), every=self._every):
                    await self.sweep()
            except Exception:  # noqa: BLE001 - nobody else looks after what only the sweep can heal: it goes on
                self.failed += 1
                _log.exception("sweep.failed")
            await self._sleep(self._every)

    async def sweep(self) -> int:
        """All runs that are under way, once; how much was put back."""
        before = self.replaced
        lanes = asyncio.Semaphore(AT_ONCE)

        async def look(run_id: str) -> None:
            async with lanes:
                await self.look(run_id)

        async with asyncio.TaskGroup() as group:
            async for run_id in self._under_way():
                await lanes.acquire()
                lanes.release()
                group.create_task(look(run_id))
        self.replaced += await self._performer.gates.sweep()
        return self.replaced - before

    async def _under_way(self) -> AsyncIterator[str]:
        for entry in await self._broker.bucket(Bucket.SUMMARIES).entries():
            try:
                running = json.loads(entry.value)["status"] == RunStatus.RUNNING.value
            except (ValueError, KeyError, TypeError):
                running = False
            if running:
                yield entry.key

    async def look(self, run_id: str) -> None:
        """One run. Whatever fails is left to the next time."""
        try:
            state, _ = await loading.load(self._broker, run_id)
            if state is None or self._now_ms() - state.updated_at < self._quiet * 1000:
                return
            if state.status.ended:  # whoever ended it did not come to say so
                await self._performer.restore(run_id, state)
                return
            put_back = await self._performer.replace_missing(run_id, state, self._now_ms())
        except Exception:  # noqa: BLE001 - one run that cannot be read must not keep the sweep from all others
            self.failed += 1
            _log.exception("sweep.run_failed", run_id=run_id)
            return
        if put_back:
            self.replaced += put_back
            _log.warning("sweep.put_back", run_id=run_id, count=put_back)
