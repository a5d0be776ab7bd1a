"""A socket between a node and its engine that lets a test strike at an exact moment.

It relays bytes both ways and watches the requests go by. A trap fires once, either *before* a request reaches the
engine (which then never sees it) or *after* the engine has answered (and before the node learns of it): the two
moments at which a crash tells whether the order of writes is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = Path("/var/run/docker.sock")


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
        pumps = [
            asyncio.create_task(self._requests(reader, engine_writer, armed)),
            asyncio.create_task(self._answers(engine_reader, writer, armed)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            engine_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter, armed: list[Trap]) -> None:
        while data := await reader.read(65536):
            trap = next((trap for trap in self._traps if re.search(trap.pattern.encode(), data[:500])), None)
            if trap is not None:
                self._traps.remove(trap)
                if trap.when == "before":
                    trap.fire()
                    return
                armed.append(trap)
            engine.write(data)
            await engine.drain()

    async def _answers(self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, armed: list[Trap]) -> None:
        while data := await engine.read(65536):
            if armed:
                armed.pop().fire()
                return
            writer.write(data)
            await writer.drain()
