"""Ready means that a container can really be run: so one is run, now and then, and the engine is asked in between.

An engine can answer pings and be unable to start anything (a full disk, a broken runtime), and a node that says
"ready" then is a black hole for jobs. A job that ran is as good a proof as a probe and costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Protocol

from fumehood.errors import FumehoodError
from fumehood.node.service import Readiness
from fumehood.node.telemetry import Telemetry

PING_SECONDS = 1.0
PROOF_SECONDS = 30.0
MIN_FREE_BYTES = 32 * 1024 * 1024
"""Less room than this for ledger and spool, and a result could not be stored."""


class Checkable(Protocol):
    """What readiness needs of a driver."""

    async def ping(self) -> None: ...

    async def check(self) -> None:
        """Run something in a container, really."""
        ...


class ReadinessWatch:
    def __init__(self, driver: Checkable, state_dir: Path, telemetry: Telemetry) -> None:
        self._driver = driver
        self._state_dir = state_dir
        self._telemetry = telemetry
        self._proven_at: float | None = None
        self._state = Readiness(False, "a first container is being run, to see that the engine can")

    @property
    def state(self) -> Readiness:
        return self._state

    def proven(self) -> None:
        """A job's command ran: that is proof."""
        self._proven_at = time.monotonic()

    async def forever(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(PING_SECONDS)

    async def once(self) -> Readiness:
        state = await self._look()
        if state != self._state:  # another reason is news as well: the first one why a node does not become ready
            log = self._telemetry.log
            (log.info if state.ready else log.warning)("readiness.changed", ready=state.ready, reason=state.reason)
        self._telemetry.metrics.ready.set(state.ready)
        self._state = state
        return state

    async def _look(self) -> Readiness:
        try:
            if _free_bytes(self._state_dir) < MIN_FREE_BYTES:
                return Readiness(False, "the disk of the state folder is full")
            await self._driver.ping()
            if not self._state.ready or self._stale():
                await self._driver.check()
                self.proven()
        except FumehoodError as error:
            return Readiness(False, error.detail)
        except Exception as error:  # noqa: BLE001 - whatever it is, a node that cannot look is not ready
            self._telemetry.log.error("readiness.failed", error=type(error).__name__)
            return Readiness(False, "the check itself failed")
        return Readiness(True, "ready")

    def _stale(self) -> bool:
        return self._proven_at is None or time.monotonic() - self._proven_at > PROOF_SECONDS


def _free_bytes(folder: Path) -> int:
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize
