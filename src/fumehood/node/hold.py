"""A lease that is kept for as long as its sandbox is, and given up in time where it cannot be.

A node that cannot renew ends its sandbox after `TOLERANCE_SECONDS`, and a sandbox whose node died ends by itself after
`orphan_seconds`. A lease outlasts both, one after the other, and a margin: so when it is over, nothing of it runs any
more, whatever happened to whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import StrEnum

import structlog

from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.errors import BrokerError, LeaseLostError

RENEW_SECONDS = 3.0
"""Between two renewals; also how soon a sandbox ends that somebody stops."""
TOLERANCE_SECONDS = 20
"""How long a sandbox goes on whose lease cannot be renewed: longer than a broker takes to restart, or to elect."""
MARGIN_SECONDS = 10
"""For a renewal that was under way, for the kill itself, and for clocks that differ."""
_log = structlog.get_logger()


def lease_seconds(orphan_seconds: int) -> int:
    return math.ceil(TOLERANCE_SECONDS + orphan_seconds + MARGIN_SECONDS)


class Lost(StrEnum):
    REVOKED = "revoked"
    """The engine took it back: somebody stopped it, or its time ran out."""
    TAKEN = "taken"
    """Others have answered for us, or have it."""
    SILENT = "silent"
    """The broker could not be reached in time."""


class Hold:
    """`lost` says that the sandbox must end. `over` says that there is nothing to answer any more: an answer that is
    known may be given late, if nobody has given another one."""

    def __init__(self, handouts: Handouts, lease: Lease, renewed: Callable[[Lease], None]) -> None:
        """`renewed` is told of every renewal, so that a next life of this node knows how much time is left."""
        self._handouts = handouts
        self._tell = renewed
        self.lease = lease
        loop = asyncio.get_running_loop()
        self.confirmed: asyncio.Future[bool] = loop.create_future()
        """Whether it is ours, once the broker has said so."""
        self.lost: asyncio.Future[Lost] = loop.create_future()
        self.over: asyncio.Future[Lost] = loop.create_future()
        self._now = asyncio.Event()

    @contextlib.asynccontextmanager
    async def kept(self, *, new: bool = False) -> AsyncIterator[None]:
        """Renew it every `RENEW_SECONDS` while the block lasts. A `new` lease is first renewed that long after it was
        taken; any other at once, since it may have been lost meanwhile."""
        renewing = asyncio.create_task(self._renew(new), name=f"lease-{self.lease.task_id}")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    def begin(self) -> None:
        """Its command was sent: who asks for the run is told so from now on."""
        if not self.lease.begun_ms:
            self.lease = replace(self.lease, begun_ms=time.time_ns() // 1_000_000)
            self._now.set()

    async def _renew(self, new: bool) -> None:
        age = self.lease.seconds - (self.lease.expires_ms / 1000 - time.time())
        last = time.monotonic() - max(0.0, age)
        if new and 0 <= age < RENEW_SECONDS:  # below 0 the clock was set back
            await self._pause(RENEW_SECONDS - age)
        while not self.over.done():
            asked = time.monotonic()
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._renew_once()
                last = asked
            except LeaseLostError:
                await self._end()
            except (BrokerError, TimeoutError):
                self._look(last)
            except Exception:  # noqa: BLE001 - a sandbox must not run on because we cannot say why
                _log.exception("lease.failed", run_id=self.lease.run_id)
                self._look(last)
            await self._pause(RENEW_SECONDS)

    async def _renew_once(self) -> None:
        begun = self.lease.begun_ms
        held = await self._handouts.heartbeat(self.lease)
        self.lease = replace(held, begun_ms=self.lease.begun_ms)
        if self.lease.begun_ms != begun:  # it began meanwhile
            self._now.set()
        self._tell(self.lease)
        _set(self.confirmed, True)

    def _look(self, last: float) -> None:
        if time.monotonic() - last > TOLERANCE_SECONDS:
            _set(self.lost, Lost.SILENT)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                how = Lost.REVOKED if await self._handouts.is_revoked(self.lease) else Lost.TAKEN
        except (BrokerError, TimeoutError):
            how = Lost.TAKEN
        _set(self.confirmed, False)
        _set(self.lost, how)
        _set(self.over, how)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._now.wait()
        self._now.clear()


def _set(future: asyncio.Future[object] | asyncio.Future[bool] | asyncio.Future[Lost], value: object) -> None:
    if not future.done():
        future.set_result(value)  # type: ignore[arg-type]
