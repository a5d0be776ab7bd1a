"""People who look at runs and tell them things: at once, twice, against each other, and over a bad line.

A person acts on what it sees in a journal, once for each thing, after a while of its own, and says the same again until
it was heard.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.broker.memory import MemoryBroker
from fumehood.control import intake
from fumehood.engine.messages import MessageType
from fumehood.engine.orders import can_override, can_retry
from fumehood.engine.state import RunState, StepState, StepStatus
from fumehood.errors import BrokerError
from tests.simulation.weather import Crashed
from tests.simulation.workflows import SIGNAL

MOST_TRIES = 2
"""Retries of one run: the world comes to an end."""
_WAITS = (StepStatus.LISTENING, StepStatus.AWAITING_APPROVAL)


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody told a run, and the broker has."""

    kind: MessageType
    run_id: str
    tag: str
    body: Mapping[str, Any]
    seen_at: int
    """When the reason for it was seen."""
    accepted_at: int


class People:
    def __init__(
        self,
        draw: random.Random,
        connect: Callable[[], MemoryBroker],
        pause: Callable[[float], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._draw = draw
        self._connect = connect
        self._pause = pause
        self._now_ms = now_ms
        self._known: set[object] = set()
        self._acts: set[asyncio.Task[None]] = set()
        self.told: dict[str, Mapping[str, Any]] = {}
        """All that anybody ever said, by its tag."""
        self.orders: list[Order] = []

    @property
    def busy(self) -> bool:
        """Whether somebody is still going to say something."""
        return any(not act.done() for act in self._acts)

    def check(self) -> None:
        for act in [act for act in self._acts if act.done()]:
            self._acts.discard(act)
            act.result()

    async def close(self) -> None:
        for act in self._acts:
            act.cancel()
        await asyncio.gather(*self._acts, return_exceptions=True)

    # --- what is seen --------------------------------------------------------------------------------------

    def expect(self, run_id: str) -> None:
        """A run was started just now; what is said at once may overtake its start."""
        luck = self._draw.random()
        if luck < 0.03:
            self._say(run_id, MessageType.CANCEL, within=1)
        elif luck < 0.1:
            self._signal(run_id, within=1)

    def see(self, state: RunState) -> None:
        """A run has moved."""
        if self._is_news(state.run_id):
            self._meet(state)
        if state.status.ended:
            if can_retry(state) and state.tries < MOST_TRIES and self._is_news(state.run_id, "ended", state.tries):
                self._repair(state)
            return
        if state.ending is not None:
            if self._is_news(state.run_id, "ending", state.tries) and self._draw.random() < 0.15:
                self._say(state.run_id, MessageType.CANCEL, force=True)
            return
        for name, step in state.steps.items():
            if step.status in _WAITS and self._is_news(state.run_id, name, step.attempt):
                self._answer(state, name, step)

    def _is_news(self, *what: object) -> bool:
        if what in self._known:
            return False
        self._known.add(what)
        return True

    def _meet(self, state: RunState) -> None:
        """A run that is new."""
        luck = self._draw.random()
        listens = any(step.wait_signal is not None for step in state.definition.steps)
        if luck < 0.08:
            self._say(state.run_id, MessageType.CANCEL, within=60, force=self._draw.random() < 0.3)
        elif luck < 0.15:
            self._decide_by_hand(state.run_id, self._draw.choice(list(state.steps)))
        if listens and self._draw.random() < 0.4:
            self._signal(state.run_id)

    def _answer(self, state: RunState, name: str, step: StepState) -> None:
        if self._draw.random() < 0.15:
            return  # nobody does
        if step.status is StepStatus.LISTENING:
            for _ in range(self._draw.choice([1, 1, 1, 2])):
                self._signal(state.run_id)
            return
        for by in self._draw.choice([("ann",), ("bob",), ("ann", "bob"), ("ann", "eve")]):
            approved = self._draw.random() < 0.75
            self._say(state.run_id, MessageType.APPROVE, step=name, attempt=step.attempt, approved=approved, by=by)

    def _repair(self, state: RunState) -> None:
        luck = self._draw.random()
        steps = [name for name in state.steps if can_override(state, name)]
        if luck < 0.35:
            for _ in range(self._draw.choice([1, 1, 2])):
                self._say(state.run_id, MessageType.RETRY)
        elif luck < 0.5 and steps:
            self._decide_by_hand(state.run_id, self._draw.choice(steps))

    def _signal(self, run_id: str, within: float = 40) -> None:
        self._say(run_id, MessageType.SIGNAL, within=within, name=SIGNAL)

    def _decide_by_hand(self, run_id: str, step: str) -> None:
        action = self._draw.choice(["skip", "complete"])
        self._say(run_id, MessageType.OVERRIDE, step=step, action=action, output="by hand")

    # --- what is said --------------------------------------------------------------------------------------

    def _say(self, run_id: str, kind: MessageType, *, within: float = 40, **body: Any) -> None:
        tag = f"{kind.value}-{len(self._known)}-{len(self._acts)}-{self._draw.random()}"
        said = {"by": "somebody", "reason": tag, "comment": tag, "data": tag, **body}
        order = Order(kind, run_id, tag, said, self._now_ms(), 0)
        self.told[tag] = said
        self._acts.add(asyncio.create_task(self._act(order, self._draw.random() * within)))

    async def _act(self, order: Order, delay: float) -> None:
        await self._pause(delay)
        await self._send(order)
        heard = Order(order.kind, order.run_id, order.tag, order.body, order.seen_at, self._now_ms())
        self.orders.append(heard)
        if self._draw.random() < 0.1:  # a second click, perhaps long after
            await self._pause(self._draw.random() * 300)
            await self._send(order)

    async def _send(self, order: Order) -> None:
        data = intake.encode(order.kind, dict(order.body))
        while True:
            try:
                await self._connect().mailboxes.send(order.run_id, f"{order.run_id}.{order.tag}", data)
            except (BrokerError, Crashed):
                await self._pause(self._draw.random() * 5)
            else:
                return
