"""`python -m bench.engine_process ROLE`: one side's process. A decider, the bare loop, or a worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop

from bench.child import Answer, Begin, serve
from bench.engine_bare import BareLoop
from bench.engine_wire import PATIENT, Login, Wire
from bench.engine_worker import Worker
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.topology import Shape, Timing
from fumehood.control.decider import Decider
from fumehood.errors import BrokerError, BrokerUnavailableError


async def decider(document: dict[str, Any]) -> Answer:
    login = Login.read(document)
    options = ConnectionOptions(
        login.servers, user=login.user, password=login.password, inbox_prefix=login.inbox_prefix
    )
    given = dict(document["shape"])
    shape = Shape(**{**given, "timing": Timing(**given["timing"])})
    broker = await _opened(options, shape)
    decider = Decider(broker, now_ms=lambda: time.time_ns() // 1_000_000)
    loops = [asyncio.create_task(_serve(decider, number)) for number in range(shape.partitions)]

    def answer() -> dict[str, Any]:
        for loop in loops:
            if loop.done():
                loop.result()
        counters = decider.counters
        return {
            "decisions": counters.decisions,
            "conflicts": counters.conflicts,
            "rederived": counters.rederived,
            "refused": counters.refused,
            "ignored": dict(counters.ignored),
            "journal": dict(broker.journal.counts),
        }

    return answer


async def _opened(options: ConnectionOptions, shape: Shape) -> NatsBroker:
    """A cluster in trouble may have no leader right now."""
    while True:
        try:
            return await NatsBroker.open(options, shape)
        except BrokerUnavailableError:
            await asyncio.sleep(0.2)


async def _serve(decider: Decider, partition: int) -> None:
    while True:
        try:
            await decider.work(partition)
        except BrokerError:
            await asyncio.sleep(0.5)


async def bare(document: dict[str, Any]) -> Answer:
    loop = BareLoop(await Wire.open(Login.read(document), overdue=PATIENT))
    await loop.start()
    return lambda: {"decisions": loop.decisions}


async def worker(document: dict[str, Any]) -> Answer:
    wire = await Wire.open(Login.read(document))
    made = Worker(wire)
    await made.start()

    def answer() -> dict[str, Any]:
        hops, made.hops = made.hops, []
        return {"handled": made.handled, "again": made.again, "lost": wire.lost, "hops": hops}

    return answer


ROLES: dict[str, Begin] = {"decider": decider, "bare": bare, "worker": worker}


if __name__ == "__main__":
    uvloop.run(serve(ROLES))
