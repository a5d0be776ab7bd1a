"""The console put together: its parts over one broker, and the loops that keep them true."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable

from fumehood.broker.ports import Broker
from fumehood.control.console.commands import Commands
from fumehood.control.console.console import Console, ConsoleParts
from fumehood.control.console.credentials import Credentials
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.exchange import Exchange
from fumehood.control.console.finish import Finisher
from fumehood.control.console.journey import JourneyParts
from fumehood.control.console.judge import Judge
from fumehood.control.console.placing import Placing
from fumehood.control.console.presence import Presence
from fumehood.control.console.routing import Routing
from fumehood.control.console.sandboxes import Sandboxes, SandboxParts


class ConsoleDesk:
    """Workers on one side (`console`), callers on the other (`commands`, `sandboxes`)."""

    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self.credentials = Credentials(broker, now_ms=now_ms)
        self.presence = Presence(broker)
        self.exchange = Exchange(broker, secrets.token_hex(8))
        directory, finisher = SessionDirectory(broker, now_ms=now_ms), Finisher(broker, now_ms=now_ms)
        placing = Placing(self.presence, self.exchange)
        self.console = Console(
            ConsoleParts(self.credentials, self.presence, self.exchange, directory, finisher, now_ms)
        )
        self.sandboxes = Sandboxes(SandboxParts(self.presence, self.exchange, placing, directory, now_ms))
        routing, judge = Routing(directory, placing, self.presence, now_ms=now_ms), Judge(self.presence, now_ms=now_ms)
        self.commands = Commands(JourneyParts(self.exchange, placing, routing, finisher, judge, now_ms), self.sandboxes)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Serve workers and callers while the block lasts."""
        watching = asyncio.create_task(self.credentials.work())
        try:
            async with self.console.open():
                yield
        finally:
            await self.commands.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
