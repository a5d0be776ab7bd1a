"""What goes wrong for one server: messages that come late or never, writes that fail, a table that lags."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from fumehood.broker.memory import MemoryBroker, MemoryKeyValue, MemoryServer
from fumehood.broker.memory_faults import Faults, Verdict
from fumehood.broker.ports import Bucket, KvChange

_WRITES = ("create", "update", "put", "delete")


@dataclass(eq=False)
class Storm(Faults):
    """None, until a test says so."""

    chance: random.Random = field(default_factory=random.Random)
    loss: float = 0.0
    """Of its messages to others, the share that gets lost."""
    longest: float = 0.0
    """Seconds that a message takes. Those of one sender to one address keep their order, all others do not."""
    failing: float = 0.0
    """Of its writes, the share that fails."""
    ways: Sequence[Verdict] = (Verdict.LOST, Verdict.UNANSWERED)
    """How they do: those that are not answered are done all the same."""
    sent: list[str] = field(default_factory=list)
    """Addresses of its messages, whatever became of them."""
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    """Its watches tell it nothing while this is not set."""
    _last: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calm.set()

    def over(self) -> None:
        self.loss = self.longest = self.failing = 0.0
        self.calm.set()

    async def call(self, operation: str, subject: str) -> Verdict:
        port, _, method = operation.partition(".")
        if port == "switchboard" or method not in _WRITES or self.chance.random() >= self.failing:
            return Verdict.OK
        return self.chance.choice(self.ways)

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        self.sent.append(consumer)
        if self.chance.random() < self.loss:
            return ()
        now = asyncio.get_running_loop().time()
        at = max(self._last.get(consumer, 0.0) + 5e-4, now + self.chance.random() * self.longest)
        self._last[consumer] = at
        return (at - now,)


class StormyBroker(MemoryBroker):
    """A server's connection to the broker, through a storm of its own."""

    def __init__(self, server: MemoryServer, storm: Storm) -> None:
        super().__init__(server, faults=storm)
        self.storm = storm

    def bucket(self, name: Bucket) -> MemoryKeyValue:
        return _Watched(self.server, self.storm, name)


class _Watched(MemoryKeyValue):
    def __init__(self, server: MemoryServer, storm: Storm, bucket: Bucket) -> None:
        super().__init__(server, storm, bucket)
        self._storm = storm

    async def watch(self, prefix: str = "") -> AsyncIterator[KvChange]:
        async for change in super().watch(prefix):
            await self._storm.calm.wait()
            yield change


def stormy(storms: Sequence[Storm]) -> Callable[[MemoryServer], MemoryBroker]:
    """For `world`: the first server has the first storm, and so on."""
    left = iter(storms)
    return lambda server: StormyBroker(server, next(left))
