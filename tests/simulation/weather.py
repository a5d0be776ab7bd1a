"""Bad weather: what a network and the machines on it do to calls and deliveries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fumehood.broker.clock import ManualClock
from fumehood.broker.memory import Faults, Verdict


class Crashed(BaseException):
    """This process is gone, at whatever line it was."""


@dataclass
class Chaos:
    """How bad the weather is."""

    crash: float = 0.004
    lost: float = 0.02
    unanswered: float = 0.02
    late: float = 0.1
    doubled: float = 0.1
    dropped: float = 0.03
    cut_off: float = 0.001

    def calm_down(self) -> None:
        for name in vars(self):
            setattr(self, name, 0.0)


class StormyFaults(Faults):
    """One process's connection in bad weather."""

    def __init__(self, draw: random.Random, chaos: Chaos, clock: ManualClock) -> None:
        self._draw = draw
        self._chaos = chaos
        self._clock = clock
        self._cut_off_until = 0.0

    async def call(self, operation: str, subject: str) -> Verdict:
        for _ in range(self._draw.randint(0, 3)):
            await asyncio.sleep(0)
        if self._clock.now() < self._cut_off_until:
            return Verdict.LOST
        if self._draw.random() < self._chaos.cut_off:
            self._cut_off_until = self._clock.now() + self._draw.random() * 60
            return Verdict.LOST
        luck = self._draw.random()
        if luck < self._chaos.crash:
            raise Crashed
        if luck < self._chaos.crash + self._chaos.lost:
            return Verdict.LOST
        if luck < self._chaos.crash + self._chaos.lost + self._chaos.unanswered:
            return Verdict.UNANSWERED
        return Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        luck = self._draw.random()
        if luck < self._chaos.dropped:
            return ()
        if luck < self._chaos.dropped + self._chaos.doubled:
            return (0.0, self._draw.random() * 5)
        if luck < self._chaos.dropped + self._chaos.doubled + self._chaos.late:
            return (self._draw.random() * 10,)
        return (0.0,)

    def order(self, consumer: str, waiting: int) -> Sequence[int]:
        numbers = list(range(waiting))
        self._draw.shuffle(numbers)
        return numbers
