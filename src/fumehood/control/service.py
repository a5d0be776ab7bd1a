"""A server, seen from its doors: the use cases, whether it can do anything, and the deciders that it runs.

A server keeps nothing. Any number of them stand side by side, each with doors and deciders of its own, and each may be
killed at any line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from opentelemetry.trace import Tracer

from fumehood.broker.ports import Broker, Bucket
from fumehood.control.archive import Archiver
from fumehood.control.audit import Audit
from fumehood.control.bundles import Bundles
from fumehood.control.console.assembly import ConsoleDesk
from fumehood.control.console.dialled import registrations
from fumehood.control.decider import Decider
from fumehood.control.directory import Directory
from fumehood.control.event_streams import EventOptions
from fumehood.control.events import Events
from fumehood.control.index import Index
from fumehood.control.jobs.adjudicator import Adjudicator
from fumehood.control.jobs.jobs import Jobs, Waits
from fumehood.control.jobs.providers import Providers
from fumehood.control.jobs.standing import Standings
from fumehood.control.key_store import KeyStore
from fumehood.control.keys import Keys
from fumehood.control.lost_nodes import LostNodes
from fumehood.control.node_policies import NodePolicies
from fumehood.control.orders import Orders
from fumehood.control.quotas import Quotas
from fumehood.control.rates import Rates
from fumehood.control.receipt_keys import ReceiptKeyStore
from fumehood.control.run_logs import RunLogReader
from fumehood.control.run_receipts import RunReceipts
from fumehood.control.runner import Runner
from fumehood.control.runner_list import RunnerList
from fumehood.control.runs import Runs
from fumehood.control.scheduler import Scheduler
from fumehood.control.schedules import Schedules
from fumehood.control.sweep import Sweeper
from fumehood.control.workflows import Workflows
from fumehood.errors import BrokerError, FumehoodError
from fumehood.images import Admission
from fumehood.jobs.registry import Registry

READY_SECONDS = 3.0
"""For one small write: longer than any healthy broker needs, shorter than the patience of common probes."""
READY_FRESH_SECONDS = 1.0
PROBE_SECONDS = 5.0
"""Between two probes that nobody asked for, so that metrics tell the truth where nobody asks."""
PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether this server can keep a promise, now."""

    ready: bool
    reason: str = ""
    """Why not, or what to look at all the same; shown to anybody who asks."""


