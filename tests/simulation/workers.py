"""Workers with moods: they answer, fail, pause, leave, say things twice, or never say anything."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.memory import MemoryBroker
from fumehood.control import loading
from fumehood.engine.state import StepState
from fumehood.errors import BrokerError, LeaseLostError
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.simulation.watching import BrokenError
from tests.simulation.weather import Crashed

IDLE_SECONDS = 3600.0
"""How long a question stays open. Whatever comes answers it at once."""


class Workers:
    def __init__(
        self,
        draw: random.Random,
        calm: MemoryBroker,
        connect: Callable[[], MemoryBroker],
        pause: Callable[[float], Awaitable[None]],
        now_ms: Callable[[], int],
        types: Sequence[str],
    ) -> None:
        self._draw = draw
        self._calm = calm
        self._connect = connect
        self._pause = pause
        self._now_ms = now_ms
        self._types = types
        self._said: dict[tuple[str, str, int], list[Any]] = {}
        self.crashes = 0
        self.lost = 0
        self.poisoned = 0

    def said(self, run_id: str, step: str, attempt: int) -> list[Any]:
        """Every output that was given for an attempt."""
        return self._said.get((run_id, step, attempt), [])

    async def live(self, number: int) -> None:
        """A worker that is started again whenever it dies."""
        while True:
            handouts = Handouts(self._connect(), now_ms=self._now_ms)
            try:
                while True:
                    try:
                        await self._take(handouts, f"worker-{number}")
                    except BrokerError:
                        await self._pause(1.0)
            except Crashed:
                self.crashes += 1
                await self._pause(self._draw.random() * 20)
            self.poisoned += handouts.counts["poison"]

    async def _take(self, handouts: Handouts, worker_id: str) -> None:
        for leased in await handouts.take(self._types, max_tasks=4, timeout=IDLE_SECONDS, worker_id=worker_id):
            try:
                await self._do(handouts, leased)
            except LeaseLostError:
                self.lost += 1

    async def _do(self, handouts: Handouts, leased: Leased) -> None:
        mood = self._draw.random()
        if mood < 0.05 or leased.lease.task_type == "dead":
            return  # it never answers: the lease runs out
        lease = leased.lease
        if mood < 0.2:
            await self._pause(self._draw.random() * 30)
        if lease.task_type == SANDBOX_TASK:  # a node neither pauses nor leaves anything behind
            await self._answer(handouts, lease)
            return
        if mood > 0.9:
            lease = await handouts.checkpoint(lease, {"at": self._now_ms()})
        if 0.85 < mood < 0.9 and not leased.task.resumption:
            await handouts.pause(lease, self._draw.randint(1, 60_000), {"left": True})
            return
        if leased.task.resumption and leased.task.checkpoint is None and await self._is_wanted(lease):
            raise BrokenError(f"{lease.task_id} went on after a pause without what was left there")
        await self._answer(handouts, lease)
        if self._draw.random() < 0.1:
            await self._answer(handouts, lease)

    async def _is_wanted(self, lease: Lease) -> bool:
        """Whether the run still waits for this task. One that was answered may be handed out once more, where its
        worker died between its answer and everything else."""
        state, _ = await loading.load(self._calm, lease.run_id)
        step = state.steps[lease.step_id] if state is not None else StepState()
        return step.status.handed_out and (step.attempt, step.iteration, step.resumption) == lease.age

    async def _answer(self, handouts: Handouts, lease: Lease) -> None:
        mood = self._draw.random()
        if mood < 0.15:
            await handouts.fail(lease, {"code": "unlucky", "message": "no"})
        elif mood < 0.3 and lease.step_id.startswith("loop"):
            await handouts.proceed(lease, {"more": True})
        else:
            output = {"drawn": self._draw.random()}
            self._said.setdefault((lease.run_id, lease.step_id, lease.attempt), []).append(output)
            await handouts.complete(lease, output)
