"""The broker's server is killed in the middle of things, and everything goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection
from fumehood.broker.ports import Bucket, ChangeKind
from fumehood.broker.topology import GIB, Shape
from fumehood.errors import BrokerUnavailableError, JournalConflictError
from tests.conformance.broker_bench import TIMING, NatsServer, fresh, receive
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.waiting import PATIENCE, past, until

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path, 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    made = await NatsBroker.open(server.options(), SHAPE)
    yield made
    await made.close()


async def restart(server: NatsServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


async def test_an_overdue_timer_fires_after_the_restart(server: NatsServer, broker: NatsBroker) -> None:
    run, at = fresh(), time.time() + 1.0
    await broker.timers.set(run, "t", int(at * 1000), "fired", b"")
    server.kill()
    await past(max(0.0, at - time.time()))
    await asyncio.to_thread(server.start)
    assert [delivery.message_id for delivery in await receive(broker, run)] == ["fired"]


async def test_writes_go_on_through_a_restart(server: NatsServer, broker: NatsBroker) -> None:
    """Appends while the server dies: each is stored once, none that was confirmed is missing."""
    run, last = fresh(), 0
    confirmed: list[str] = []
    killing = asyncio.create_task(_restart_after(server, confirmed, 50))
    end = time.monotonic() + PATIENCE
    while (not killing.done() or len(confirmed) < 100) and time.monotonic() < end:
        record = f"r{len(confirmed)}"
        with contextlib.suppress(BrokerUnavailableError):
            last = await broker.journal.append(run, record, b"", expected=last)
            confirmed.append(record)
    await killing
    assert len(confirmed) >= 100
    assert [entry.record_id for entry in await broker.journal.read(run)] == confirmed


async def _restart_after(server: NatsServer, confirmed: Collection[str], count: int) -> None:
    await _grown(confirmed, count)
    await restart(server)


async def _grown(confirmed: Collection[str], count: int) -> None:
    async def enough() -> bool:
        return len(confirmed) >= count

    await until(enough)


async def test_waiting_pulls_go_on_through_a_restart(
    server: NatsServer, broker: NatsBroker, time_bounds: TimeBounds
) -> None:
    run, kind = fresh(), fresh("kind")
    await broker.feed.pull(0, max_messages=1, timeout=0.1)
    feed = asyncio.create_task(receive(broker, run))
    tasks = asyncio.create_task(broker.tasks.pull([kind], max_tasks=1, timeout=PATIENCE))
    await past(0.1)
    await restart(server)
    other = await NatsBroker.open(server.options(), SHAPE)
    await other.mailboxes.send(run, "m", b"")
    await other.tasks.publish(kind, run, "t", b"")
    began = Watch()
    assert [delivery.message_id for delivery in await feed] == ["m"]
    assert [task.message_id for task in await tasks] == ["t"]
    time_bounds.check(began.seconds, 15)
    await other.close()


async def test_a_pull_while_the_server_is_away_is_an_error_and_not_an_empty_queue(
    server: NatsServer, broker: NatsBroker
) -> None:
    kind = fresh("kind")
    assert await broker.tasks.pull([kind], max_tasks=1, timeout=0.1) == []
    server.kill()

    async def noticed() -> bool:
        return not broker.connection.connected

    await until(noticed)
    with pytest.raises(BrokerUnavailableError):
        await broker.tasks.pull([kind], max_tasks=1, timeout=0.0)
    await asyncio.to_thread(server.start)


async def test_a_watch_goes_on_through_a_restart(server: NatsServer, broker: NatsBroker) -> None:
    bucket, run = broker.bucket(Bucket.CHECKPOINTS), fresh()
    await bucket.put(f"{run}.a", b"1")
    await bucket.put(f"{run}.b", b"1")
    async with contextlib.aclosing(bucket.watch(run)) as watch, asyncio.timeout(PATIENCE):  # type: ignore[type-var]
        assert [(await anext(watch)).kind for _ in range(3)][-1] is ChangeKind.CAUGHT_UP
        await restart(server)
        await bucket.delete(f"{run}.a")
        await bucket.put(f"{run}.c", b"2")
        seen = {((change := await anext(watch)).kind, change.key) for _ in range(2)}
        assert seen == {(ChangeKind.DELETE, f"{run}.a"), (ChangeKind.PUT, f"{run}.c")}


async def test_what_was_handed_out_survives_a_restart(server: NatsServer, broker: NatsBroker) -> None:
    run, kind = fresh(), fresh("kind")
    await broker.tasks.publish(kind, run, "acked", b"")
    await broker.tasks.publish(kind, run, "held", b"")
    tasks = {task.message_id: task for task in await broker.tasks.pull([kind], max_tasks=2, timeout=10)}
    await broker.tasks.ack(tasks["acked"].token)
    lease = await broker.bucket(Bucket.LEASES).create(run, b"mine", ttl=600)
    await restart(server)
    (again,) = await broker.tasks.pull([kind], max_tasks=2, timeout=PATIENCE)
    assert again.message_id == "held"
    entry = await broker.bucket(Bucket.LEASES).get(run)
    assert entry is not None
    assert entry.revision == lease


async def test_two_writers_through_a_restart_never_fork_the_journal(server: NatsServer, broker: NatsBroker) -> None:
    other = await NatsBroker.open(server.options(), SHAPE)
    run, stop = fresh(), asyncio.Event()
    confirmed: set[str] = set()

    async def write(who: NatsBroker, name: str) -> None:
        number = 0
        while not stop.is_set():
            with contextlib.suppress(JournalConflictError, BrokerUnavailableError):
                entry = await who.journal.last(run)
                await who.journal.append(run, f"{name}{number}", b"", expected=entry.seq if entry else 0)
                confirmed.add(f"{name}{number}")
            number += 1
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(broker, "a")), asyncio.create_task(write(other, "b"))]
    await _restart_after(server, confirmed, 40)
    await _grown(confirmed, len(confirmed) + 20)
    stop.set()
    await asyncio.gather(*writers)
    stored = [entry.record_id for entry in await broker.journal.read(run)]
    assert len(stored) == len(set(stored))
    assert confirmed <= set(stored)
    await other.close()


async def test_a_call_while_the_server_is_away_ends_in_time(server: NatsServer, time_bounds: TimeBounds) -> None:
    broker = NatsBroker(await Connection.open(server.options(request_timeout=0.3, retry_seconds=1.0)), SHAPE)
    server.kill()
    began = Watch()
    with pytest.raises(BrokerUnavailableError):
        await broker.mailboxes.send(fresh(), "m", b"")
    with pytest.raises(BrokerUnavailableError):
        await broker.journal.append(fresh(), "r", b"", expected=0)
    time_bounds.check(began.seconds, 15)
    await broker.close()


async def test_cancelling_is_never_swallowed(server: NatsServer, broker: NatsBroker) -> None:
    """At any moment, with the server there or not: a cancelled call is a cancelled call."""
    run = fresh()
    for alive in (True, False):
        if not alive:
            server.kill()
        for steps in range(12):
            for call in (
                broker.mailboxes.send(run, fresh("m"), b""),
                broker.tasks.pull(["kind"], max_tasks=1, timeout=60),
                broker.feed.pull(0, max_messages=1, timeout=60),
                broker.bucket(Bucket.LEASES).get("key"),
            ):
                task = asyncio.ensure_future(call)
                for _ in range(steps):
                    await asyncio.sleep(0)
                if task.done():
                    continue
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(asyncio.shield(task), PATIENCE)
                assert task.cancelled()
