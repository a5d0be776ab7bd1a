"""What every broker does, in memory or on a real nats-server, with one partition and with four.

The names read as the specification of `fumehood.broker.ports`. Real servers only: permissions, topology, restarts
(`tests/faults/test_broker_restart.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fumehood.broker import notifications, sealed
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection, NoRespondersError
from fumehood.broker.memory import MemoryServer
from fumehood.broker.ports import Broker, Bucket, ChangeKind, Entry, KvChange, MessageKind, TaskDelivery
from fumehood.broker.topology import AUDIT_BYTES, AUDIT_STREAM, AUDIT_SUBJECT, BUCKET_SPECS, GIB, MIB, Shape, streams
from fumehood.errors import (
    BlobNotFoundError,
    BrokerDeniedError,
    BrokerError,
    InvalidRequestError,
    JournalConflictError,
    KeyConflictError,
    PayloadTooLargeError,
)
from tests.conformance.broker_bench import BRIDGE, TIMING, WORKER, Cell, NatsServer, counted, fresh, persist, receive
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.waiting import PATIENCE, past, until


@pytest.fixture(scope="session")
def nats_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, NatsServer]]:
    """One server for each number of partitions."""
    servers = {partitions: NatsServer(tmp_path_factory.mktemp("nats"), partitions) for partitions in (1, 4)}
    for server in servers.values():
        server.start()
    yield servers
    for server in servers.values():
        server.kill()


VARIANT = pytest.mark.variant


@pytest.fixture(params=["memory-1", "nats-4", *(pytest.param(kind, marks=VARIANT) for kind in ("memory-4", "nats-1"))])
async def cell(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    kind, _, number = request.param.partition("-")
    if kind == "memory":
        made = Cell(int(number), None, MemoryServer(partitions=int(number), timing=TIMING))
    else:
        made = Cell(int(number), request.getfixturevalue("nats_servers")[int(number)], None)
    yield made
    await made.close()


@pytest.fixture
async def broker(cell: Cell) -> Broker:
    return await cell.open()


# --- journal -----------------------------------------------------------------------------------------------


async def test_an_empty_journal_is_empty(broker: Broker) -> None:
    run = fresh()
    assert await broker.journal.read(run) == []
    assert await broker.journal.last(run) is None


async def test_records_come_back_in_order(broker: Broker) -> None:
    run, last = fresh(), 0
    for number in range(5):
        last = await broker.journal.append(run, f"r{number}", f"data {number}".encode(), expected=last)
    entries = await broker.journal.read(run)
    assert [(entry.record_id, entry.data) for entry in entries] == [(f"r{n}", f"data {n}".encode()) for n in range(5)]
    assert entries[-1].seq == last
    assert await broker.journal.last(run) == entries[-1]
    assert await broker.journal.read(run, after=entries[2].seq) == entries[3:]


async def test_a_journal_longer_than_one_batch_is_read_whole(broker: Broker) -> None:
    run, last = fresh(), 0
    for number in range(600):
        last = await broker.journal.append(run, f"r{number}", b"", expected=last)
    assert [entry.record_id for entry in await broker.journal.read(run)] == [f"r{n}" for n in range(600)]
    assert [entry.record_id for entry in await broker.journal.read(run, limit=550)] == [f"r{n}" for n in range(550)]


async def test_a_journal_is_read_page_by_page(broker: Broker) -> None:
    run, last = fresh(), 0
    for number in range(7):
        last = await broker.journal.append(run, f"r{number}", b"", expected=last)
    whole = await broker.journal.read(run)
    for limit in (1, 3, 7, 8):
        found: list[Entry] = []
        while page := await broker.journal.read(run, after=found[-1].seq if found else 0, limit=limit):
            found += page
            assert len(page) == min(limit, 7 - len(found) + len(page)), "fewer only at the end"
        assert found == whole


async def test_what_is_not_ours_takes_no_place_on_a_page(nats_servers: dict[int, NatsServer]) -> None:
    server = await NatsBroker.open(nats_servers[1].options(), Shape(1, storage=4 * GIB, timing=TIMING))
    run, last = fresh(), 0
    for number in range(4):
        for _ in range(3):
            await forge(server, f"journal.0.{run}", fresh("foreign"), "")
        last = await server.journal.append(run, f"r{number}", b"", expected=last)
    assert [entry.record_id for entry in await server.journal.read(run, limit=2)] == ["r0", "r1"]
    assert [entry.record_id for entry in await server.journal.read(run, limit=5)] == ["r0", "r1", "r2", "r3"]
    await server.close()


async def test_journals_of_two_runs_do_not_meet(broker: Broker) -> None:
    one, two = fresh(), fresh()
    await broker.journal.append(one, "a", b"1", expected=0)
    await broker.journal.append(two, "a", b"2", expected=0)
    assert [entry.data for entry in await broker.journal.read(one)] == [b"1"]


async def test_the_second_to_append_is_told(broker: Broker) -> None:
    run = fresh()
    first = await broker.journal.append(run, "a", b"1", expected=0)
    with pytest.raises(JournalConflictError):
        await broker.journal.append(run, "b", b"2", expected=0)
    await broker.journal.append(run, "b", b"2", expected=first)
    with pytest.raises(JournalConflictError):
        await broker.journal.append(run, "c", b"3", expected=first)
    assert [entry.record_id for entry in await broker.journal.read(run)] == ["a", "b"]


async def test_of_twenty_at_once_one_appends(cell: Cell) -> None:
    run, brokers = fresh(), [await cell.open() for _ in range(2)]
    appends = [brokers[n % 2].journal.append(run, f"r{n}", b"", expected=0) for n in range(20)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert Counter(type(result) for result in results) == {int: 1, JournalConflictError: 19}
    assert len(await brokers[0].journal.read(run)) == 1


async def test_an_append_whose_answer_was_lost_is_stored_once(cell: Cell, broker: Broker) -> None:
    run = fresh()
    cell.lose_answer(broker, "journal.append")
    seq = await persist(lambda: broker.journal.append(run, "a", b"1", expected=0))
    assert [(entry.seq, entry.record_id) for entry in await broker.journal.read(run)] == [(seq, "a")]


async def test_a_lost_answer_is_found_behind_somebody_elses_record(cell: Cell, broker: Broker) -> None:
    run = fresh()
    first = await broker.journal.append(run, "a", b"1", expected=0)
    await broker.journal.append(run, "b", b"2", expected=first)
    assert await broker.journal.append(run, "a", b"1", expected=0) == first


async def test_the_same_record_id_with_other_data_is_a_conflict(broker: Broker) -> None:
    run = fresh()
    await broker.journal.append(run, "a", b"1", expected=0)
    with pytest.raises(JournalConflictError):
        await broker.journal.append(run, "a", b"other", expected=0)


async def test_a_purged_run_leaves_nothing(broker: Broker) -> None:
    run = fresh()
    await broker.journal.append(run, "a", b"1", expected=0)
    await broker.mailboxes.send(run, "m", b"")
    await broker.timers.set(run, "t", _in(3600), "fired", b"")
    await broker.journal.purge(run, upto=await broker.journal.tip(broker.partition_of(run)))
    assert await broker.journal.read(run) == []
    assert await broker.journal.last(run) is None
    assert await broker.mailboxes.last(run) is None
    assert await broker.timers.pending(run) == []
    await broker.journal.append(run, "again", b"", expected=0)


async def test_what_came_after_a_purged_record_stays(broker: Broker) -> None:
    run, other = fresh(), fresh()
    await broker.mailboxes.send(run, "old", b"old")
    await broker.timers.set(run, "old", _in(3600), "fired", b"")
    first = await broker.journal.append(run, "a", b"1", expected=0)
    await broker.journal.append(other, "a", b"1", expected=0)
    second = await broker.journal.append(run, "b", b"2", expected=first)
    await broker.mailboxes.send(run, "new", b"new")
    await broker.timers.set(run, "new", _in(3600), "fired", b"")
    third = await broker.journal.append(run, "c", b"3", expected=second)
    for _ in range(2):
        await broker.journal.purge(run, upto=second)
        assert await broker.journal.read(run) == [Entry(third, "c", b"3")]
        assert [timer.timer_id for timer in await broker.timers.pending(run)] == ["new"]
    await broker.journal.append(run, "d", b"4", expected=third)
    assert [delivery.message_id for delivery in await receive(broker, run)] == ["new"]
    assert len(await broker.journal.read(other)) == 1


async def test_a_decider_that_has_not_noticed_a_purge_is_refused(broker: Broker) -> None:
    run = fresh()
    first = await broker.journal.append(run, "a", b"1", expected=0)
    await broker.journal.purge(run, upto=first)
    with pytest.raises(JournalConflictError):
        await broker.journal.append(run, "b", b"2", expected=first)
    second = await broker.journal.append(run, "b", b"2", expected=0)
    assert await broker.journal.read(run) == [Entry(second, "b", b"2")]


async def follow(broker: Broker, partition: int, after: int, limit: int) -> list[tuple[str, Entry]]:
    """All there is behind a number, page by page, as a reader would."""
    found: list[tuple[str, Entry]] = []
    while page := await broker.journal.tail(partition, after=after, limit=limit):
        assert len(page) <= limit
        found += page
        after = page[-1][1].seq
    return found


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_the_records_of_all_runs_are_followed_in_order(broker: Broker, limit: int) -> None:
    tips = [await broker.journal.tip(p) for p in range(broker.partitions)]
    stored: dict[int, list[tuple[str, Entry]]] = {p: [] for p in range(broker.partitions)}
    runs, last = [fresh() for _ in range(4)], Counter[str]()
    for number in range(12):
        run = runs[number % 4]
        await broker.mailboxes.send(run, f"m{number}", b"")
        await broker.timers.set(run, f"t{number}", _in(3600), "fired", b"")
        data = f"data {number}".encode()
        last[run] = await broker.journal.append(run, f"r{number}", data, expected=last[run])
        stored[broker.partition_of(run)].append((run, Entry(last[run], f"r{number}", data)))
    for partition, records in stored.items():
        assert await follow(broker, partition, tips[partition], limit) == records
        assert all(entry.seq > tips[partition] for _, entry in records)
        for index, (_, entry) in enumerate(records):
            assert await follow(broker, partition, entry.seq, limit) == records[index + 1 :]


async def test_behind_the_tip_there_is_nothing_yet(broker: Broker) -> None:
    for partition in range(broker.partitions):
        tip = await broker.journal.tip(partition)
        assert await broker.journal.tail(partition, after=tip, limit=10) == []
    run = fresh()
    partition = broker.partition_of(run)
    tip = await broker.journal.tip(partition)
    await broker.mailboxes.send(run, "m", b"")
    assert await broker.journal.tail(partition, after=tip, limit=10) == []
    seq = await broker.journal.append(run, "a", b"1", expected=0)
    assert await broker.journal.tail(partition, after=tip, limit=10) == [(run, Entry(seq, "a", b"1"))]
    assert await broker.journal.tip(partition) >= seq


async def test_followers_of_a_journal_are_notified(cell: Cell, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "SECOND_LOOK_SECONDS", 3600.0)
    run, bell, last = fresh(), asyncio.Event(), 0
    partition, writer = broker.partition_of(run), await cell.open()
    async with broker.journal.follow(partition, bell.set):
        tip = await broker.journal.tip(partition)  # after this answer, the server knows who listens
        for number in range(3):
            last = await writer.journal.append(run, f"r{number}", b"1", expected=last)
            async with asyncio.timeout(PATIENCE):
                await bell.wait()
            bell.clear()
        assert len(await broker.journal.tail(partition, after=tip, limit=10)) == 3
    await writer.journal.append(run, "r3", b"1", expected=last)
    await broker.journal.tip(partition)
    assert not bell.is_set(), "who has left is not notified"


async def test_a_record_that_no_stream_takes_is_refused_at_once_while_it_is_followed(
    nats_servers: dict[int, NatsServer],
) -> None:
    """As when a stream has no leader: a follower must not make its writers wait for an answer that will not come."""
    server = await NatsBroker.open(nats_servers[1].options(), Shape(1, storage=4 * GIB, timing=TIMING))
    try:
        async with server.journal.follow(7, lambda: None):  # a partition that this server does not have
            with pytest.raises(NoRespondersError):
                await server.connection.store("journal.7.a", b"", {})
    finally:
        await server.close()


async def test_whoever_follows_steps_over_runs_that_were_forgotten(broker: Broker) -> None:
    runs = [fresh() for _ in range(3)]
    while len({broker.partition_of(run) for run in runs}) > 1:
        runs = [fresh() for _ in range(3)]
    partition = broker.partition_of(runs[0])
    tip = await broker.journal.tip(partition)
    seqs = [await broker.journal.append(run, "a", b"", expected=0) for run in runs]
    await broker.journal.purge(runs[1], upto=seqs[1])
    found = await follow(broker, partition, tip, 1)
    assert [(run, entry.seq) for run, entry in found] == [(runs[0], seqs[0]), (runs[2], seqs[2])]
    assert await follow(broker, partition, seqs[0], 1) == found[1:]
    assert await follow(broker, partition, seqs[1], 1) == found[1:], "a cursor may name what is no longer there"


async def test_a_follower_is_not_held_up_by_what_no_server_wrote(
    nats_servers: dict[int, NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "BATCH", 3)
    monkeypatch.setattr(sealed, "FOREIGN_PAGES", 2)
    broker = await NatsBroker.open(nats_servers[1].options(), Shape(1, storage=4 * GIB, timing=TIMING))
    run, forged = fresh(), fresh()
    tip = await broker.journal.tip(0)
    try:
        for seal in ("", "0" * 64, "no text at all: \udcff"):
            await forge(broker, f"journal.0.{forged}", "r", seal)
        await forge(broker, f"journal.0.{forged}", "id \udcff", "0" * 64)
        assert await broker.journal.tail(0, after=tip, limit=1) == []
        seq = await broker.journal.append(run, "a", b"1", expected=0)
        assert await broker.journal.tail(0, after=tip, limit=1) == [(run, Entry(seq, "a", b"1"))]
        for number in range(20):
            await forge(broker, f"journal.0.{forged}", f"r{number}", "")
        behind = await broker.journal.append(run, "b", b"2", expected=seq)

        async def gets_through() -> list[tuple[str, Entry]]:
            return await broker.journal.tail(0, after=seq, limit=1)

        assert await gets_through() == [], "one call takes a bounded time"
        assert await until(gets_through) == [(run, Entry(behind, "b", b"2"))]
        assert [entry.seq for _, entry in await follow(broker, 0, tip, 100)] == [seq, behind]
    finally:
        await broker.close()


async def forge(broker: NatsBroker, subject: str, record_id: str, seal: str) -> None:
    """Something that is not ours, on a subject of ours. The client sends no header that is not UTF-8: a worker's
    could."""
    headers = f"NATS/1.0\r\n{sealed.ID}: {record_id}\r\n{sealed.SEAL}: {seal}\r\n\r\n"
    block = headers.encode(errors="surrogateescape")
    client = broker.connection._client
    await client._send_command(f"HPUB {subject} {len(block)} {len(block)}\r\n".encode() + block + b"\r\n")
    await client.flush()


@pytest.mark.parametrize("run", ["", "a.b", "a*", ">", "a b", "ä", "x" * 129, "a\r\nb"])
async def test_an_id_that_is_no_token_is_refused(broker: Broker, run: str) -> None:
    with pytest.raises(InvalidRequestError):
        await broker.journal.append(run, "a", b"", expected=0)
    with pytest.raises(InvalidRequestError):
        await broker.mailboxes.send(run, "m", b"")
    with pytest.raises(InvalidRequestError):
        await broker.histories.publish(run, "m", b"")
    with pytest.raises(InvalidRequestError):
        await broker.timers.set(run, "t", 0, "m", b"")
    with pytest.raises(InvalidRequestError):
        await broker.tasks.publish("type", run, "m", b"")


async def test_a_message_that_is_too_large_is_refused(broker: Broker) -> None:
    with pytest.raises(PayloadTooLargeError):
        await broker.mailboxes.send(fresh(), "m", b"x" * (4 * 1024 * 1024))


# --- inbox and history -------------------------------------------------------------------------------------


async def test_a_message_arrives_with_all_it_was_sent_with(broker: Broker) -> None:
    run = fresh()
    sent = await broker.mailboxes.send(run, "start", b"data", headers={"traceparent": "00-1-2-03"})
    (delivery,) = await receive(broker, run)
    assert (delivery.run_id, delivery.kind, delivery.message_id) == (run, MessageKind.INBOX, "start")
    assert (delivery.seq, delivery.data, delivery.deliveries) == (sent.seq, b"data", 1)
    assert delivery.headers == {"traceparent": "00-1-2-03"}
    assert delivery.identity == "start"


async def test_history_arrives_under_the_stored_messages_identity(broker: Broker) -> None:
    run = fresh()
    published = await broker.histories.publish(run, f"{run}.a.step.completed", b"{}")
    (delivery,) = await receive(broker, run)
    assert (delivery.kind, delivery.message_id) == (MessageKind.HISTORY, f"{run}.a.step.completed")
    assert delivery.identity == f"history.{published.seq}"


async def test_a_message_sent_twice_is_stored_once(broker: Broker) -> None:
    run = fresh()
    first = await broker.mailboxes.send(run, "m", b"1")
    again = await broker.mailboxes.send(run, "m", b"1")
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    await broker.mailboxes.send(run, "fence", b"")
    assert [delivery.message_id for delivery in await receive(broker, run, 2)] == ["m", "fence"]


async def test_the_last_message_is_there_whether_it_was_taken_or_not(broker: Broker) -> None:
    run = fresh()
    assert await broker.mailboxes.last(run) is None
    await broker.mailboxes.send(run, "m1", b"one")
    assert await broker.mailboxes.last(run) == b"one"
    await receive(broker, run)
    assert await broker.mailboxes.last(run) == b"one"
    await broker.mailboxes.send(run, "m2", b"two")
    assert await broker.mailboxes.last(run) == b"two"
    await broker.journal.purge(run, upto=await broker.journal.tip(broker.partition_of(run)))
    assert await broker.mailboxes.last(run) is None


async def test_messages_in_flight_come_again_whatever_run_is_forgotten_beside_them(broker: Broker) -> None:
    """A purge by subject would move the consumer's floor past them."""
    run = fresh()
    partition = broker.partition_of(run)
    others = [other for other in (fresh() for _ in range(200)) if broker.partition_of(other) == partition][:3]
    await broker.mailboxes.send(run, "in-flight", b"")
    (held,) = await receive(broker, run, ack=False)
    for number, other in enumerate(others):
        await broker.mailboxes.send(other, f"m{number}", b"")
        await receive(broker, other, ack=False)
        await broker.journal.purge(other, upto=await broker.journal.tip(partition))
    after = next(one for one in (fresh() for _ in range(200)) if broker.partition_of(one) == partition)
    await broker.mailboxes.send(after, "later", b"")
    await receive(broker, after)
    (again,) = await receive(broker, run)
    assert (again.message_id, again.deliveries) == (held.message_id, 2)


