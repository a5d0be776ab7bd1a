"""The one owner of cleanup: what bears this node's label and belongs to no job is removed.

It looks only at containers with our own node id, so that several nodes may share an engine. Everything else that
cleans up (the end of a job, a probe) is only quicker: a create call that failed after the engine made the container, a
crash between two lines, a removal that timed out all end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from shutil import rmtree

from fumehood.errors import FumehoodError, SandboxError
from fumehood.node.telemetry import Telemetry
from fumehood.sandbox.driver import Driver, Handle

PERIOD_SECONDS = 3.0


class Reconciler:
    def __init__(self, driver: Driver, owned: Callable[[], Collection[str]], spool: Path, telemetry: Telemetry) -> None:
        self._driver = driver
        self._owned = owned
        self._spool = spool
        self._telemetry = telemetry

    async def forever(self) -> None:
        """Once at once, then every few seconds; an engine that is away is no reason to stop."""
        while True:
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - the one owner of cleanup never gives up
                code = error.code if isinstance(error, FumehoodError) else type(error).__name__
                self._telemetry.log.warning("reconcile.failed", code=code)
            await asyncio.sleep(PERIOD_SECONDS)

    async def once(self) -> int:
        """Remove what has no owner; how many sandboxes there were."""
        found = await self._driver.list({})
        orphans = [handle for handle in found if handle.sandbox_id not in self._owned()]
        await asyncio.gather(*(self._remove(handle) for handle in orphans))
        await asyncio.to_thread(self._sweep_spool)
        return len(orphans)

    async def _remove(self, handle: Handle) -> None:
        """One that cannot be removed does not keep the others; it is there again in the next round."""
        try:
            await self._driver.destroy(handle)
        except SandboxError as error:
            self._telemetry.engine_error("reconcile", error)
            return
        self._telemetry.metrics.reconciled.labels("removed").inc()
        self._telemetry.log.info("reconcile.removed", sandbox_id=handle.sandbox_id)

    def _sweep_spool(self) -> None:
        if not self._spool.is_dir():
            return
        for folder in self._spool.iterdir():
            if folder.name not in self._owned():
                rmtree(folder, ignore_errors=True)
