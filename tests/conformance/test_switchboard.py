"""What every broker does with messages between servers and with the console's buckets, in memory or on a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Broker, Bucket, ChangeKind
from fumehood.broker.topology import BUCKET_SPECS, MAX_PAYLOAD
from fumehood.errors import BrokerUnavailableError, InvalidRequestError, KeyConflictError, PayloadTooLargeError
from tests.conformance.broker_bench import TIMING, Cell, NatsServer, fresh
from tests.waiting import PATIENCE, until

CONSOLES = (Bucket.CREDENTIALS, Bucket.CONSOLE, Bucket.SESSIONS, Bucket.COMMANDS)
EXPIRING = (Bucket.CONSOLE, Bucket.SESSIONS, Bucket.COMMANDS)


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "nats"])
async def cell(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    if request.param == "memory":
        made = Cell(1, None, MemoryServer(timing=TIMING))
    else:
        made = Cell(1, request.getfixturevalue("nats_server"), None)
    yield made
    await made.close()


@pytest.fixture
async def broker(cell: Cell) -> Broker:
    return await cell.open()


class Heard:
    """What came in somewhere, in order."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        self.messages.append(data)

    async def all(self, count: int) -> list[bytes]:
        async def there() -> bool:
            return len(self.messages) >= count

        await until(there)
        return self.messages


async def test_what_is_sent_is_heard_by_all_who_listen_there_and_by_nobody_else(cell: Cell) -> None:
    one, two = await cell.open(), await cell.open()
    here, there = fresh("server"), f"{fresh('server')}.calls"
    heard = [Heard() for _ in range(4)]
    async with (
        one.switchboard.listen(here, heard[0]),
        two.switchboard.listen(here, heard[1]),
        two.switchboard.listen(here, heard[2]),
        two.switchboard.listen(there, heard[3]),
    ):
        await one.switchboard.send(here, b"\x00 bytes")
        for listener in heard[:3]:
            assert await listener.all(1) == [b"\x00 bytes"]
        await one.switchboard.send(there, b"")
        assert await heard[3].all(1) == [b""]
    assert [len(listener.messages) for listener in heard] == [1, 1, 1, 1]


async def test_messages_come_in_their_order(cell: Cell) -> None:
    sender, listener = await cell.open(), await cell.open()
    address, heard = fresh("server"), Heard()
    async with listener.switchboard.listen(address, heard):
        for number in range(200):
            await sender.switchboard.send(address, str(number).encode())
        assert await heard.all(200) == [str(number).encode() for number in range(200)]


async def test_what_nobody_listens_to_is_gone(cell: Cell, broker: Broker) -> None:
    address, heard = fresh("server"), Heard()
    await broker.switchboard.send(address, b"too early")
    async with broker.switchboard.listen(address, heard):
        await broker.switchboard.send(address, b"heard")
        await heard.all(1)
    await broker.switchboard.send(address, b"too late")
    async with broker.switchboard.listen(address, heard):
        await broker.switchboard.send(address, b"heard again")
        assert await heard.all(2) == [b"heard", b"heard again"]


async def test_the_largest_message_is_heard_whole_and_a_larger_one_refused(broker: Broker) -> None:
    address, heard = fresh("server"), Heard()
    large = bytes(range(256)) * ((MAX_PAYLOAD - 4096) // 256)
    async with broker.switchboard.listen(address, heard):
        with pytest.raises(PayloadTooLargeError):
            await broker.switchboard.send(address, bytes(MAX_PAYLOAD + 1))
        await broker.switchboard.send(address, large)
        assert await heard.all(1) == [large]


@pytest.mark.parametrize("address", ["", "a..b", "*", "a.>", "a b", ".a", "a\r\nb"])
async def test_an_address_is_made_of_tokens(broker: Broker, address: str) -> None:
    with pytest.raises(InvalidRequestError):
        await broker.switchboard.send(address, b"")
    with pytest.raises(InvalidRequestError):
        async with broker.switchboard.listen(address, lambda _: None):
            pass


class Weather(Faults):
    """The first message is lost on its way, the second one twice there, the third never leaves."""

    def __init__(self) -> None:
        self.sent = 0

    async def call(self, operation: str, subject: str) -> Verdict:
        self.sent += operation == "switchboard.send"
        return Verdict.LOST if self.sent == 3 else Verdict.OK

    def arrivals(self, consumer: str, message_id: str) -> list[float]:
        return [] if self.sent == 1 else [0.0, 0.0]


async def test_in_memory_messages_are_lost_but_never_doubled() -> None:
    broker, heard = MemoryBroker(faults=Weather()), Heard()
    async with broker.switchboard.listen("a", heard):
        await broker.switchboard.send("a", b"1")
        await broker.switchboard.send("a", b"2")
        with pytest.raises(BrokerUnavailableError):
            await broker.switchboard.send("a", b"3")
        await broker.switchboard.send("a", b"4")
        assert await heard.all(2) == [b"2", b"4"]


# --- buckets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", CONSOLES)
async def test_the_consoles_buckets_take_keys_once_and_tell_of_them(broker: Broker, bucket: Bucket) -> None:
    values, key = broker.bucket(bucket), f"{fresh('key')}.a"
    ttl = 60 if bucket in EXPIRING else None
    changes = values.watch(key)
    async with asyncio.timeout(PATIENCE):
        assert (await anext(changes)).kind is ChangeKind.CAUGHT_UP
        revision = await values.create(key, b"1", ttl=ttl)
        with pytest.raises(KeyConflictError):
            await values.create(key, b"1", ttl=ttl)
        assert (await anext(changes)).value == b"1"
        await values.update(key, b"2", revision=revision)
        assert (await anext(changes)).value == b"2"
        await values.delete(key)
        assert (await anext(changes)).kind is ChangeKind.DELETE
    assert await values.get(key) is None
    await changes.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("bucket", EXPIRING)
async def test_a_keys_own_ttl_counts_where_the_bucket_has_an_age(broker: Broker, bucket: Bucket) -> None:
    values, key, began = broker.bucket(bucket), fresh("key"), time.monotonic()
    await values.create(key, b"1", ttl=1)
    assert await values.get(key) is not None

    async def gone() -> bool:
        return await values.get(key) is None

    await until(gone)
    assert time.monotonic() - began >= 0.95
    await values.create(key, b"2", ttl=BUCKET_SPECS[bucket].max_age)


@pytest.mark.parametrize("bucket", EXPIRING)
async def test_no_key_outlives_its_buckets_age(broker: Broker, bucket: Bucket) -> None:
    age = BUCKET_SPECS[bucket].max_age
    assert age is not None
    with pytest.raises(InvalidRequestError, match="at most"):
        await broker.bucket(bucket).create(fresh("key"), b"", ttl=age + 1)


async def test_credentials_stay(broker: Broker) -> None:
    assert BUCKET_SPECS[Bucket.CREDENTIALS].max_age is None
    with pytest.raises(InvalidRequestError):
        await broker.bucket(Bucket.CREDENTIALS).create(fresh("key"), b"", ttl=60)