async def test_the_first_message_stays_the_first(broker: Broker) -> None:
    run, other = fresh(), fresh()
    assert await broker.mailboxes.first(run) is None
    await broker.mailboxes.send(other, "m0", b"another's")
    await broker.mailboxes.send(run, "m1", b"one")
    await receive(broker, run)
    await broker.mailboxes.send(run, "m2", b"two")
    assert await broker.mailboxes.first(run) == b"one"
    await broker.journal.purge(run, upto=await broker.journal.tip(broker.partition_of(run)))
    assert await broker.mailboxes.first(run) is None
    assert await broker.mailboxes.first(other) == b"another's"


async def test_the_same_message_id_in_two_runs_is_two_messages(broker: Broker) -> None:
    one, two = fresh(), fresh()
    assert not (await broker.mailboxes.send(one, "start", b"")).duplicate
    assert not (await broker.mailboxes.send(two, "start", b"")).duplicate


async def test_a_message_whose_answer_was_lost_is_stored_once(cell: Cell, broker: Broker) -> None:
    run = fresh()
    cell.lose_answer(broker, "mailboxes.send")
    await persist(lambda: broker.mailboxes.send(run, "m", b"1"))
    await broker.mailboxes.send(run, "fence", b"")
    assert [delivery.message_id for delivery in await receive(broker, run, 2)] == ["m", "fence"]


