"""Our side: what `python -m bench engine` starts (a decider, a worker and a nats-server), with answers compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from bench.child import Child
from bench.engine_wire import PATIENT, Login, Wire
from bench.engine_work import OUTPUT, STEPS, TASK_TYPE
from bench.engine_world import Driver, document, folder, login, open_broker
from bench.sessions_world import cpu_seconds
from bench.steps.rows import OURS, OURS_SDK, Mode
from bench.world import BenchError
from fumehood.broker.topology import GIB, Shape
from tests.conformance.broker_bench import WORKER, NatsServer

ENDED = b'"run.succeeded"'
ANSWER = b'"output":{"s%d":%b}' % (STEPS - 1, json.dumps(OUTPUT, separators=(",", ":")).encode())
"""What the record that ends a run says of its last step."""
WORKERS = {OURS: "bench.engine_process", OURS_SDK: "bench.steps.worker_process"}
"""The modules whose role `worker` does the tasks."""


def is_wrong(record: bytes) -> bool:
    """It ends a run, and not with what the last step gave."""
    return ENDED in record and ANSWER not in record.partition(ENDED)[2]


class CheckedDriver(Driver):
    """Looks at every answer."""

    wrong = 0

    async def _appended(self, message: Msg) -> None:
        self.wrong += is_wrong(message.data)
        await super()._appended(message)


@dataclass(frozen=True, slots=True)
class Ours:
    name: str
    driver: CheckedDriver
    pids: Mapping[str, int] = field(default_factory=dict)
    """By what they are."""

    async def many(self, runs: int, at_once: int) -> float:
        seconds = await self.driver.many(runs, at_once)
        if self.driver.wrong:
            raise BenchError(f"{self.name}: {self.driver.wrong} wrong answers")
        return seconds

    async def alone(self, runs: int) -> list[float]:
        found = []
        for _ in range(runs):
            began = time.perf_counter()
            await self.many(1, 1)
            found.append(time.perf_counter() - began)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        return {**{what: cpu_seconds(pid) for what, pid in self.pids.items()}, "driver": time.process_time()}


@contextlib.asynccontextmanager
async def ours(name: str, mode: Mode, at_once: int) -> AsyncIterator[Ours]:
    """One replica. `name`: with the worker of which of our rows."""
    shape = Shape(1, storage=4 * GIB)
    async with contextlib.AsyncExitStack() as stack:
        path = await stack.enter_async_context(folder())
        nats = NatsServer(path / "nats", 1, sync_always=mode.sync_always)
        stack.callback(nats.kill)
        await asyncio.to_thread(nats.start)
        broker = await open_broker(nats.options(), shape)
        await broker.tasks.consumer(TASK_TYPE)
        await broker.close()
        wire = await Wire.open(Login.read(login(nats.options())), overdue=PATIENT)
        stack.push_async_callback(wire.close)

        async def child(role: str, given: dict[str, Any], module: str) -> Child:
            made = await Child.start(role, given, module)
            stack.push_async_callback(made.stop)
            return made

        decider = await child("decider", document(nats.options(), shape), WORKERS[OURS])
        told = {**document(nats.options(WORKER), shape), "at_once": at_once}
        worker = await child("worker", told, WORKERS[name])
        driver = CheckedDriver(wire, "our")
        await driver.listen()
        assert nats._process is not None
        yield Ours(name, driver, {"decider": decider.pid, "worker": worker.pid, "nats-server": nats._process.pid})
