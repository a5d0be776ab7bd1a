"""What every broker does with the output of sandboxes, in memory or on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fumehood.broker import notifications
from fumehood.broker.broker import NatsBroker
from fumehood.broker.logs import HEADER
from fumehood.broker.memory import MemoryServer
from fumehood.broker.ports import Broker, LogEntry, LogKind, LogName, LogPlace, LogRecord
from fumehood.broker.topology import GIB, LOG_PAGE, LOG_PIECE, LOG_RECORDS, LOG_STREAM, Shape, log_subject, streams
from fumehood.errors import InvalidRequestError, PayloadTooLargeError
from tests.conformance.broker_bench import NODE, TIMING, Cell, NatsServer, fresh, persist
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def nats_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, NatsServer]]:
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


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only records notify."""
    monkeypatch.setattr(notifications, "SECOND_LOOK_SECONDS", 3600.0)


def log(attempt: int = 1) -> LogName:
    return LogName(fresh(), "run", attempt)


def out(at: int, data: bytes, *, stderr: int = 0) -> LogRecord:
    return LogRecord(LogKind.OUT, LogPlace(at, stderr), data)


async def whole(broker: Broker, name: LogName, limit: int = 256) -> list[LogEntry]:
    found: list[LogEntry] = []
    while page := await broker.logs.read(name, after=found[-1].seq if found else 0, limit=limit):
        found += page
    return found


def records(entries: list[LogEntry]) -> list[LogRecord]:
    return [entry.record for entry in entries]


STORY = [
    LogRecord(LogKind.START, LogPlace(), b"{}"),
    out(0, b"a\x00\xff\r\n"),
    LogRecord(LogKind.ERR, LogPlace(5, 0), b"e"),
    LogRecord(LogKind.CUT, LogPlace(5, 1), b'{"stream":"stdout"}'),
    LogRecord(LogKind.CUT, LogPlace(5, 1), b'{"stream":"stderr"}'),
    out(900, b"tail", stderr=1),
    LogRecord(LogKind.END, LogPlace(904, 1), b"{}"),
]


async def test_a_log_that_nobody_wrote_is_empty(broker: Broker) -> None:
    name = log()
    assert await broker.logs.last(name) is None
    assert await broker.logs.read(name) == []
    assert await broker.logs.attempt(name.run_id, name.step_id) is None


async def test_records_come_back_as_they_were(broker: Broker) -> None:
    name, other = log(), log()
    for record in STORY:
        await broker.logs.append(name, record)
        await broker.logs.append(other, record)
    found = await broker.logs.read(name)
    assert records(found) == STORY
    assert await broker.logs.last(name) == found[-1]
    assert [entry.seq for entry in found] == sorted({entry.seq for entry in found})
    assert await broker.logs.read(name, after=found[3].seq) == found[4:]
    for limit in (1, 2, 7, 8):
        assert await whole(broker, name, limit) == found
        assert len(await broker.logs.read(name, limit=limit)) == min(limit, 7)


def test_the_newest_record_says_how_much_was_told() -> None:
    assert out(3, b"four", stderr=2).after == LogPlace(7, 2)
    assert LogRecord(LogKind.ERR, LogPlace(3, 2), b"x").after == LogPlace(3, 3)
    assert LogRecord(LogKind.CUT, LogPlace(3, 2), b"{}").after == LogPlace(3, 2)


async def test_a_record_that_is_stored_again_is_stored_once(cell: Cell, broker: Broker) -> None:
    name = log()
    for record in STORY:
        cell.lose_answer(broker, "logs.append")
        await persist(lambda record=record: broker.logs.append(name, record))  # type: ignore[misc]
    again = await cell.open()
    for record in STORY:
        await again.logs.append(name, record)
    assert records(await broker.logs.read(name)) == STORY


async def test_the_same_place_in_other_pieces_is_not_swallowed(broker: Broker) -> None:
    name = log()
    for record in (out(0, b"ab"), out(0, b"abc"), out(0, b"ab", stderr=1)):
        await broker.logs.append(name, record)
    assert [record.data for record in records(await broker.logs.read(name))] == [b"ab", b"abc", b"ab"]


async def test_attempts_have_logs_of_their_own(broker: Broker) -> None:
    run = fresh()
    for attempt in (2, 10, 9):
        await broker.logs.append(LogName(run, "run", attempt), out(0, str(attempt).encode()))
    await broker.logs.append(LogName(run, "run2", 11), out(0, b""))
    assert await broker.logs.attempt(run, "run") == 10
    assert records(await broker.logs.read(LogName(run, "run", 9))) == [out(0, b"9")]
    assert await broker.logs.attempt(run, "ru") is None


async def test_a_record_and_a_page_are_bounded(broker: Broker) -> None:
    name, count = log(), 2 * LOG_PAGE // LOG_PIECE
    with pytest.raises(PayloadTooLargeError):
        await broker.logs.append(name, out(0, b"x" * (LOG_PIECE + 1)))
    for number in range(count):
        await broker.logs.append(name, out(number * LOG_PIECE, bytes([number]) * LOG_PIECE))
    page = await broker.logs.read(name, limit=1000)
    assert 1 <= len(page) <= LOG_PAGE // LOG_PIECE + 1
    assert [entry.record.data[:1] for entry in await whole(broker, name)] == [
        bytes([number]) for number in range(count)
    ]


