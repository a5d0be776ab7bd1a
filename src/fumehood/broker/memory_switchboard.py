"""What servers say to each other, in the in-memory broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fumehood.broker.clock import Clock
from fumehood.broker.memory_faults import Faults, Port
from fumehood.broker.topology import MAX_PAYLOAD, switch_subject
from fumehood.errors import PayloadTooLargeError

Take = Callable[[bytes], None]


class Lines:
    """Who listens where: outlives every connection, as the server does."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.listeners: dict[str, list[Take]] = {}

    def send(self, subject: str, data: bytes, delay: float) -> None:
        """To those who listen now and still do when it arrives. Never within the call: whoever sends to itself must not
        be called back meanwhile."""
        now = tuple(self.listeners.get(subject, ()))
        self.clock.call_at(self.clock.now() + delay, partial(self._deliver, subject, now, data))

    def _deliver(self, subject: str, listeners: Sequence[Take], data: bytes) -> None:
        for take in listeners:
            if take in self.listeners.get(subject, ()):
                take(data)


class MemorySwitchboard(Port):
    name = "switchboard"

    def __init__(self, lines: Lines, faults: Faults) -> None:
        super().__init__(faults)
        self._lines = lines

    async def send(self, address: str, data: bytes) -> None:
        if len(data) > MAX_PAYLOAD:
            raise PayloadTooLargeError(f"a message between servers has at most {MAX_PAYLOAD} bytes")
        subject = switch_subject(address)
        done = await self._begin("send", address)
        for delay in self._faults.arrivals(subject, "")[:1]:  # at most once
            self._lines.send(subject, bytes(data), delay)
        done()

    @asynccontextmanager
    async def listen(self, address: str, take: Take) -> AsyncIterator[None]:
        subject = switch_subject(address)
        done = await self._begin("listen", address)
        done()
        listeners = self._lines.listeners.setdefault(subject, [])
        listeners.append(take)
        try:
            yield
        finally:
            listeners.remove(take)
            if not listeners:
                self._lines.listeners.pop(subject, None)
