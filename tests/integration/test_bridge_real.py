"""The bridge over a real nats-server: several of them, workers that hang up, tasks that nobody answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection
from fumehood.broker.ports import Bucket
from fumehood.broker.topology import GIB, TASK_STREAM, Shape
from fumehood.control.bridge import Bridge, BridgeOptions
from tests.conformance.broker_bench import BRIDGE, TIMING, NatsServer, fresh
from tests.contract.bridge_harness import Client, ends, hand_out, history, make_app, served
from tests.waiting import past, until

WAIT = 0.5
"""Seconds of silence on a history before it counts as all that was said."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), 2)
    server.start()
    yield server
    server.kill()


@dataclass
class Replica:
    """One bridge with a connection of its own, and a worker that talks to it."""

    broker: NatsBroker
    bridge: Bridge
    client: Client
    url: str


async def open_replica(stack: AsyncExitStack, nats: NatsServer, options: BridgeOptions) -> Replica:
    """The bridge has no more permissions than one needs."""
    shape = Shape(2, storage=4 * GIB, timing=TIMING)
    broker = await NatsBroker.open(nats.options(), shape)
    stack.push_async_callback(broker.close)
    limited = NatsBroker(await Connection.open(nats.options(BRIDGE)), shape)
    stack.push_async_callback(_close_undenied, limited)
    bridge = await stack.enter_async_context(Bridge(limited, options))
    url = await stack.enter_async_context(served(make_app(bridge)))
    return Replica(broker, bridge, await stack.enter_async_context(Client(url=url)), url)


async def _close_undenied(limited: NatsBroker) -> None:
    await limited.close()
    assert limited.connection.errors["denied"] == 0


@pytest.fixture
async def two(nats: NatsServer) -> AsyncIterator[tuple[Replica, Replica]]:
    options = BridgeOptions(heartbeat_seconds=3600.0, lease_seconds=1)
    async with AsyncExitStack() as stack:
        yield await open_replica(stack, nats, options), await open_replica(stack, nats, options)


async def test_a_task_polled_at_one_bridge_is_resolved_at_the_other(two: tuple[Replica, Replica]) -> None:
    one, other = two
    run, kind = fresh(), fresh("kind")
    await hand_out(one.broker, run, kind=kind, timeout_ms=60_000, input={"a": 1})
    (task,) = await one.client.poll(kind, timeout_ms=30_000)
    assert (await other.client.resolve(task["task_id"], "heartbeat")).status_code == 200
    for replica in (other, one, other):
        answer = await replica.client.resolve(task["task_id"], "complete", output=1, lease_id=task["lease_id"])
        assert answer.status_code == 200
    assert ends(await history(one.broker, run, wait=WAIT)) == ["step.completed"]
    assert await one.client.poll(kind) == []


async def test_an_old_lease_is_refused_at_every_bridge_and_the_new_one_counts(two: tuple[Replica, Replica]) -> None:
    one, other = two
    run, kind = fresh(), fresh("kind")
    await hand_out(one.broker, run, kind=kind)
    (old,) = await one.client.poll(kind, timeout_ms=30_000)
    (new,) = await other.client.poll(kind, timeout_ms=30_000)
    for replica in two:
        late = await replica.client.resolve(old["task_id"], "complete", output="old", lease_id=old["lease_id"])
        assert late.status_code == 409
    assert (await one.client.resolve(new["task_id"], "complete", lease_id=new["lease_id"])).status_code == 200
    assert ends(await history(one.broker, run, wait=WAIT)) == ["step.completed"]


async def test_a_poison_task_ends_after_five_leases(two: tuple[Replica, Replica]) -> None:
    """Each is a second long here; whoever handed it out gives it back when it is over."""
    run, kind = fresh(), fresh("kind")
    await hand_out(two[0].broker, run, kind=kind)
    leases = []
    for number in range(5):
        (task,) = await two[number % 2].client.poll(kind, timeout_ms=30_000)
        leases.append(task["lease_id"])
    assert len(set(leases)) == 5

    async def failed() -> list[object]:
        assert await two[0].client.poll(kind, timeout_ms=500) == []
        return await failures(two[1], run)

    assert await until(failed) == [{"error": {"code": "lease_expired", "message": "taken 5 times and never answered"}}]


