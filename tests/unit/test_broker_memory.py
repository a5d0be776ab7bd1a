"""The in-memory broker under an injected clock and injected faults: what a simulation stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fumehood.broker.clock import ManualClock
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Broker, Bucket, ChangeKind
from fumehood.errors import BrokerUnavailableError


class Scripted(Faults):
    """Verdicts and arrivals as the test lists them, then nothing wrong."""

    def __init__(self) -> None:
        self.verdicts: dict[str, list[Verdict]] = {}
        self.copies: list[Sequence[float]] = []
        self.backwards = False

    async def call(self, operation: str, subject: str) -> Verdict:
        waiting = self.verdicts.get(operation)
        return waiting.pop(0) if waiting else Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> Sequence[float]:
        return self.copies.pop(0) if self.copies else (0.0,)

    def order(self, consumer: str, waiting: int) -> Sequence[int]:
        return range(waiting)[::-1] if self.backwards else range(waiting)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults() -> Scripted:
    return Scripted()


@pytest.fixture
def broker(clock: ManualClock, faults: Scripted) -> MemoryBroker:
    return MemoryBroker(MemoryServer(clock, partitions=4), faults=faults)


async def ids(broker: MemoryBroker, run: str = "run") -> list[str]:
    found = await broker.feed.pull(broker.partition_of(run), max_messages=10, timeout=0)
    return [delivery.message_id for delivery in found]


def test_the_double_is_a_broker(broker: MemoryBroker) -> None:
    """Checked by the type checker; this line is what it checks."""
    typed: Broker = broker
    assert typed.partitions == 4


async def test_a_month_passes_between_two_lines(clock: ManualClock, broker: MemoryBroker) -> None:
    month = 30 * 86_400
    await broker.timers.set("run", "t", int((clock.now() + month) * 1000), "fired", b"")
    clock.advance(month - 1)
    assert await ids(broker) == []
    clock.advance(1)
    assert await ids(broker) == ["fired"]


async def test_a_pull_wakes_when_the_clock_reaches_its_end(clock: ManualClock, broker: MemoryBroker) -> None:
    pull = asyncio.create_task(broker.feed.pull(0, max_messages=1, timeout=5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not pull.done()
    clock.advance(0.1)
    assert await pull == []


async def test_a_pull_wakes_for_a_redelivery(clock: ManualClock, broker: MemoryBroker) -> None:
    await broker.mailboxes.send("run", "m", b"")
    assert await ids(broker) == ["m"]
    pull = asyncio.create_task(broker.feed.pull(broker.partition_of("run"), max_messages=1, timeout=3600))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.advance(30)
    assert [delivery.deliveries for delivery in await pull] == [2]


async def test_a_lost_call_did_nothing_and_an_unanswered_one_did(broker: MemoryBroker, faults: Scripted) -> None:
    faults.verdicts["journal.append"] = [Verdict.LOST, Verdict.UNANSWERED]
    for stored in (0, 1):
        with pytest.raises(BrokerUnavailableError):
            await broker.journal.append("run", "a", b"", expected=0)
        assert len(await broker.journal.read("run")) == stored
    assert await broker.journal.append("run", "a", b"", expected=0) == 1


async def test_a_delivery_can_be_late_doubled_lost_and_out_of_order(
    clock: ManualClock, broker: MemoryBroker, faults: Scripted
) -> None:
    for name in ("late", "twice", "lost"):
        await broker.mailboxes.send("run", name, b"")
    faults.copies = [(2.5,), (0.0, 0.0), ()]
    assert await ids(broker) == ["twice", "twice"]
    clock.advance(2.5)
    assert await ids(broker) == ["late"]
    faults.backwards = True
    clock.advance(30)
    assert await ids(broker) == ["lost", "twice", "late"]


async def test_faults_belong_to_one_connection(broker: MemoryBroker, faults: Scripted) -> None:
    faults.verdicts["mailboxes.send"] = [Verdict.LOST]
    await MemoryBroker(broker.server).mailboxes.send("run", "m", b"")
    with pytest.raises(BrokerUnavailableError):
        await broker.mailboxes.send("run", "n", b"")
    assert await ids(broker) == ["m"]


async def test_a_lost_ack_means_a_redelivery(clock: ManualClock, broker: MemoryBroker, faults: Scripted) -> None:
    await broker.mailboxes.send("run", "m", b"")
    (delivery,) = await broker.feed.pull(broker.partition_of("run"), max_messages=1, timeout=0)
    faults.verdicts["feed.ack"] = [Verdict.LOST]
    with pytest.raises(BrokerUnavailableError):
        await delivery.ack()
    clock.advance(30)
    assert await ids(broker) == ["m"]


async def test_duplicate_windows_end(clock: ManualClock, broker: MemoryBroker) -> None:
    assert not (await broker.mailboxes.send("run", "m", b"")).duplicate
    clock.advance(119)
    assert (await broker.mailboxes.send("run", "m", b"")).duplicate
    clock.advance(1)
    assert not (await broker.mailboxes.send("run", "m", b"")).duplicate


async def test_a_registration_lives_for_a_minute(clock: ManualClock, broker: MemoryBroker) -> None:
    workers = broker.bucket(Bucket.WORKERS)
    watch = workers.watch()
    assert (await anext(watch)).kind is ChangeKind.CAUGHT_UP
    await workers.put("w", b"{}")
    clock.advance(59)
    await workers.put("w", b"{}")
    clock.advance(59)
    assert await workers.keys() == ["w"]
    clock.advance(1)
    assert await workers.get("w") is None
    assert [(await anext(watch)).kind for _ in range(3)] == [ChangeKind.PUT, ChangeKind.PUT, ChangeKind.EXPIRE]


async def test_equal_inputs_give_equal_runs() -> None:
    async def story() -> list[tuple[str, int]]:
        clock = ManualClock()
        broker = MemoryBroker(MemoryServer(clock))
        for number in range(20):
            await broker.timers.set("run", f"t{number}", int(clock.now() * 1000) + number % 3, f"m{number}", b"")
        clock.advance(1)
        found = await broker.feed.pull(0, max_messages=100, timeout=0)
        return [(delivery.message_id, delivery.seq) for delivery in found]

    assert await story() == await story()