async def test_another_event_that_bears_the_same_id_is_not_dropped(broker: Broker) -> None:
    """Anybody could publish a worker's id first."""
    run = fresh()
    await broker.histories.publish(run, "id", b"first")
    again = await broker.histories.publish(run, "id", b"second")
    deliveries = await receive(broker, run, 2)
    assert [(delivery.message_id, delivery.data) for delivery in deliveries] == [("id", b"first"), ("id", b"second")]
    assert again.seq == deliveries[1].seq


async def test_a_history_id_is_free_again_after_the_window(broker: Broker) -> None:
    """A bare worker repeats the plain id at its second attempt."""
    run = fresh()

    async def is_free() -> bool:
        return not (await broker.histories.publish(run, "id", b"")).duplicate

    await is_free()
    await until(is_free)


# --- the deciders' feed ------------------------------------------------------------------------------------


async def test_a_pull_of_nothing_ends_in_time(broker: Broker, time_bounds: TimeBounds) -> None:
    run = fresh()
    await receive_nothing(broker, run)
    began = Watch()
    await broker.feed.pull(broker.partition_of(run), max_messages=1, timeout=0.2)
    time_bounds.check(began.seconds, PATIENCE)


async def receive_nothing(broker: Broker, run: str) -> None:
    """Whatever comes within a moment is not this run's."""
    for delivery in await broker.feed.pull(broker.partition_of(run), max_messages=64, timeout=0.2):
        assert delivery.run_id != run
        await delivery.ack()