async def failures(replica: Replica, run: str) -> list[object]:
    found = await history(replica.broker, run, wait=WAIT)
    return [event.payload for event in found if event.type.value == "step.failed"]


async def test_a_worker_that_hangs_up_gives_back_what_comes_for_it(two: tuple[Replica, Replica]) -> None:
    one, other = two
    run, kind = fresh(), fresh("kind")
    polling = asyncio.create_task(one.client.poll(kind, timeout_ms=60_000))

    async def polls(count: int) -> bool:
        return one.bridge._polls == count

    await until(lambda: polls(1))
    polling.cancel()
    await until(lambda: polls(0))
    await hand_out(one.broker, run, kind=kind, timeout_ms=600_000)
    (task,) = await other.client.poll(kind, timeout_ms=30_000)
    assert task["run_id"] == run


async def test_workers_that_hang_up_at_any_moment_lose_no_task(two: tuple[Replica, Replica]) -> None:
    """An answer that was on its way already comes again when its lease is over; everything else at once."""
    one, other = two
    kind = fresh("kind")
    runs = {fresh() for _ in range(30)}
    impatient = asyncio.create_task(hang_up_again_and_again(one, kind))
    for run in runs:
        await hand_out(one.broker, run, kind=kind, timeout_ms=4_000)
    found = await impatient

    async def all_there() -> bool:
        tasks = await other.client.poll(kind, max_tasks=256, timeout_ms=200)
        found.update(task["run_id"] for task in tasks)
        return found == runs

    await until(all_there)


async def hang_up_again_and_again(replica: Replica, kind: str) -> set[str]:
    """What was answered all the same, just before."""
    answered: set[str] = set()
    for number in range(25):
        polling = asyncio.create_task(replica.client.poll(kind, max_tasks=4, timeout_ms=60_000))
        await past(0.004 * number % 0.05)
        if polling.done():
            answered |= {task["run_id"] for task in polling.result()}
        polling.cancel()
        await asyncio.wait({polling})
        if not polling.cancelled() and polling.exception() is None:
            answered |= {task["run_id"] for task in polling.result()}
    return answered


async def test_many_polls_at_two_bridges_hand_every_task_out_once(two: tuple[Replica, Replica]) -> None:
    kinds = [fresh("kind") for _ in range(3)]
    runs = [fresh() for _ in range(90)]
    seen: Counter[str] = Counter()
    for number, run in enumerate(runs):
        await hand_out(two[0].broker, run, kind=kinds[number % 3], timeout_ms=600_000)

    async def work(replica: Replica) -> None:
        while tasks := await replica.client.poll(*kinds, max_tasks=8, timeout_ms=500):
            seen.update(task["run_id"] for task in tasks)
            for task in tasks:
                answer = await replica.client.resolve(task["task_id"], "complete", lease_id=task["lease_id"])
                assert answer.status_code == 200

    await asyncio.gather(*(work(replica) for replica in two for _ in range(4)))
    assert seen == Counter(runs)


async def test_poll_is_fair_between_types(two: tuple[Replica, Replica]) -> None:
    one, _ = two
    busy, rare = fresh("busy"), fresh("rare")
    for _ in range(40):
        await hand_out(one.broker, fresh(), kind=busy, timeout_ms=600_000)
    run = fresh()
    await hand_out(one.broker, run, kind=rare, timeout_ms=600_000)
    found = await one.client.poll(busy, rare, max_tasks=4, timeout_ms=30_000)
    assert run in {task["run_id"] for task in found}


async def test_consumers_are_named_as_published_and_one_of_a_bare_workers_making_is_used(
    two: tuple[Replica, Replica],
) -> None:
    one, other = two
    ours, theirs = f"{fresh('kind')}.dotted", fresh("kind")
    config = {"name": f"own-{theirs}", "durable_name": f"own-{theirs}", "filter_subject": f"task.{theirs}.*"}
    config |= {"ack_policy": "explicit", "deliver_policy": "all"}
    body = {"stream_name": TASK_STREAM, "config": config, "action": "create"}
    subject = f"CONSUMER.CREATE.{TASK_STREAM}.{config['name']}.{config['filter_subject']}"
    await one.broker.connection.api(subject, body)
    for kind in (ours, theirs):
        await hand_out(one.broker, fresh(), kind=kind, timeout_ms=600_000)
        assert len(await other.client.poll(kind, timeout_ms=30_000)) == 1
    listed = await one.broker.connection.api(f"CONSUMER.NAMES.{TASK_STREAM}")
    assert f"task-{ours.replace('.', '=2E')}" in listed["consumers"]
    assert f"task-{theirs}" not in listed["consumers"]


