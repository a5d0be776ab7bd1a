"""A worker of the bare contract, the same for both sides: pull, say `step.completed`, ack.

It also keeps the time: from a worker's publishing of what it did until it holds the run's next task is one hop.
"""

from __future__ import annotations

import asyncio
import json
import time

from nats.aio.msg import Msg

from bench.engine_wire import LostError, Pull, Wire
from bench.engine_work import TASK_TYPE, completed

KEPT = 100_000
"""Hops that are remembered between two looks."""


class Worker:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._busy: set[asyncio.Task[None]] = set()
        self._said: dict[str, float] = {}
        self.hops: list[float] = []
        self.handled = 0
        self.again = 0
        """Deliveries that were not the first."""

    async def start(self) -> None:
        await Pull(self._wire, "TASK_QUEUES", f"task-{TASK_TYPE}", self._receive).start()

    async def _receive(self, message: Msg) -> None:
        now = time.perf_counter()
        run_id = message.subject.rpartition(".")[2]
        said = self._said.pop(run_id, None)
        if said is not None and len(self.hops) < KEPT:
            self.hops.append(now - said)
        task = asyncio.create_task(self._do(run_id, message))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _do(self, run_id: str, message: Msg) -> None:
        payload = json.loads(message.data)
        step, attempt, iteration = payload["step_id"], payload.get("attempt", 1), payload.get("iteration", 0)
        event = completed(run_id.encode(), step.encode(), attempt, iteration)
        self.handled += 1
        self.again += message.reply.split(".")[-5] != "1"
        self._said[run_id] = time.perf_counter()
        if len(self._said) > KEPT:
            self._said.clear()
        await self._wire.persist(f"history.{run_id}", event, {"Nats-Msg-Id": f"{run_id}.{step}.step.completed"})
        try:
            await self._wire.publish(message.reply, b"+ACK")
        except LostError:
            return  # it comes again, and is answered again