async def test_what_is_not_acked_comes_again_and_what_is_does_not(broker: Broker) -> None:
    run = fresh()
    await broker.mailboxes.send(run, "kept", b"")
    await broker.mailboxes.send(run, "acked", b"")
    first = {delivery.message_id: delivery for delivery in await receive(broker, run, 2, ack=False)}
    await first["acked"].ack()
    (again,) = await receive(broker, run)
    assert (again.message_id, again.deliveries) == ("kept", 2)
    await broker.mailboxes.send(run, "fence", b"")
    assert [delivery.message_id for delivery in await receive(broker, run)] == ["fence"]


async def test_a_nak_brings_it_again_after_its_delay(broker: Broker) -> None:
    run = fresh()
    await broker.mailboxes.send(run, "m", b"")
    (first,) = await receive(broker, run, ack=False)
    began = time.monotonic()
    await first.nak(0.5)
    (again,) = await receive(broker, run)
    assert time.monotonic() - began >= 0.45
    assert again.deliveries == 2


async def test_what_a_dead_decider_held_comes_again(cell: Cell) -> None:
    run, dying = fresh(), await cell.open()
    await dying.mailboxes.send(run, "m", b"")
    await dying.histories.publish(run, "h", b"")
    await receive(dying, run, 2, ack=False)
    await cell.vanish(dying)
    again = await receive(await cell.open(), run, 2)
    assert {delivery.message_id for delivery in again} == {"m", "h"}


async def test_another_decider_takes_over(cell: Cell) -> None:
    """Two pull; one of them dies; what is sent then reaches the other."""
    run, one, two = fresh(), await cell.open(), await cell.open()
    p = one.partition_of(run)
    for broker in (one, two):
        for delivery in await broker.feed.pull(p, max_messages=64, timeout=0.3):
            await delivery.ack()
    await one.mailboxes.send(run, "before", b"")
    seen: set[str] = set()

    async def pull(broker: Broker) -> bool:
        for delivery in await broker.feed.pull(p, max_messages=64, timeout=0.1):
            if delivery.run_id == run:
                seen.add(delivery.message_id)
            await delivery.ack()
        return "before" in seen

    async def either() -> bool:
        return await pull(one) or await pull(two)

    await until(either)
    await cell.vanish(one)
    await two.mailboxes.send(run, "after", b"")
    assert [delivery.message_id for delivery in await receive(two, run)] == ["after"]


async def test_a_cancelled_pull_loses_nothing(broker: Broker) -> None:
    run = fresh()
    await receive_nothing(broker, run)
    pull = asyncio.create_task(broker.feed.pull(broker.partition_of(run), max_messages=8, timeout=PATIENCE))
    await asyncio.sleep(0)
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    await broker.mailboxes.send(run, "m", b"")
    assert len(await receive(broker, run)) == 1


async def test_a_released_partition_goes_to_another_decider(cell: Cell) -> None:
    run, one, two = fresh(), await cell.open(), await cell.open()
    await receive_nothing(one, run)
    await one.mailboxes.send(run, "m", b"")
    await one.feed.release(one.partition_of(run))
    assert len(await receive(two, run)) == 1


async def test_a_thousand_messages_of_one_run_all_arrive(broker: Broker) -> None:
    run = fresh()
    for start in range(0, 1000, 100):
        await asyncio.gather(*(broker.histories.publish(run, f"e{n}", b"") for n in range(start, start + 100)))
    seen: set[str] = set()
    end = time.monotonic() + PATIENCE
    while len(seen) < 1000 and time.monotonic() < end:
        for delivery in await broker.feed.pull(broker.partition_of(run), max_messages=200, timeout=1.0):
            seen |= {delivery.message_id} if delivery.run_id == run else set()
            await delivery.ack()
    assert len(seen) == 1000


# --- timers ------------------------------------------------------------------------------------------------


