"""The connection to the broker breaks, and with it goes what was on its way; watches tell it nevertheless.

A revoked key would work again, a schedule would not fire and a run would stay `running` until the next change, if what
the broker has sent counted as heard.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import Bucket, ChangeKind, KvChange
from fumehood.broker.pulling import HEARTBEAT
from fumehood.broker.topology import BUCKET_SPECS, GIB, TASK_STREAM, Shape, Timing
from tests.conformance.broker_bench import TIMING, WORKER, NatsServer, fresh
from tests.faults.broken_line import BrokenLine
from tests.waiting import PATIENCE, past, until

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)


@dataclass(frozen=True)
class Both:
    line: BrokenLine
    far: NatsBroker
    """Over the line."""
    near: NatsBroker


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    server = NatsServer(tmp_path, 1)
    server.start()
    options = server.options()
    try:
        async with BrokenLine.to(options.servers[0]) as line:
            near = await NatsBroker.open(options, SHAPE)
            far = await NatsBroker.open(replace(options, servers=(f"nats://127.0.0.1:{line.port}",)), SHAPE)
            yield Both(line, far, near)
            await far.close()
            await near.close()
    finally:
        server.kill()


async def caught_up(watch: AsyncIterator[KvChange]) -> list[tuple[ChangeKind, str]]:
    found: list[tuple[ChangeKind, str]] = []
    while (change := await anext(watch)).kind is not ChangeKind.CAUGHT_UP:
        found.append((change.kind, change.key))
    return found


@pytest.mark.parametrize("then", ["silence", "more"])
async def test_a_watch_tells_what_was_lost_with_a_connection(both: Both, then: str) -> None:
    """By the next heartbeat where nothing else happens, and by the next change where something does."""
    run, near = fresh(), both.near.bucket(Bucket.CHECKPOINTS)
    await near.put(f"{run}.revoked", b"1")
    await near.put(f"{run}.changed", b"1")
    watching = both.far.bucket(Bucket.CHECKPOINTS).watch(run)
    async with contextlib.aclosing(watching) as watch, asyncio.timeout(PATIENCE):  # type: ignore[type-var]
        assert len(await caught_up(watch)) == 2
        both.line.swallow()
        await near.delete(f"{run}.revoked")
        await near.put(f"{run}.changed", b"2")
        await near.put(f"{run}.new", b"swallowed")
        await both.line.has_swallowed(b"swallowed")
        both.line.cut()
        expected = {
            (ChangeKind.DELETE, f"{run}.revoked", b""),
            (ChangeKind.PUT, f"{run}.changed", b"2"),
            (ChangeKind.PUT, f"{run}.new", b"swallowed"),
        }
        if then == "more":
            await near.put(f"{run}.later", b"3")
            expected.add((ChangeKind.PUT, f"{run}.later", b"3"))
        told: set[tuple[ChangeKind, str, bytes]] = set()
        while not expected <= told:
            change = await anext(watch)
            told.add((change.kind, change.key, change.value))
        assert told == expected


async def test_a_watch_whose_beginning_was_lost_begins_again(both: Both) -> None:
    """Otherwise it would wait for ever for what it counted on, and whoever waits for it could not begin."""
    run, near = fresh(), both.near.bucket(Bucket.CHECKPOINTS)
    keys = [f"{run}.{number:03}" for number in range(50)]
    for key in keys:
        await near.put(key, key.encode())
    watching = both.far.bucket(Bucket.CHECKPOINTS).watch(run)
    async with contextlib.aclosing(watching) as watch, asyncio.timeout(PATIENCE):  # type: ignore[type-var]
        both.line.swallow(after=b'"num_pending"')  # the answer to the watch's question for a consumer
        beginning = asyncio.create_task(caught_up(watch))
        await both.line.has_swallowed(keys[-1].encode())
        both.line.cut()
        assert sorted(await beginning) == [(ChangeKind.PUT, key) for key in keys]


async def test_a_sound_watch_keeps_its_consumer(both: Both) -> None:
    """What nobody lost is not read again: not after a cut in silence, and not by heartbeats."""
    run, near = fresh(), both.near.bucket(Bucket.CHECKPOINTS)
    watching = both.far.bucket(Bucket.CHECKPOINTS).watch(run)
    async with contextlib.aclosing(watching) as watch, asyncio.timeout(PATIENCE):  # type: ignore[type-var]
        await caught_up(watch)
        before = await consumers(both)
        back = asyncio.Event()
        both.far.connection.on_reconnect(back.set)
        for number in range(3):
            both.line.cut()
            await back.wait()
            back.clear()
            await near.put(f"{run}.{number}", b"1")
            assert (await anext(watch)).key == f"{run}.{number}"
            await past(2 * HEARTBEAT)  # what a heartbeat would say wrongly, it says now
        assert await consumers(both) == before


async def test_a_task_reaches_a_worker_that_has_reconnected(tmp_path: Path) -> None:
    """The server goes on answering what was asked on the old connection; nothing that comes so may be lost."""
    server, kind = NatsServer(tmp_path, 1), fresh("kind")
    server.start()
    try:
        near = await NatsBroker.open(server.options(), replace(SHAPE, timing=Timing()))
        await near.tasks.publish(kind, "first", "m0", b"")
        async with BrokenLine.to(server.options().servers[0]) as line, asyncio.timeout(PATIENCE):
            far = await NatsBroker.open_worker(server.through(line.port).options(WORKER))
            (first,) = await far.tasks.pull([kind], max_tasks=1, timeout=PATIENCE)
            await far.tasks.ack(first.token)
            back = asyncio.Event()
            far.connection.on_reconnect(back.set)
            pulling = asyncio.create_task(far.tasks.pull([kind], max_tasks=1, timeout=PATIENCE))
            await waiting(near, kind)
            line.cut()
            await back.wait()
            await waiting(near, kind)
            await near.tasks.publish(kind, "second", "m1", b"")
            (second,) = await pulling
            assert (second.run_id, second.deliveries) == ("second", 1)
            await far.close()
        await near.close()
    finally:
        server.kill()


async def waiting(broker: NatsBroker, kind: str) -> None:
    """Until somebody waits for a task of this type."""

    async def look() -> bool:
        info = await broker.connection.api(f"CONSUMER.INFO.{TASK_STREAM}.task-{kind}")
        return bool(info["num_waiting"])

    await until(look)


async def consumers(both: Both) -> list[str]:
    stream = BUCKET_SPECS[Bucket.CHECKPOINTS].stream
    found = await both.near.connection.api(f"CONSUMER.NAMES.{stream}")
    return sorted(found["consumers"])
