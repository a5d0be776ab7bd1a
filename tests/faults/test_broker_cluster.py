"""Three servers, three replicas, and the leader of the runs killed under load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.topology import GIB, LOG_STREAM, Shape, Timing
from fumehood.errors import BrokerUnavailableError, JournalConflictError, KeyConflictError
from tests.conformance.broker_bench import NatsCluster, fresh
from tests.waiting import until

SHAPE = Shape(1, replicas=3, storage=4 * GIB, timing=Timing(feed_ack_wait=5.0, pin_timeout=1.0, task_ack_wait=5.0))

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    made = NatsCluster(tmp_path, 1)
    await asyncio.to_thread(made.start)
    yield made
    made.kill()


async def open_broker(cluster: NatsCluster) -> NatsBroker:
    """A cluster that has just started has no leader yet; `open` may give up before it has."""

    async def attempt() -> NatsBroker | None:
        with contextlib.suppress(BrokerUnavailableError):
            return await NatsBroker.open(cluster.options(), SHAPE)
        return None

    broker = await until(attempt, 90)
    assert broker is not None
    return broker


class Load:
    """Writers that contend for one journal, and messages from inbox to feed."""

    def __init__(self, one: NatsBroker, two: NatsBroker) -> None:
        self.run, self.one, self.two = fresh(), one, two
        self.appended: set[str] = set()
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.stop = asyncio.Event()

    async def append(self, broker: NatsBroker, name: str) -> None:
        number = 0
        while not self.stop.is_set():
            with contextlib.suppress(JournalConflictError, BrokerUnavailableError):
                entry = await broker.journal.last(self.run)
                await broker.journal.append(self.run, f"{name}{number}", b"", expected=entry.seq if entry else 0)
                self.appended.add(f"{name}{number}")
            number += 1

    async def send(self) -> None:
        while not self.stop.is_set():
            name = f"m{len(self.sent)}"
            with contextlib.suppress(BrokerUnavailableError):
                await self.one.mailboxes.send(self.run, name, b"")
                self.sent.add(name)

    async def receive(self, broker: NatsBroker) -> None:
        while not (self.stop.is_set() and self.sent <= self.received):
            for delivery in await broker.feed.pull(0, max_messages=100, timeout=0.2):
                self.received.add(delivery.message_id)
                await delivery.ack()

    def progress(self) -> int:
        return min(len(self.appended), len(self.received))


@pytest.mark.storm
async def test_nothing_is_lost_or_doubled_when_the_leader_is_killed(cluster: NatsCluster) -> None:
    one, two = await open_broker(cluster), await open_broker(cluster)
    load = Load(one, two)
    working = [
        asyncio.create_task(work)
        for work in (load.append(one, "a"), load.append(two, "b"), load.send(), load.receive(one), load.receive(two))
    ]

    async def more(than: int) -> None:
        async def grown() -> bool:
            return load.progress() > than

        await until(grown, 90)

    await more(50)
    leader = await cluster.leader(one, "RUN_0")
    leader.kill()
    await more(load.progress() + 50)
    await asyncio.to_thread(leader.start)
    await more(load.progress() + 20)
    load.stop.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*working)
    stored = [entry.record_id for entry in await one.journal.read(load.run)]
    print(
        f"appended {len(load.appended)}, sent {len(load.sent)}; {dict(one.journal.counts)} {dict(two.journal.counts)}"
    )
    assert len(stored) == len(set(stored))
    assert load.appended <= set(stored)
    assert load.sent <= load.received
    await one.close()
    await two.close()


@pytest.mark.storm
async def test_a_replicated_broker_keeps_the_promises(cluster: NatsCluster) -> None:
    """Where one replica and three answer differently: repetitions, contention, reads right after writes."""
    broker = await open_broker(cluster)
    run, last = fresh(), 0
    told: list[None] = []
    async with broker.journal.follow(0, lambda: told.append(None)):
        for number in range(100):
            last = await broker.journal.append(run, f"r{number}", b"", expected=last)
            assert len(await broker.journal.read(run)) == number + 1, "a stale read"
        await until(lambda: len(told) >= 100)
        assert len(told) <= 101, "one replica tells of a record, and followers are notified once without one"
    assert await broker.journal.append(run, "r99", b"", expected=(await broker.journal.read(run))[-2].seq) == last
    contended = fresh()
    appends = [broker.journal.append(contended, f"r{n}", b"", expected=0) for n in range(20)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["JournalConflictError"] * 19 + ["int"]
    leases = broker.bucket(Bucket.LEASES)
    creates = await asyncio.gather(*(leases.create(run, b"%d" % n) for n in range(10)), return_exceptions=True)
    assert sum(isinstance(made, KeyConflictError) for made in creates) == 9
    first, again = [await broker.mailboxes.send(run, "m", b"") for _ in range(2)]
    assert (again.duplicate, again.seq) == (True, first.seq)
    data = b"x" * 1_000_000
    assert await broker.blobs().get(await broker.blobs().put(data), limit=len(data)) == data
    await broker.close()


@pytest.mark.storm
async def test_servers_start_while_the_only_holder_of_the_output_is_away(cluster: NatsCluster) -> None:
    """What sandboxes print lies on one machine: without it nothing is printed, and everything else goes on."""
    broker = await open_broker(cluster)
    name, record = LogName(fresh(), "run", 1), LogRecord(LogKind.START, LogPlace(), b"{}")
    await broker.logs.append(name, record)
    holder = await cluster.leader(broker, LOG_STREAM)
    holder.kill()
    another = await open_broker(cluster)
    try:
        assert [(drift.stream, drift.setting) for drift in another.report.drift] == [(LOG_STREAM, "state")]
        with pytest.raises(BrokerUnavailableError):
            await another.logs.last(name)
        await another.journal.append(fresh(), "r", b"", expected=0)
        await asyncio.to_thread(holder.start)

        async def is_back() -> bool:
            with contextlib.suppress(BrokerUnavailableError):
                return await another.logs.last(name) is not None
            return False

        await until(is_back, 90)
        await another.logs.append(name, LogRecord(LogKind.END))
        assert len(await another.logs.read(name)) == 2
    finally:
        await another.close()
        await broker.close()
