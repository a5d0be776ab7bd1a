"""Following what a run prints, on a real nats-server: written by a node, read by servers, cut off all the time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.ports import LogKind, LogName, LogRecord
from fumehood.broker.topology import GIB, LOG_PIECE, Shape, log_filter
from fumehood.control import log_streams
from fumehood.wire.sandbox import RUN_STEP
from tests.conformance.broker_bench import NODE, TIMING, NatsServer, fresh
from tests.conftest import TimeBounds
from tests.unit.log_world import ERR, OUT, Client, LogWorld, Pieces, told, whole
from tests.waiting import past

SHAPE = Shape(1, storage=4 * GIB, timing=TIMING)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def brokers(nats: NatsServer) -> AsyncIterator[list[NatsBroker]]:
    """Two servers and a node."""
    made = [await NatsBroker.open(nats.options(), SHAPE) for _ in range(2)]
    made.append(await NatsBroker.open_worker(nats.options(NODE)))
    yield made
    for broker in made:
        await broker.close()


def noise(seed: int, count: int) -> Pieces:
    chance = random.Random(seed)
    return [
        (chance.choice((OUT, ERR)), "".join(chance.choices("abc€😀\n", k=chance.randint(1, 9000))).encode()[1:] or b"x")
        for _ in range(count)
    ]


async def write(node: NatsBroker, run: str, records: list[LogRecord], pause: float = 0.0) -> None:
    for record in records:
        await node.logs.append(LogName(run, RUN_STEP, 1), record)
        await past(pause)


def matches(client: Client, pieces: Pieces) -> None:
    wanted = {
        "stdout": whole(pieces, OUT).decode("utf-8", "replace"),
        "stderr": whole(pieces, ERR).decode("utf-8", "replace"),
    }
    assert client.text == wanted
    assert (client.starts, client.cuts) == ([1], [])


@pytest.mark.parametrize("seek_bytes", [0, log_streams.SEEK_BYTES])
@pytest.mark.parametrize("is_kept_only", [False, True])
async def test_a_client_that_is_cut_off_fifty_times_sees_every_byte_once(
    brokers: list[NatsBroker], is_kept_only: bool, seek_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is written; in the second case, all records are gone half-way."""
    monkeypatch.setattr(log_streams, "SEEK_BYTES", seek_bytes)
    run, pieces, chance = fresh(), noise(7, 60), random.Random(11)
    worlds = [LogWorld(broker, run) for broker in brokers[:2]]
    await worlds[0].begin()
    writing = asyncio.create_task(write(brokers[2], run, told(pieces), 0.02))
    client = Client()
    for number in range(50):
        if is_kept_only and number == 25:
            await writing
            await worlds[0].end(pieces)
            await brokers[0].connection.api("STREAM.PURGE.LOGS", {"filter": log_filter(run, RUN_STEP)})
        async with chance.choice(worlds).following(client.last_id) as reader:
            for _ in range(chance.choice((0, 0, 1, 1) if number < 25 else (0, 0, 0, 1))):
                message = await reader.next()
                assert message is not None
                client.take(message)
    await writing
    if not is_kept_only:
        await worlds[0].end(pieces)
    for message in await worlds[1].follow(client.last_id):
        client.take(message)
    matches(client, pieces)
    assert client.end == {"attempt": 1, "stdout": client.at["stdout"], "stderr": client.at["stderr"]}
    assert await worlds[0].is_all_seen(client.last_id or "")


async def test_a_reader_is_woken_by_every_record(brokers: list[NatsBroker], time_bounds: TimeBounds) -> None:
    """The best of several, since the machine is noisy: without the bell it would be a heartbeat."""
    run, pieces = fresh(), [(OUT, f"line {number}\n".encode()) for number in range(8)]
    world = LogWorld(brokers[0], run)
    await world.begin()
    hops, client, loop = [], Client(), asyncio.get_running_loop()
    async with world.following() as reader:
        for record in told(pieces)[:-1]:
            began = loop.time()
            await brokers[2].logs.append(LogName(run, RUN_STEP, 1), record)
            message = await reader.next()
            hops.append(loop.time() - began)
            assert message is not None
            client.take(message)
    time_bounds.check(min(hops), 0.3)
    assert client.text["stdout"] == "".join(f"line {number}\n" for number in range(8))


async def test_records_that_had_to_go_are_told_as_a_cut(brokers: list[NatsBroker]) -> None:
    run, server = fresh(), brokers[0]
    world = LogWorld(server, run)
    await world.begin()
    pieces = [(OUT, bytes([97 + number]) * LOG_PIECE) for number in range(20)]
    config = (await server.connection.api("STREAM.INFO.LOGS"))["config"]
    await server.connection.api("STREAM.UPDATE.LOGS", {**config, "max_bytes": 6 * LOG_PIECE})
    try:
        await write(brokers[2], run, [record for record in told(pieces) if record.kind is not LogKind.END])
        client = Client()
        async with world.following() as reader:
            while client.at["stdout"] < 20 * LOG_PIECE:
                message = await reader.next()
                assert message is not None
                client.take(message)
    finally:
        await server.connection.api("STREAM.UPDATE.LOGS", config)
    ((stream, begin, resumes_at),) = client.cuts
    assert (stream, begin) == ("stdout", 0)
    assert resumes_at is not None
    assert resumes_at + len(client.text["stdout"]) == 20 * LOG_PIECE
    shown = await world.shown()
    assert shown.truncated.stdout
    assert f"[… {resumes_at} bytes left out …]" in shown.stdout