class Probe:
    """Asks the broker with a real write, once for all who ask within a second."""

    def __init__(self, broker: Broker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = broker.bucket(Bucket.CLUSTER)
        self._clock = clock
        self._asking: asyncio.Task[Readiness] | None = None
        self._last: tuple[float, Readiness] | None = None

    @property
    def was_ready(self) -> bool:
        """By the last answer; False before the first."""
        return self._last is not None and self._last[1].ready

    async def readiness(self) -> Readiness:
        if self._last is not None and self._clock() - self._last[0] < READY_FRESH_SECONDS:
            return self._last[1]
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Readiness:
        try:
            found = await self._write()
            self._last = (self._clock(), found)
            return found
        finally:
            self._asking = None

    async def _write(self) -> Readiness:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._bucket.put("readiness", b"")
        except TimeoutError:
            return Readiness(False, "the broker does not answer in time")
        except BrokerError as error:
            return Readiness(False, f"the broker cannot be written to ({error.code})")
        return Readiness(True)


class Service:
    """The use cases over one broker."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock_ms: Callable[[], int] = now_ms,
        tracer: Tracer | None = None,
        index_dir: Path | None = None,
        retention_seconds: float = 0.0,
        event_options: EventOptions | None = None,
        admission: Admission | None = None,
        receipt_root: bytes | None = None,
        job_types: Registry | None = None,
        job_waits: Waits | None = None,
    ) -> None:
        """Without `admission` no run of a single image is let in."""
        self.broker = broker
        self.index = Index(broker, now_ms=clock_ms, base=index_dir)
        self.workflows = Workflows(broker, now_ms=clock_ms)
        self.rates = Rates(broker, now_ms=clock_ms)
        self.key_store = KeyStore(broker)
        self.keys = Keys(self.key_store, now_ms=clock_ms)
        self.audit = Audit(broker, now_ms=clock_ms)
        self.receipt_keys = ReceiptKeyStore(broker, root=receipt_root)
        quotas = Quotas(broker, quota=self.keys.max_runs, running=self.index.running)
        self.runs = Runs(broker, self.workflows, now_ms=clock_ms, quotas=quotas)
        self.orders = Orders(broker, self.runs, now_ms=clock_ms)
        self.run_logs = RunLogReader(broker, self.runs)
        self.run_receipts = RunReceipts(broker, self.runs)
        self.runner = Runner(broker, self.runs, self.orders, now_ms=clock_ms, admission=admission, quotas=quotas)
        self.runner_list = RunnerList(broker, self.index, now_ms=clock_ms)
        self.decider = Decider(broker, now_ms=clock_ms, tracer=tracer)
        self.schedules = Schedules(broker, self.workflows, self.runs, now_ms=clock_ms)
        self.scheduler = Scheduler(broker, self.runs, now_ms=clock_ms)
        self.sweeper = Sweeper(broker, now_ms=clock_ms)
        self.lost_nodes = LostNodes(broker, now_ms=clock_ms)
        self.node_policies = NodePolicies(broker, admission)
        self.archiver = Archiver(broker, self.index, now_ms=clock_ms, retention=retention_seconds)
        self.events = Events(broker, self.runs, event_options)
        self.desk = ConsoleDesk(broker, now_ms=clock_ms)
        self.directory = Directory(broker, lambda: registrations(self.desk.presence))
        types = job_types or Registry.load()
        standings = Standings(broker, now_ms=clock_ms)
        self.bundles = Bundles(broker)
        self.providers = Providers(standings, self.directory)
        self.jobs = Jobs(
            broker,
            self.runs,
            self.orders,
            types,
            self.receipt_keys,
            now_ms=clock_ms,
            quotas=quotas,
            providers=self.providers,
            waits=job_waits,
        )
        self.adjudicator = Adjudicator(broker, types, self.receipt_keys, standings, now_ms=clock_ms)
        self._admission = admission
        self._probe = Probe(broker)
        self._draining = False

    async def readiness(self) -> Readiness:
        if self._draining:
            return Readiness(False, "shutting down")
        found = await self._probe.readiness()
        trouble = self._admission.trouble if self._admission is not None else None
        return Readiness(True, trouble) if found.ready and trouble else found

    @property
    def is_ready(self) -> bool:
        """What the last probe found, without another one."""
        return self._probe.was_ready and not self._draining

    @property
    def is_draining(self) -> bool:
        """Whoever follows something here should follow it elsewhere."""
        return self._draining

    async def keep_probing(self) -> None:
        while True:
            await self.readiness()
            await asyncio.sleep(PROBE_SECONDS)

    def drain(self) -> None:
        """From now on, others should be asked; who follows runs is let go, and comes back to one of them."""
        self._draining = True
        self.events.close()
        self.desk.console.drain()

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        """Run deciders for all partitions and what goes beside them (scheduler, index, archive, sweep, probe, console),
        while the block lasts."""
        tasks = [asyncio.create_task(keep_at_it(self.decider, p)) for p in range(self.broker.partitions)]
        tasks += [asyncio.create_task(self.sweeper.work()), asyncio.create_task(self.keep_probing())]
        tasks += [asyncio.create_task(self.archiver.work()), asyncio.create_task(self.lost_nodes.work())]
        tasks += [asyncio.create_task(self.scheduler.work()), asyncio.create_task(self.key_store.work())]
        tasks += [asyncio.create_task(self.node_policies.work()), asyncio.create_task(self.adjudicator.work())]
        try:
            async with self.index.working(), self.desk.working():
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def keep_at_it(decider: Decider, partition: int) -> None:
    """Serve a partition until cancelled. A broker that is away comes back; a fault of ours is written down, and is no
    reason to leave all other runs alone."""
    log = structlog.get_logger(partition=partition)
    pause = PAUSE_SECONDS
    while True:
        began = time.monotonic()
        try:
            await decider.work(partition)
        except FumehoodError as error:
            log.warning("decider.interrupted", code=error.code, detail=error.detail)
        except Exception:
            log.exception("decider.failed")
        if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
            pause = PAUSE_SECONDS
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
