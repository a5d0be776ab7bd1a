"""A worker at work: takes as much as it has room for, says that it is there, and leaves in order.

Leaving: first nothing more is taken, and what runs may run to its end for a while. Then handlers are told to stop and
their tasks are given back, so that nobody has to wait for a lease to run out. The registration outlives all of it: a
worker that is about to answer is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.broker.handout import Leased
from fumehood.broker.ports import Bucket
from fumehood.broker.shield import shielded
from fumehood.errors import BrokerDeniedError, BrokerError, ConfigurationError
from fumehood.sdk.calling import Handler
from fumehood.sdk.execution import Execution, Office
from fumehood.wire.protocol import WorkerRegistration

_log = logging.getLogger("fumehood.worker")

PULL_SECONDS = 20.0
TAKE_AGAIN = 1.0
RENEW_SECONDS = 30.0
"""As the wire protocol says: the directory forgets a worker after 60."""
RENEW_AGAIN = 5.0
STOP_SECONDS = 5.0
"""What a handler has for cleaning up after it was told to stop."""
LEAVE_SECONDS = 5.0
"""What the broker has for hearing that we go."""


@dataclass(frozen=True, slots=True)
class LoopOptions:
    max_tasks: int
    drain_seconds: float
    run_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class Loop:
    """Belongs to one event loop. `serve` returns when all is over."""

    def __init__(
        self,
        office: Office,
        handlers: Mapping[str, Handler],
        options: LoopOptions,
        ready: asyncio.Event | None = None,
    ) -> None:
        self._office = office
        self._handlers = dict(handlers)
        self._options = options
        self._executions: dict[asyncio.Task[None], Execution] = {}
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self.ready = ready or asyncio.Event()
        """Set when tasks are being taken."""
        self.counts: Counter[str] = Counter()
        """`take_broken`."""

    def stop(self, *, now: bool = False) -> None:
        """Drain; with `now`, or the second time, without waiting for handlers."""
        if now or self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    async def serve(self) -> None:
        await self._register()
        self.ready.set()
        renewing = asyncio.create_task(self._renew())
        _log.info("worker_started", extra={"worker": self._office.worker, "task_types": sorted(self._handlers)})
        try:
            await self._take_until_stopped()
        except BaseException:
            self.stop(now=True)
            raise
        finally:
            await shielded(self._leave(renewing))
            _log.info("worker_stopped", extra={"worker": self._office.worker})

    # --- taking --------------------------------------------------------------------------------------------

    async def _take_until_stopped(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                taking = asyncio.create_task(self._take())
                try:
                    await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not taking.done():
                        taking.cancel()
                        await asyncio.wait({taking})
                    if not taking.cancelled():  # whatever was leased is begun, if only to be given back
                        self._begin(taking.result())
        finally:
            stopping.cancel()

    async def _take(self) -> list[Leased]:
        """What there is room for; nothing after a while, or while the broker is away."""
        self._room.clear()
        room = self._options.max_tasks - len(self._executions)
        if room <= 0:
            await self._room.wait()
            return []
        try:
            return await self._office.handouts.take(
                list(self._handlers),
                max_tasks=room,
                timeout=PULL_SECONDS,
                worker_id=self._office.worker,
                run_id=self._options.run_id,
            )
        except BrokerError as error:
            _log.warning("take_failed", extra={"worker": self._office.worker, "code": error.code})
            if self._office.is_cut_off():
                raise
        except Exception:  # noqa: BLE001 - nobody expected it, and what runs here must not end by it
            self.counts["take_broken"] += 1
            _log.exception("take_broken", extra={"worker": self._office.worker})
        await asyncio.sleep(TAKE_AGAIN)
        return []

    def _begin(self, taken: list[Leased]) -> None:
        for leased in taken:
            execution = Execution(self._office, leased, self._handlers[leased.lease.task_type])
            running = asyncio.create_task(execution.run())
            self._executions[running] = execution
            running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        del self._executions[running]
        self._room.set()
        error = None if running.cancelled() else running.exception()
        if error is not None:
            _log.error("task_broken", exc_info=error, extra={"worker": self._office.worker})

    # --- the directory -------------------------------------------------------------------------------------

    async def _register(self) -> None:
        office = self._office
        entry = WorkerRegistration(
            worker_id=office.worker,
            task_types=sorted(self._handlers),
            language="python",
            transport="nats",
            max_tasks=self._options.max_tasks,
            metadata=dict(self._options.metadata),
        )
        try:
            await office.broker.bucket(Bucket.WORKERS).put(office.worker, entry.model_dump_json().encode())
        except BrokerDeniedError as error:
            raise ConfigurationError(
                f"the broker does not let this user register as {office.worker!r}: a worker has its user's name"
            ) from error

    async def _renew(self) -> None:
        pause = RENEW_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await self._register()
                pause = RENEW_SECONDS
            except (BrokerError, ConfigurationError) as error:
                _log.warning("not_registered", extra={"worker": self._office.worker, "code": error.code})
                pause = RENEW_AGAIN

    # --- leaving -------------------------------------------------------------------------------------------

    async def _leave(self, renewing: asyncio.Task[None]) -> None:
        await self._drain()
        for execution in tuple(self._executions.values()):
            execution.give_back()
        await self._all_ended(STOP_SECONDS)
        for running, execution in tuple(self._executions.items()):
            execution.abandon()
            running.cancel()
        await self._all_ended(LEAVE_SECONDS)
        renewing.cancel()
        await asyncio.wait({renewing})
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._office.broker.bucket(Bucket.WORKERS).delete(self._office.worker)
        except (BrokerError, TimeoutError):
            _log.info("not_deregistered", extra={"worker": self._office.worker})

    async def _drain(self) -> None:
        """Until all handlers have ended, time is up, or somebody cannot wait."""
        at_once = asyncio.create_task(self._at_once.wait())
        ended = asyncio.create_task(self._all_ended(self._options.drain_seconds))
        try:
            await asyncio.wait({at_once, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            at_once.cancel()
            ended.cancel()

    async def _all_ended(self, seconds: float) -> None:
        if self._executions:
            await asyncio.wait(self._executions, timeout=seconds)