def _in(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


async def test_a_timer_is_never_early(broker: Broker) -> None:
    run, at = fresh(), _in(1.3)
    await broker.timers.set(run, "t", at, "fired", b"payload")
    (delivery,) = await receive(broker, run)
    assert time.time() * 1000 >= at
    assert (delivery.kind, delivery.message_id, delivery.data) == (MessageKind.INBOX, "fired", b"payload")
    assert await broker.timers.pending(run) == []


async def test_a_cancelled_timer_does_not_fire(broker: Broker) -> None:
    run = fresh()
    await broker.timers.set(run, "cancelled", _in(1.0), "no", b"")
    await broker.timers.set(run, "fence", _in(1.5), "yes", b"")
    await broker.timers.cancel(run, "cancelled")
    await broker.timers.cancel(run, "never-was")
    assert [delivery.message_id for delivery in await receive(broker, run)] == ["yes"]


async def test_a_timer_set_twice_fires_once(cell: Cell, broker: Broker) -> None:
    run, at = fresh(), _in(1.0)
    cell.lose_answer(broker, "timers.set")
    await persist(lambda: broker.timers.set(run, "t", at, "fired", b""))
    await broker.timers.set(run, "t", at, "fired", b"")
    await broker.timers.set(run, "fence", at + 500, "fence", b"")
    assert [delivery.message_id for delivery in await receive(broker, run, 2)] == ["fired", "fence"]


async def test_a_timer_in_the_past_fires_at_once(broker: Broker) -> None:
    run = fresh()
    await broker.timers.set(run, "t", _in(-3600), "fired", b"")
    assert len(await receive(broker, run)) == 1


async def test_pending_timers_are_listed(broker: Broker) -> None:
    run, at = fresh(), _in(3600)
    for name in ("b", "a"):
        await broker.timers.set(run, name, at, f"fired-{name}", b"")
    pending = await broker.timers.pending(run)
    assert [(timer.timer_id, timer.at_ms, timer.message_id) for timer in pending] == [
        ("a", at, "fired-a"),
        ("b", at, "fired-b"),
    ]
    await broker.timers.cancel(run, "a")
    assert [timer.timer_id for timer in await broker.timers.pending(run)] == ["b"]


# --- tasks -------------------------------------------------------------------------------------------------


async def pull_all(broker: Broker, *kinds: str, count: int) -> list[TaskDelivery]:
    found: list[TaskDelivery] = []
    end = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < end:
        found += await broker.tasks.pull(kinds, max_tasks=count - len(found), timeout=1.0)
    assert len(found) == count
    return found


async def test_a_task_is_taken_answered_and_gone(broker: Broker) -> None:
    kind, run = fresh("kind"), fresh()
    await broker.tasks.publish(kind, run, "t1", b"work", headers={"traceparent": "x"})
    (task,) = await pull_all(broker, kind, count=1)
    assert (task.task_type, task.run_id, task.message_id, task.data) == (kind, run, "t1", b"work")
    assert (task.deliveries, task.headers) == (1, {"traceparent": "x"})
    await broker.tasks.ack(task.token)
    await broker.tasks.ack(task.token)
    await broker.tasks.publish(kind, run, "fence", b"")
    assert [one.message_id for one in await pull_all(broker, kind, count=1)] == ["fence"]


async def test_a_task_published_twice_is_queued_once(cell: Cell, broker: Broker) -> None:
    kind, run = fresh("kind"), fresh()
    cell.lose_answer(broker, "tasks.publish")
    await persist(lambda: broker.tasks.publish(kind, run, "t1", b""))
    assert (await broker.tasks.publish(kind, run, "t1", b"")).duplicate
    await broker.tasks.publish(kind, run, "fence", b"")
    assert [one.message_id for one in await pull_all(broker, kind, count=2)] == ["t1", "fence"]


async def test_a_busy_type_does_not_starve_a_quiet_one(broker: Broker) -> None:
    busy, quiet, run = fresh("busy"), fresh("quiet"), fresh()
    for number in range(30):
        await broker.tasks.publish(busy, run, f"b{number}", b"")
    await broker.tasks.publish(quiet, run, "q", b"")
    await counted(broker, quiet)
    found = await broker.tasks.pull([busy, quiet], max_tasks=4, timeout=PATIENCE)
    assert Counter(task.task_type for task in found) == {busy: 3, quiet: 1}


async def test_types_take_turns_when_there_is_room_for_one(broker: Broker) -> None:
    kinds, run = [fresh("a"), fresh("b"), fresh("c")], fresh()
    for kind in kinds:
        for number in range(3):
            await broker.tasks.publish(kind, run, f"{kind}{number}", b"")
    first = [(await broker.tasks.pull(kinds, max_tasks=1, timeout=60))[0].task_type for _ in range(3)]
    assert sorted(first) == sorted(kinds)


async def test_a_pull_never_brings_more_than_asked_for(broker: Broker) -> None:
    kinds, run = [fresh("a"), fresh("b")], fresh()
    waiting = asyncio.create_task(broker.tasks.pull(kinds, max_tasks=1, timeout=PATIENCE))
    await asyncio.sleep(0)
    for kind in kinds:
        await broker.tasks.publish(kind, run, kind, b"")
    (first,) = await waiting
    (second,) = await pull_all(broker, *kinds, count=1)
    assert {first.task_type, second.task_type} == set(kinds)


async def test_a_pull_waits_for_the_first_task(broker: Broker, time_bounds: TimeBounds) -> None:
    kind, other = fresh("kind"), fresh("other")
    waiting = asyncio.create_task(broker.tasks.pull([other, kind], max_tasks=10, timeout=PATIENCE))
    await asyncio.sleep(0)
    await broker.tasks.publish(kind, fresh(), "t", b"")
    began = Watch()
    assert [task.message_id for task in await waiting] == ["t"]
    time_bounds.check(began.seconds, PATIENCE / 2)


async def test_a_pull_of_nothing_ends_with_its_deadline(broker: Broker, time_bounds: TimeBounds) -> None:
    began = time.monotonic()
    assert await broker.tasks.pull([fresh("a"), fresh("b")], max_tasks=3, timeout=0.3) == []
    took = time.monotonic() - began
    assert took >= 0.25
    time_bounds.check(took, PATIENCE / 2)


async def test_a_cancelled_pull_gives_tasks_back_at_once(cell: Cell, broker: Broker) -> None:
    """Whatever the moment: nobody waits for the ack wait of a task that went to a caller who left."""
    kind, run, other = fresh("kind"), fresh(), await cell.open()
    for number in range(10):
        waiting = asyncio.create_task(broker.tasks.pull([kind], max_tasks=1, timeout=PATIENCE))
        await asyncio.sleep(0)
        publishing = asyncio.create_task(broker.tasks.publish(kind, run, f"t{number}", b""))
        await past(0.001 * number)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            for task in await waiting:
                await broker.tasks.give_back(task.token)
        await publishing
        (task,) = await other.tasks.pull([kind], max_tasks=1, timeout=PATIENCE)
        assert task.message_id == f"t{number}"
        assert task.deliveries <= 2
        await other.tasks.ack(task.token)


async def test_a_task_nobody_answers_comes_again_and_is_counted(broker: Broker) -> None:
    kind = fresh("kind")
    await broker.tasks.publish(kind, fresh(), "poison", b"")
    (task,) = await pull_all(broker, kind, count=1)
    (again,) = await pull_all(broker, kind, count=1)
    await broker.tasks.give_back(again.token)
    (third,) = await pull_all(broker, kind, count=1)
    assert [task.deliveries, again.deliveries, third.deliveries] == [1, 2, 3]


async def test_a_task_given_back_with_a_delay_comes_after_it(broker: Broker) -> None:
    kind = fresh("kind")
    await broker.tasks.publish(kind, fresh(), "t", b"")
    (task,) = await pull_all(broker, kind, count=1)
    began = time.monotonic()
    await broker.tasks.give_back(task.token, 0.5)
    await pull_all(broker, kind, count=1)
    assert time.monotonic() - began >= 0.45


async def test_extending_keeps_a_task(broker: Broker) -> None:
    """Held for longer than its ack wait, by one who says so in between."""
    kind = fresh("kind")
    await broker.tasks.publish(kind, fresh(), "t", b"")
    (task,) = await pull_all(broker, kind, count=1)
    end = time.monotonic() + 2.5 * TIMING.task_ack_wait
    while time.monotonic() < end:
        await broker.tasks.extend(task.token)
        assert await broker.tasks.pull([kind], max_tasks=1, timeout=TIMING.task_ack_wait / 8) == []


async def test_a_token_works_from_another_connection(cell: Cell) -> None:
    kind, run, taker, other = fresh("kind"), fresh(), await cell.open(), await cell.open()
    await taker.tasks.publish(kind, run, "t", b"")
    (task,) = await pull_all(taker, kind, count=1)
    await cell.vanish(taker)
    await other.tasks.extend(task.token)
    await other.tasks.ack(task.token)
    await other.tasks.publish(kind, run, "fence", b"")
    assert [one.message_id for one in await pull_all(other, kind, count=1)] == ["fence"]


@pytest.mark.parametrize("token", ["", "journal.0.run", "$JS.ACK.RUN_0.deciders.1.2.3.4.5", "$JS.API.STREAM.DELETE.X"])
async def test_a_token_that_is_none_is_refused(broker: Broker, token: str) -> None:
    for call in (broker.tasks.ack, broker.tasks.extend, broker.tasks.give_back):
        with pytest.raises(InvalidRequestError):
            await call(token)


async def test_types_with_dots_do_not_meet_others(broker: Broker) -> None:
    base, run = fresh("k"), fresh()
    kinds = [base, f"{base}.b", f"{base}_b", f"{base}.b.c"]
    for kind in kinds:
        await broker.tasks.publish(kind, run, kind, b"")
    for kind in kinds:
        (task,) = await broker.tasks.pull([kind], max_tasks=5, timeout=5.0)
        assert (task.task_type, task.run_id, task.message_id) == (kind, run, kind)


@pytest.mark.parametrize("kind", ["", ".", "a.", ".a", "a..b", "a*", ">", "a b", "x" * 129, "a=2Eb"])
async def test_a_task_type_that_is_none_is_refused(broker: Broker, kind: str) -> None:
    with pytest.raises(InvalidRequestError):
        await broker.tasks.publish(kind, fresh(), "t", b"")


async def test_a_runs_tasks_can_be_taken_off_all_queues(broker: Broker) -> None:
    one, two, run, other = fresh("one"), f"{fresh('two')}.dotted", fresh(), fresh()
    for kind in (one, two):
        await broker.tasks.publish(kind, run, f"gone-{kind}", b"")
        await broker.tasks.publish(kind, other, f"kept-{kind}", b"")
    await broker.tasks.purge_run(run)
    found = await pull_all(broker, one, two, count=2)
    assert {task.run_id for task in found} == {other}
    assert await broker.tasks.pull([one, two], max_tasks=2, timeout=0.1) == []


async def test_what_is_in_flight_comes_again_whatever_is_taken_off_beside_it(broker: Broker) -> None:
    kind, run = fresh("type"), fresh()
    await broker.tasks.publish(kind, run, "in-flight", b"")
    (held,) = await pull_all(broker, kind, count=1)
    for number in range(3):
        other = fresh()
        await broker.tasks.publish(kind, other, f"taken-{number}", b"")
        await pull_all(broker, kind, count=1)
        await broker.tasks.purge_run(other, [kind])
    for number in range(3):
        await broker.tasks.publish(kind, fresh(), f"acked-{number}", b"")
        (acked,) = await pull_all(broker, kind, count=1)
        await broker.tasks.ack(acked.token)
    (again,) = await pull_all(broker, kind, count=1)
    assert (again.run_id, again.message_id) == (held.run_id, "in-flight")
    await broker.tasks.ack(again.token)


async def test_the_first_task_of_a_type_is_had_by_whoever_waits_for_it_already(cell: Cell) -> None:
    """The type has no consumer yet when the first polls begin: none of their last questions may swallow the task."""
    publisher, taker = await cell.open(), await cell.open()
    for tenth in range(10):
        kind = fresh("type")
        taken: list[TaskDelivery] = []

        async def poll(kind: str = kind, taken: list[TaskDelivery] = taken) -> None:
            while not taken:
                taken += await taker.tasks.pull([kind], max_tasks=1, timeout=0.3)

        polling = asyncio.create_task(poll())
        await past(0.029 * tenth)  # wherever in its poll the taker is
        await publisher.tasks.publish(kind, fresh(), "first", b"")
        await asyncio.wait_for(polling, PATIENCE)
        assert [task.deliveries for task in taken] == [1], "no poll before swallowed it"


async def test_tasks_that_nobody_has_taken_are_counted_by_type(broker: Broker) -> None:
    busy, quiet, run = fresh("a.b"), fresh("type"), fresh()

    async def counted(kind: str, count: int) -> None:
        async def look() -> bool:
            return (await broker.tasks.waiting()).get(kind, 0) == count

        await until(look)

    for number in range(3):
        await broker.tasks.publish(busy, run, f"task-{number}", b"")
    await counted(busy, 3)
    assert quiet not in await broker.tasks.waiting()
    (taken,) = await broker.tasks.pull([busy, quiet], max_tasks=1, timeout=1)
    await counted(busy, 2)
    await broker.tasks.ack(taken.token)
    await broker.tasks.purge_run(run)
    await counted(busy, 0)
    assert busy not in await broker.tasks.waiting()


# --- keys --------------------------------------------------------------------------------------------------


async def test_a_key_that_never_was_is_none(broker: Broker) -> None:
    assert await broker.bucket(Bucket.LEASES).get(fresh("key")) is None


async def test_a_key_is_created_once(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    revision = await leases.create(key, b"mine", ttl=60)
    with pytest.raises(KeyConflictError):
        await leases.create(key, b"theirs", ttl=60)
    with pytest.raises(KeyConflictError):
        await leases.create(key, b"mine", ttl=60)
    entry = await leases.get(key)
    assert entry is not None
    assert (entry.value, entry.revision, entry.ttl) == (b"mine", revision, 60)


async def test_of_ten_at_once_one_creates(cell: Cell) -> None:
    key, brokers = fresh("key"), [await cell.open() for _ in range(2)]
    creates = [brokers[n % 2].bucket(Bucket.LEASES).create(key, b"%d" % n) for n in range(10)]
    results = await asyncio.gather(*creates, return_exceptions=True)
    assert Counter(type(result) for result in results) == {int: 1, KeyConflictError: 9}


async def test_an_update_needs_the_revision(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    with pytest.raises(KeyConflictError):
        await leases.update(key, b"", revision=1)
    first = await leases.put(key, b"1")
    second = await leases.update(key, b"2", revision=first)
    with pytest.raises(KeyConflictError):
        await leases.update(key, b"3", revision=first)
    entry = await leases.get(key)
    assert entry is not None
    assert (entry.value, entry.revision) == (b"2", second)


async def test_a_deleted_key_is_none_and_can_be_created(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    first = await leases.create(key, b"1")
    await leases.delete(key)
    await leases.delete(key)
    assert await leases.get(key) is None
    assert await leases.keys(key) == []
    with pytest.raises(KeyConflictError):
        await leases.update(key, b"2", revision=first)
    assert await leases.create(key, b"2") > first


async def test_a_delete_may_name_a_revision(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    first = await leases.create(key, b"1")
    second = await leases.update(key, b"2", revision=first)
    with pytest.raises(KeyConflictError):
        await leases.delete(key, revision=first)
    await leases.delete(key, revision=second)
    assert await leases.get(key) is None


async def test_an_expired_key_is_none_and_can_be_created(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    began = time.monotonic()
    await leases.create(key, b"1", ttl=1)

    async def gone() -> bool:
        return await leases.get(key) is None

    await until(gone)
    assert time.monotonic() - began >= 0.95
    assert await leases.keys(key) == []
    await leases.create(key, b"2", ttl=60)


async def test_an_update_keeps_the_ttl_and_starts_it_anew(broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    revision = await leases.create(key, b"1", ttl=2)
    await leases.update(key, b"2", revision=revision)
    entry = await leases.get(key)
    assert entry is not None
    assert entry.ttl == 2

    async def gone() -> bool:
        return await leases.get(key) is None

    await until(gone)


async def test_a_create_whose_answer_was_lost_is_ones_own(cell: Cell, broker: Broker) -> None:
    leases, key = broker.bucket(Bucket.LEASES), fresh("key")
    cell.lose_answer(broker, "leases.create")
    with contextlib.suppress(KeyConflictError):  # the port says: then look
        await persist(lambda: leases.create(key, b"nonce-of-mine"))
    entry = await leases.get(key)
    assert entry is not None
    assert entry.value == b"nonce-of-mine"


async def test_a_bucket_refuses_what_it_does_not_bear(broker: Broker) -> None:
    with pytest.raises(InvalidRequestError):
        await broker.bucket(Bucket.WORKERS).put("w", b"", ttl=60)
    with pytest.raises(InvalidRequestError):
        await broker.bucket(Bucket.LEASES).put("w", b"", ttl=0)
    with pytest.raises(PayloadTooLargeError):
        await broker.bucket(Bucket.WORKERS).put("w", b"x" * 65_537)
    for key in ("", "a..b", ".a", "a*", ">", "a b"):
        with pytest.raises(InvalidRequestError):
            await broker.bucket(Bucket.WORKERS).put(key, b"")


async def test_a_bucket_holds_those_to_its_bound_who_write_without_our_code(
    nats_servers: dict[int, NatsServer],
) -> None:
    """A value that we could not write back would be in our way for ever."""
    worker = await NatsBroker.open_worker(nats_servers[1].options(WORKER))
    server = await NatsBroker.open(nats_servers[1].options(), Shape(1, storage=4 * GIB, timing=TIMING))
    key = f"{fresh()}.a"
    try:
        for bucket in (Bucket.LEASES, Bucket.CHECKPOINTS):
            largest = BUCKET_SPECS[bucket].max_value
            await server.bucket(bucket).put(key, b"x" * largest)
            with pytest.raises(PayloadTooLargeError):
                await worker.connection.store(f"$KV.{bucket}.{key}", b"x" * (largest + 4097))
            entry = await server.bucket(bucket).get(key)
            assert entry is not None
            assert len(entry.value) == largest
            await server.bucket(bucket).delete(key)
    finally:
        await worker.close()
        await server.close()


@pytest.mark.parametrize(
    ("stream", "older_settings"),
    [
        ("KV_leases", {"max_msg_size": 2 * MIB}),
        ("RUN_0", {"republish": None}),
        ("LOGS", {"republish": {"src": ">", "dest": "news.elsewhere.>"}}),
    ],
)
async def test_a_stream_that_an_older_version_made_is_brought_up_to_date(
    nats_servers: dict[int, NatsServer], stream: str, older_settings: dict[str, Any]
) -> None:
    shape = Shape(1, storage=4 * GIB, timing=TIMING)
    older = await NatsBroker.open(nats_servers[1].options(), shape)
    config = (await older.connection.api(f"STREAM.INFO.{stream}"))["config"]
    changed = await older.connection.api(f"STREAM.UPDATE.{stream}", {**config, **older_settings})
    assert changed["config"] != config
    newer = await NatsBroker.open(nats_servers[1].options(), shape)
    assert (await older.connection.api(f"STREAM.INFO.{stream}"))["config"] == config
    assert newer.report.drift == ()
    await newer.close()
    await older.close()


async def test_an_operators_republished_subject_is_left_alone(nats_servers: dict[int, NatsServer]) -> None:
    shape = Shape(1, storage=4 * GIB, timing=TIMING)
    first = await NatsBroker.open(nats_servers[1].options(), shape)
    config = (await first.connection.api("STREAM.INFO.LOGS"))["config"]
    theirs = {"src": ">", "dest": "exported.>"}
    try:
        await first.connection.api("STREAM.UPDATE.LOGS", {**config, "republish": theirs})
        second = await NatsBroker.open(nats_servers[1].options(), shape)
        assert [(one.stream, one.setting, one.found) for one in second.report.drift] == [("LOGS", "republish", theirs)]
        assert (await first.connection.api("STREAM.INFO.LOGS"))["config"]["republish"] == theirs
        await second.close()
    finally:
        await first.connection.api("STREAM.UPDATE.LOGS", config)
        await first.close()


async def test_keys_are_selected_by_whole_tokens(broker: Broker) -> None:
    bucket, run = broker.bucket(Bucket.CHECKPOINTS), fresh()
    for key in (f"{run}.b", f"{run}.a", f"{run}x.c", run):
        await bucket.put(key, key.encode())
    assert await bucket.keys(run) == [run, f"{run}.a", f"{run}.b"]
    assert [entry.value for entry in await bucket.entries(f"{run}x")] == [f"{run}x.c".encode()]
    assert {run, f"{run}x.c"} <= set(await bucket.keys())


async def next_change(watch: AsyncIterator[KvChange]) -> KvChange:
    async with asyncio.timeout(PATIENCE):
        return await anext(watch)


async def test_a_watch_tells_what_is_and_then_what_happens(broker: Broker) -> None:
    bucket, run = broker.bucket(Bucket.CHECKPOINTS), fresh()
    first = await bucket.put(f"{run}.a", b"1")
    async with contextlib.aclosing(bucket.watch(run)) as watch:  # type: ignore[type-var]
        assert await next_change(watch) == KvChange(ChangeKind.PUT, f"{run}.a", b"1", first)
        assert (await next_change(watch)).kind is ChangeKind.CAUGHT_UP
        second = await bucket.put(f"{run}.b", b"2")
        assert await next_change(watch) == KvChange(ChangeKind.PUT, f"{run}.b", b"2", second)
        await bucket.put(f"{run}x", b"not selected")
        await bucket.delete(f"{run}.a")
        change = await next_change(watch)
        assert (change.kind, change.key) == (ChangeKind.DELETE, f"{run}.a")


async def test_a_watch_tells_expiry(broker: Broker) -> None:
    bucket, key = broker.bucket(Bucket.LEASES), fresh("key")
    async with contextlib.aclosing(bucket.watch(key)) as watch:  # type: ignore[type-var]
        assert (await next_change(watch)).kind is ChangeKind.CAUGHT_UP
        await bucket.put(key, b"1", ttl=1)
        assert (await next_change(watch)).kind is ChangeKind.PUT
        change = await next_change(watch)
        assert (change.kind, change.key) == (ChangeKind.EXPIRE, key)


# --- blobs -------------------------------------------------------------------------------------------------


async def test_twenty_megabytes_go_in_and_come_out(broker: Broker) -> None:
    data, blobs = os.urandom(20 * 1024 * 1024 + 17), broker.blobs()
    ref = await blobs.put(data)
    assert ref == "sha256:" + hashlib.sha256(data).hexdigest()
    assert await blobs.size(ref) == len(data)
    target = io.BytesIO()
    assert await blobs.get_into(ref, target, limit=len(data)) == len(data)
    assert target.getvalue() == data
    await blobs.delete(ref)
    assert await blobs.size(ref) is None


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 128 * 1024 + 1])
async def test_a_blob_of_any_size(broker: Broker, size: int) -> None:
    data = os.urandom(size)
    ref = await broker.blobs().put_file(io.BytesIO(data))
    assert await broker.blobs().get(ref, limit=size) == data


async def test_the_same_content_is_one_blob(broker: Broker) -> None:
    data, blobs = os.urandom(300_000), broker.blobs()
    refs = await asyncio.gather(*(blobs.put(data) for _ in range(4)))
    assert len(set(refs)) == 1
    assert await blobs.get(refs[0], limit=len(data)) == data


async def test_a_blob_above_the_limit_is_not_fetched(broker: Broker) -> None:
    ref = await broker.blobs().put(b"x" * 1001)
    with pytest.raises(PayloadTooLargeError):
        await broker.blobs().get(ref, limit=1000)


async def test_a_blob_belongs_to_its_tenant(broker: Broker) -> None:
    ref = await broker.blobs("tenant-a").put(os.urandom(16))
    with pytest.raises(BlobNotFoundError):
        await broker.blobs("tenant-b").get(ref, limit=1000)


@pytest.mark.parametrize("ref", ["", "sha256:", "sha256:" + "A" * 64, "md5:" + "a" * 64, "a" * 64])
async def test_a_reference_that_is_none_is_refused(broker: Broker, ref: str) -> None:
    with pytest.raises(InvalidRequestError):
        await broker.blobs().get(ref, limit=1)


# --- audit -------------------------------------------------------------------------------------------------


async def test_lines_of_the_audit_log_come_back_in_order(broker: Broker) -> None:
    ids = [fresh("line") for _ in range(5)]
    seqs = [await broker.audit.add(line, line.encode()) for line in ids]
    lines = [Entry(seq, line, line.encode()) for seq, line in zip(seqs, ids, strict=True)]
    assert await broker.audit.tail(after=seqs[0] - 1, limit=100) == lines
    assert await broker.audit.tail(after=seqs[0] - 1, limit=2) == lines[:2]
    assert await broker.audit.tail(after=seqs[1], limit=2) == lines[2:4]
    assert await broker.audit.tail(after=seqs[4], limit=2) == []


async def test_a_line_that_is_added_again_is_one_line(cell: Cell, broker: Broker) -> None:
    line = fresh("line")
    cell.lose_answer(broker, "audit.add")
    seq = await persist(lambda: broker.audit.add(line, b"1"))
    assert await broker.audit.add(line, b"1") == seq
    assert await broker.audit.tail(after=seq - 1, limit=100) == [Entry(seq, line, b"1")]


async def test_a_line_of_the_audit_log_is_bounded(broker: Broker) -> None:
    await broker.audit.add(fresh("line"), b"x" * AUDIT_BYTES)
    with pytest.raises(PayloadTooLargeError):
        await broker.audit.add(fresh("line"), b"x" * (AUDIT_BYTES + 1))
    with pytest.raises(InvalidRequestError):
        await broker.audit.add("no\r\nid", b"")


async def test_a_full_audit_log_lets_its_oldest_lines_go(nats_servers: dict[int, NatsServer]) -> None:
    """What happens now is written, whoever filled it; and still nobody takes a line away."""
    shape = Shape(1, storage=4 * GIB, timing=TIMING)
    server = await NatsBroker.open(nats_servers[1].options(), shape)
    (spec,) = (one for one in streams(shape) if one.name == AUDIT_STREAM)
    small = {**spec.config(shape), "name": "AUDIT_SMALL", "subjects": ["audit-small"], "max_bytes": 4 * AUDIT_BYTES}
    try:
        await server.connection.api("STREAM.CREATE.AUDIT_SMALL", small)
        stored = [await server.connection.store("audit-small", b"x" * AUDIT_BYTES, {}) for _ in range(8)]
        state = (await server.connection.api("STREAM.INFO.AUDIT_SMALL"))["state"]
        assert (state["last_seq"], state["messages"]) == (stored[-1].seq, 3)
        with pytest.raises(BrokerError):
            await server.connection.api("STREAM.PURGE.AUDIT_SMALL")
    finally:
        await server.connection.api("STREAM.DELETE.AUDIT_SMALL")
        await server.close()


async def test_nobody_takes_a_line_away_or_writes_one_but_servers(nats_servers: dict[int, NatsServer]) -> None:
    shape = Shape(1, storage=4 * GIB, timing=TIMING)
    server = await NatsBroker.open(nats_servers[1].options(), shape)
    bridge = NatsBroker(await Connection.open(nats_servers[1].options(BRIDGE, request_timeout=0.3)), shape)
    worker = await NatsBroker.open_worker(nats_servers[1].options(WORKER, request_timeout=0.3, retry_seconds=0.3))
    line = fresh("line")
    try:
        seq = await server.audit.add(line, b"1")
        with pytest.raises(BrokerDeniedError):
            await bridge.audit.add(fresh("line"), b"2")
        with pytest.raises(BrokerDeniedError):
            await worker.audit.add(fresh("line"), b"3")
        with pytest.raises(BrokerError):
            await worker.audit.tail(after=0, limit=1)
        await forge(server, AUDIT_SUBJECT, fresh("line"), "")
        with pytest.raises(BrokerError):
            await server.connection.api(f"STREAM.PURGE.{AUDIT_STREAM}")
        with pytest.raises(BrokerError):
            await server.connection.api(f"STREAM.MSG.DELETE.{AUDIT_STREAM}", {"seq": seq})
        assert await server.audit.tail(after=seq - 1, limit=10) == [Entry(seq, line, b"1")]
    finally:
        for broker in (server, bridge, worker):
            await broker.close()


# --- the cell's secret -------------------------------------------------------------------------------------


async def test_all_servers_of_a_cell_derive_the_same_keys_and_another_for_each_use(cell: Cell) -> None:
    one, other = await cell.open(), await cell.open()
    assert one.derived_key("a use") == other.derived_key("a use")
    assert one.derived_key("a use") != one.derived_key("another use")
    assert len(one.derived_key("a use")) == 32


async def test_a_worker_derives_no_keys(nats_servers: dict[int, NatsServer]) -> None:
    worker = await NatsBroker.open_worker(nats_servers[1].options(WORKER))
    try:
        with pytest.raises(BrokerDeniedError):
            worker.derived_key("a use")
    finally:
        await worker.close()
