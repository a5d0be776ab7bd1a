"""A cell's keys, servers that know them, and clocks that only tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.control.callers import ADMIN, Caller, Scope
from fumehood.control.key_store import KeyStore
from fumehood.control.keys import Keys, NewKey

ALL_BUT_ADMIN = frozenset(Scope) - {Scope.ALL}
"""Everything that a key of the default tenant may do without being the administrator's."""
A_TENANTS = ALL_BUT_ADMIN - {Scope.WORKERS}
"""Everything that a key of another tenant may do."""


class Outage(Faults):
    """What is in `away` never arrives."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.asked: list[str] = []

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked.append(f"{operation} {subject}")
        return Verdict.LOST if operation in self.away else Verdict.OK


class KeyWorld:
    """One server."""

    def __init__(self, memory: MemoryServer | None = None) -> None:
        self.now = 1_700_000_000_000
        self.ticks = 1000.0
        self.faults = Outage()
        self.broker = MemoryBroker(memory or MemoryServer(), faults=self.faults)
        self.store = KeyStore(self.broker, clock=lambda: self.ticks)
        self.keys = Keys(self.store, now_ms=lambda: self.now)

    async def made(
        self,
        scopes: frozenset[Scope] = frozenset({Scope.RUNS_READ}),
        *,
        tenant: str | None = None,
        by: Caller = ADMIN,
        seconds: int | None = None,
    ) -> tuple[str, str]:
        """Its id and its token."""
        key, token = await self.keys.create(NewKey("k", scopes, tenant, seconds), by)
        return key.id, token

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.store.work())
        try:
            for _ in range(10):
                await asyncio.sleep(0)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
