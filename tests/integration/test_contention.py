"""Concurrency keys and rate limits on the real broker, where servers meet on one key all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket
from fumehood.broker.topology import GIB, Shape
from fumehood.control.contended import Contended
from fumehood.control.locks import Answer, Locks, Who, name_of
from fumehood.control.rates import Rates, parse
from tests.conformance.broker_bench import NatsServer
from tests.conftest import TimeBounds

SERVERS = 8
EACH = 20
"""What each server does on the one key."""
STORM = 3.0
"""Refusals for each change that are still no storm: seen are 0.3 to 0.7; without pauses seven of eight come second."""


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[NatsBroker]]:
    server = NatsServer(tmp_path / "nats", 1)
    server.start()
    try:
        async with AsyncExitStack() as stack:
            opened = [await NatsBroker.open(server.options(), Shape(storage=4 * GIB)) for _ in range(SERVERS)]
            for broker in opened:
                stack.push_async_callback(broker.close)
            yield opened
    finally:
        server.kill()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def told(what: str, shared: list[Contended], began: float, changes: int) -> float:
    """Refusals for each change."""
    refusals = sum(one.refusals for one in shared)
    print(f"{what}: {changes} changes by {SERVERS} servers in {time.monotonic() - began:.2f} s, {refusals} refused")
    return refusals / changes


async def test_servers_that_reserve_at_once_keep_the_rate_and_make_no_storm(
    brokers: list[NatsBroker], time_bounds: TimeBounds
) -> None:
    limit = parse("100/s", 5)
    shared = [Contended(broker.bucket(Bucket.RATES)) for broker in brokers]
    servers = [Rates(broker, now_ms=now_ms, contended=one) for broker, one in zip(brokers, shared, strict=True)]
    await servers[0].set("llm.large", limit)

    async def use(rates: Rates) -> list[int]:
        found = [await rates.reserve("llm.large", 2) for _ in range(EACH)]
        return [slot.at_ms for slots in found for slot in slots or ()]

    began = time.monotonic()
    slots = sorted(slot for found in await asyncio.gather(*map(use, servers)) for slot in found)
    time_bounds.check(told("rates", shared, began, SERVERS * EACH), STORM, "refusals for each change")
    assert len(slots) == 2 * SERVERS * EACH
    for begin, first in enumerate(slots):
        for count, last in enumerate(slots[begin:], 1):
            assert count <= limit.burst + (last - first) * limit.count / limit.per_ms + 1


async def test_servers_that_ask_at_once_never_hold_a_lock_together(
    brokers: list[NatsBroker], time_bounds: TimeBounds
) -> None:
    shared = [Contended(broker.bucket(Bucket.LOCKS)) for broker in brokers]
    servers = [Locks(broker, one) for broker, one in zip(brokers, shared, strict=True)]
    name, limit = name_of("default", "w", "customer-7"), 3
    turns: dict[Who, asyncio.Event] = {}
    held: set[Who] = set()
    full = asyncio.Event()
    """Set when the lock has as many holders as it allows; no holder releases it before that."""

    async def run(locks: Locks, who: Who) -> None:
        turns[who] = asyncio.Event()
        if await locks.ask(name, who, limit, queue=True) is Answer.WAITING:
            await turns[who].wait()
        held.add(who)
        assert len(held) <= limit
        if len(held) == limit:
            full.set()
        assert await locks.where(name, who) is Answer.GRANTED
        await full.wait()
        held.remove(who)
        for one in await locks.leave(name, who, limit):
            turns[one].set()

    began = time.monotonic()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(SERVERS * EACH):
            group.create_task(run(servers[number % SERVERS], Who(f"run-{number}")))
    time_bounds.check(told("locks", shared, began, 2 * SERVERS * EACH), STORM, "refusals for each change")
    assert await brokers[0].bucket(Bucket.LOCKS).keys() == []
