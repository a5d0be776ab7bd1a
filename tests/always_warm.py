"""A pool out of which every sandbox comes: what is asked for is put in stock first, and a cold one is a failure."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.pool.driver import Engine, PooledDriver
from fumehood.sandbox.pool.store import PoolStore
from fumehood.sandbox.pool.values import PoolOptions
from fumehood.sandbox.spec import SandboxSpec


class AlwaysWarm(PooledDriver):
    """Its keeper does not run (`most=0`), so that nothing is made that no test asked for."""

    def __init__(self, driver: Engine, store: PoolStore, options: PoolOptions) -> None:
        super().__init__(driver, store, options)
        self.lives = contextlib.AsyncExitStack()

    async def prepare(self, spec: SandboxSpec) -> Handle:
        """What cannot be made is refused as it is without a pool."""
        await self.warm(spec)
        handle = await super().prepare(spec)
        assert handle.sandbox_id in self._claims, "it had to be made"
        return handle

    async def close(self) -> None:
        await self.lives.aclose()


async def always_warm(driver: Engine, folder: Path) -> Driver:
    """Closing it closes the driver within, too, and leaves what was claimed as it is."""
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(driver.close)
        pool = await stack.enter_async_context(AlwaysWarm.open(driver, folder, PoolOptions(most=0)))
        assert isinstance(pool, AlwaysWarm)
        pool.lives = stack.pop_all()
    return pool
