"""A decider over the in-memory broker, with workers that a test plays itself."""

from __future__ import annotations

import json
from typing import Any

from fumehood.broker.clock import ManualClock
from fumehood.broker.handout import Handouts
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.control import intake, loading
from fumehood.control.decider import Decider
from fumehood.engine import definition
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState
from fumehood.wire.protocol import EventType, StepEvent

RUN = "run-1"


class DeciderWorld:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.broker = MemoryBroker(self.server)
        self.decider = self.another(**options)
        self.handouts = Handouts(self.broker, now_ms=self.now_ms)

    def another(self, **options: Any) -> Decider:
        return Decider(MemoryBroker(self.server), now_ms=self.now_ms, **options)

    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    async def start(self, text: str, given: Any = None, *, run_id: str = RUN, **meta: Any) -> None:
        read = definition.parse(text)
        body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given, "meta": meta}
        await self.broker.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))
        await self.settle()

    async def settle(self) -> None:
        """Until nothing waits for the decider."""
        while await self.decider.turn(0, timeout=0.0):
            pass

    async def say(self, kind: EventType, step: str, payload: Any = None, *, run_id: str = RUN, **fields: Any) -> None:
        event = StepEvent(type=kind, run_id=run_id, step_id=step, payload=payload, **fields)
        await self.publish(event.encode(), run_id=run_id)

    async def publish(self, data: bytes, *, run_id: str = RUN) -> None:
        await self.broker.histories.publish(run_id, f"event-{self.server.clock.now()}-{hash(data)}", data)
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now() + seconds)
        await self.settle()

    async def state(self, run_id: str = RUN) -> RunState:
        state, _ = await loading.load(self.broker, run_id)
        assert state is not None
        return state

    async def tasks(self, *kinds: str) -> list[dict[str, Any]]:
        """What the queue has now, taken off it."""
        found = await self.broker.tasks.pull(kinds or ("t",), max_tasks=5000, timeout=0.0)
        for task in found:
            await self.broker.tasks.ack(task.token)
        return [json.loads(task.data) for task in found]