@pytest.mark.parametrize(
    "name",
    [LogName("a.b", "s", 1), LogName("a", "*", 1), LogName("", "s", 1), LogName("a", "s", 0), LogName("a", "s", -1)],
)
async def test_a_name_that_is_none_is_refused(broker: Broker, name: LogName) -> None:
    for call in (broker.logs.append(name, STORY[0]), broker.logs.last(name), broker.logs.read(name)):
        with pytest.raises(InvalidRequestError):
            await call


async def test_followers_are_notified_of_every_attempt(cell: Cell, broker: Broker) -> None:
    run, others = fresh(), fresh()
    one, two = asyncio.Event(), asyncio.Event()
    writer = await cell.open()

    async def notified(bell: asyncio.Event, attempt: int) -> None:
        await writer.logs.append(LogName(run, "run", attempt), STORY[0])
        async with asyncio.timeout(PATIENCE):
            await bell.wait()
        bell.clear()

    async with broker.logs.follow(run, "run", one.set):
        async with broker.logs.follow(run, "run", two.set):
            assert await broker.logs.read(LogName(run, "run", 1)) == []  # from now on the server knows who listens
            await notified(one, 1)
            await two.wait()
            two.clear()
        await notified(one, 2)
        assert not two.is_set()
        await writer.logs.append(LogName(others, "run", 1), STORY[0])
        assert records(await broker.logs.read(LogName(run, "run", 2))) == STORY[:1]
    one.clear()
    await writer.logs.append(LogName(run, "run", 3), STORY[0])
    assert records(await broker.logs.read(LogName(run, "run", 3))) == STORY[:1]
    assert not one.is_set(), "who has left is not notified"


# --- on a real server only -------------------------------------------------------------------------------------------


@pytest.fixture
async def server(nats_servers: dict[int, NatsServer]) -> AsyncIterator[NatsBroker]:
    made = await NatsBroker.open(nats_servers[1].options(), Shape(1, storage=4 * GIB, timing=TIMING))
    yield made
    await made.close()


async def test_what_is_no_record_is_passed_over(server: NatsBroker) -> None:
    name = log()
    await server.logs.append(name, STORY[0])
    for said in ({}, {HEADER: "out 1"}, {HEADER: "out -1 0"}, {HEADER: "boo 1 2"}, {HEADER: "out 1 " + "9" * 40}):
        await server.connection.store(log_subject(name), b"x", said)
    newest = await server.logs.last(name)
    assert newest is not None
    assert newest.record == STORY[0]
    assert await server.logs.read(name, after=newest.seq, limit=1) == []
    await server.logs.append(name, STORY[1])
    assert records(await whole(server, name, 1)) == STORY[:2]


async def test_followers_share_a_subscription_and_leave_none(server: NatsBroker) -> None:
    run, bell = fresh(), asyncio.Event()
    before = len(server.connection._client._subs)

    async def follow() -> None:
        async with server.logs.follow(run, "run", bell.set):
            await asyncio.Event().wait()

    following = [asyncio.create_task(follow()) for _ in range(5)]

    async def all_there() -> bool:
        return len(server.connection._client._subs) == before + 1

    await until(all_there)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    assert len(server.connection._client._subs) == before
    assert server.logs.notifications.watches == {}


async def test_a_full_stream_lets_its_oldest_records_go_and_they_are_missed(server: NatsBroker) -> None:
    (spec,) = (one for one in streams(server.shape) if one.name == LOG_STREAM)
    config = spec.config(Shape(1, replicas=3, storage=4 * GIB))
    assert (config["num_replicas"], config["discard"], config["max_msgs_per_subject"]) == (1, "old", LOG_RECORDS)
    name = log()
    await server.connection.api("STREAM.UPDATE.LOGS", {**config, "max_bytes": 6 * LOG_PIECE})
    try:
        for number in range(20):
            await server.logs.append(name, out(number * LOG_PIECE, bytes([number]) * LOG_PIECE))
        found = records(await whole(server, name))
    finally:
        await server.connection.api("STREAM.UPDATE.LOGS", config)
    assert 1 <= len(found) <= 6
    assert found[-1].after == LogPlace(20 * LOG_PIECE)
    assert found[0].at.stdout == (20 - len(found)) * LOG_PIECE > 0, "its place says how much is gone"


async def test_a_node_writes_and_reads_back(nats_servers: dict[int, NatsServer], server: NatsBroker) -> None:
    """From its own account; and servers are notified."""
    node, name, bell = await NatsBroker.open_worker(nats_servers[1].options(NODE)), log(), asyncio.Event()
    try:
        async with server.logs.follow(name.run_id, name.step_id, bell.set):
            for record in STORY:
                await node.logs.append(name, record)
            async with asyncio.timeout(PATIENCE):
                await bell.wait()
        assert records(await server.logs.read(name)) == STORY
        assert records(await node.logs.read(name)) == STORY
        newest = await node.logs.last(name)
        assert newest is not None
        assert newest.record == STORY[-1]
        assert not node.connection.errors
    finally:
        await node.close()


async def test_output_survives_a_killed_server(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats", 1)
    nats.start()
    try:
        broker = await NatsBroker.open(nats.options(), Shape(1, storage=4 * GIB, timing=TIMING))
        name, bell = log(), asyncio.Event()
        async with broker.logs.follow(name.run_id, name.step_id, bell.set):
            await broker.logs.append(name, STORY[0])
            nats.kill()
            nats.start()
            await broker.logs.append(name, STORY[1])
            bell.clear()
            await broker.logs.append(name, STORY[2])
            async with asyncio.timeout(60):
                await bell.wait()
        assert records(await broker.logs.read(name)) == STORY[:3]
        await broker.close()
    finally:
        nats.kill()
