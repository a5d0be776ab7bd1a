"""`python -m bench.engine_process ROLE`: one side's process. A decider, the bare loop, or a worker.

The first line of standard input is a JSON document with what it needs (no password is ever an argument); it answers
`ready`. Each further line is a question that is answered by one line of JSON; the end of the input is the end of the
process, so that nothing outlives whoever started it. With `profile` in the document, processor time is sampled and
written there.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from bench.engine_bare import BareLoop
from bench.engine_sampling import Sampler
from bench.engine_wire import PATIENT, Login, Wire
from bench.engine_worker import Worker
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.broker.topology import Shape, Timing
from fumehood.cli.serving import calm_collector
from fumehood.control.decider import Decider
from fumehood.errors import BrokerError, BrokerUnavailableError

Answer = Callable[[], dict[str, Any]]
Begin = Callable[[dict[str, Any]], Awaitable[Answer]]


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


async def serve(role: str) -> None:
    reader = asyncio.StreamReader(limit=1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    document = json.loads(await reader.readline())
    answer = await ROLES[role](document)
    calm_collector()  # as a server does; both sides
    sampler = Sampler() if document.get("profile") else None
    _say({"ready": True})
    while await reader.readline():
        used = resource.getrusage(resource.RUSAGE_SELF)
        _say({"cpu": used.ru_utime + used.ru_stime, **answer()})
    if sampler is not None:
        sampler.write(document["profile"])


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
