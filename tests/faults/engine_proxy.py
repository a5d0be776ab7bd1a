"""A socket between a node and its engine that lets a test strike at an exact moment.

It relays bytes both ways and watches the requests go by. A trap fires once, either *before* a request reaches the
engine (which then never sees it) or *after* the engine has answered (and before the node learns of it): the two
moments at which a crash tells whether the order of writes is right. What a node does to examine itself springs no trap.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = Path("/var/run/docker.sock")
MADE = re.compile(rb'"Id":"([0-9a-f]{64})"')


@dataclass
class Trap:
    """Fires on the first request whose first line matches."""

    pattern: str
    when: str
    strike: Callable[[], None]
    fired: asyncio.Event = field(default_factory=asyncio.Event)

    def fire(self) -> None:
        self.strike()
        self.fired.set()


class EngineProxy:
    def __init__(self, socket: Path, engine: Path = ENGINE) -> None:
        self.socket = socket
        self._engine = engine
        self._traps: list[Trap] = []
        self._own: set[bytes] = set()
        """Containers by which a node examines itself."""
        self._tasks: set[asyncio.Task[None]] = set()

    def trap(self, pattern: str, when: str, strike: Callable[[], None]) -> Trap:
        trap = Trap(pattern, when, strike)
        self._traps.append(trap)
        return trap

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[EngineProxy]:
        server = await asyncio.start_unix_server(self._accept, str(self.socket))
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection(str(self._engine))
        armed: list[Trap] = []
        probing: list[bool] = []
        pumps = [
            asyncio.create_task(self._requests(reader, engine_writer, armed, probing)),
            asyncio.create_task(self._answers(engine_reader, writer, armed, probing)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            engine_writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter, armed: list[Trap], probing: list[bool]
    ) -> None:
        while data := await reader.read(65536):
            if b"/containers/create?name=fumehood-probe-" in data[:500]:
                probing.append(True)
            trap = self._sprung(data[:500])
            if trap is not None:
                self._traps.remove(trap)
                if trap.when == "before":
                    trap.fire()
                    return
                armed.append(trap)
            engine.write(data)
            await engine.drain()

    def _sprung(self, request: bytes) -> Trap | None:
        line = request.partition(b"\r\n")[0]
        if any(container in line for container in self._own):
            return None
        return next((trap for trap in self._traps if re.search(trap.pattern.encode(), request)), None)

    async def _answers(
        self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, armed: list[Trap], probing: list[bool]
    ) -> None:
        while data := await engine.read(65536):
            if probing and (made := MADE.search(data)):
                self._own.add(made[1])
                probing.clear()
            if armed:
                armed.pop().fire()
                return
            writer.write(data)
            await writer.drain()