async def test_a_large_input_is_inlined_and_a_large_output_outlined(two: tuple[Replica, Replica]) -> None:
    one, other = two
    run, kind = fresh(), fresh("kind")
    value = json.dumps({"text": "x" * 1_000_000}).encode()
    ref = await one.broker.blobs().put(value)
    await hand_out(one.broker, run, kind=kind, timeout_ms=60_000, input={"doc": {"$blob": ref, "size": len(value)}})
    (task,) = await other.client.poll(kind, timeout_ms=30_000)
    assert task["input"] == {"doc": json.loads(value)}
    assert (await other.client.resolve(task["task_id"], "complete", output=task["input"])).status_code == 200
    (event,) = [e for e in await history(one.broker, run, wait=WAIT) if e.type.value == "step.completed"]
    assert set(event.payload) == {"$blob", "size"}


async def test_a_task_and_a_stream_survive_the_brokers_death(tmp_path: Path) -> None:
    """Killed without a word and started again on the same store: the lease is there, and so is the task."""
    nats = NatsServer(tmp_path / "nats", 2)
    nats.start()
    try:
        async with AsyncExitStack() as stack:
            one = await open_replica(stack, nats, BridgeOptions(heartbeat_seconds=0.2))
            await hand_out(one.broker, "run-1", timeout_ms=600_000)
            (task,) = await one.client.poll(timeout_ms=30_000)
            async with one.client.connect("worker") as events:
                await anext(events)
                nats.kill()
                nats.start()

                async def resolved() -> bool:
                    answer = await one.client.resolve(task["task_id"], "complete", lease_id=task["lease_id"])
                    assert answer.status_code in (200, 503)
                    return answer.status_code == 200

                await until(resolved)
                assert (await anext(events))[0] == "heartbeat"
            assert set(ends(await history(one.broker, "run-1", wait=WAIT))) == {"step.completed"}
            assert await one.client.poll(timeout_ms=300) == []
    finally:
        nats.kill()


# --- streams -----------------------------------------------------------------------------------------------


async def test_a_newer_stream_at_another_bridge_replaces_the_older_at_once(two: tuple[Replica, Replica]) -> None:
    one, other = two
    worker = fresh("worker")
    async with one.client.connect(worker) as older:
        assert (await anext(older))[0] == "heartbeat"
        async with other.client.connect(worker) as newer:
            assert (await anext(newer))[0] == "heartbeat"
            async with asyncio.timeout(30):
                assert [name async for name, _ in older] == ["replaced"]
            assert await one.broker.bucket(Bucket.WORKERS).get(worker) is not None


async def test_a_drain_at_one_bridge_ends_the_stream_at_another(two: tuple[Replica, Replica]) -> None:
    one, other = two
    worker, kind = fresh("worker"), fresh("kind")
    async with one.client.connect(worker) as events:
        await anext(events)
        assert (await other.client.http.delete(f"/v1/workers/{worker}")).status_code == 200
        async with asyncio.timeout(30):
            assert [name async for name, _ in events] == ["drain"]
    assert await one.broker.bucket(Bucket.WORKERS).get(worker) is None
    await hand_out(one.broker, fresh(), kind=kind, timeout_ms=600_000)
    assert await other.client.poll(kind, worker_id=worker, timeout_ms=100) == []
    assert len(await other.client.poll(kind, timeout_ms=30_000)) == 1


async def test_a_worker_that_hangs_up_is_deregistered(two: tuple[Replica, Replica]) -> None:
    one, _ = two
    worker = fresh("worker")
    async with one.client.connect(worker) as events:
        await anext(events)
        assert await one.broker.bucket(Bucket.WORKERS).get(worker) is not None

    async def gone() -> bool:
        return await one.broker.bucket(Bucket.WORKERS).get(worker) is None

    await until(gone)
