"""The use case below the door, in this process: a server without doors, which asks workers that another one holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.engine_world import open_broker
from bench.world import BenchError
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.topology import GIB, Shape
from fumehood.control.callers import ADMIN
from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.ports_http import CommandWish
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console.codes import Capability

TIMEOUT_MS = 30_000
WAIT_MS = 10_000
SEEN_SECONDS = 30.0


class Below:
    """What a door stands on."""

    def __init__(self, desk: ConsoleDesk) -> None:
        self.desk = desk

    @classmethod
    @asynccontextmanager
    async def open(cls, options: ConnectionOptions) -> AsyncIterator[Below]:
        broker = await open_broker(options, Shape(1, storage=4 * GIB))
        try:
            desk = ConsoleDesk(broker, now_ms=lambda: time.time_ns() // 1_000_000)
            async with desk.working():
                yield cls(desk)
        finally:
            await broker.close()

    async def seen(self, workers: int) -> None:
        """Until so many workers are connected, wherever."""
        try:
            async with asyncio.timeout(SEEN_SECONDS):
                while len(self.desk.presence.workers) != workers:  # noqa: ASYNC110 - the table has no event for it
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise BenchError(f"{len(self.desk.presence.workers)} workers are connected, not {workers}") from None

    async def echo(self, payload: bytes) -> float:
        wish = CommandWish(Capability.ECHO.value, payload, TIMEOUT_MS, WAIT_MS)
        began = time.perf_counter()
        record = await self.desk.commands.submit(wish, ADMIN)
        seconds = time.perf_counter() - began
        if record.status is not CommandStatus.SUCCEEDED or (record.result_json or "").encode() != payload:
            raise BenchError(f"a wrong answer to {payload!r}: {record!r}")
        return seconds
