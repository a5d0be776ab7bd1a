"""Workers' credentials: shown once, a hello counts once in the whole cell, and a revocation ends what stands on it."""

from __future__ import annotations

import asyncio
import json

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.callers import ADMIN
from fumehood.control.console import credentials as module
from fumehood.control.console.credentials import NONCE_SECONDS, Credentials
from fumehood.errors import (
    BrokerUnavailableError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from fumehood.wire.console.console_pb2 import Capability, Declaration, Hello
from fumehood.wire.console.hello import WINDOW_MS, new_nonce, new_secret, sign_hello
from tests.waiting import until

NOW = 1_790_000_000_000
DECLARED = Declaration(capabilities=[Capability(name="echo", max_inflight=4)], labels={"zone": "a", "rack": "1"})


class Outage(Faults):
    """What is in `away` never arrives, what is in `mute` is done without a word."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.mute: set[str] = set()

    async def call(self, operation: str, subject: str) -> Verdict:
        if operation in self.mute:
            return Verdict.UNANSWERED
        return Verdict.LOST if operation in self.away else Verdict.OK


class World:
    """A cell with two servers."""

    def __init__(self) -> None:
        self.now = NOW
        self.memory = MemoryServer()
        self.faults = Outage()
        self.broker = MemoryBroker(self.memory, faults=self.faults)
        self.here = Credentials(self.broker, now_ms=lambda: self.now)
        self.there = Credentials(MemoryBroker(self.memory), now_ms=lambda: self.now)

    def hello(self, secret: str, worker_id: str = "w1", **changes: int) -> Hello:
        return sign_hello(worker_id, secret, DECLARED.SerializeToString(), changes.get("at", self.now), new_nonce())

    async def made(self, worker_id: str = "w1", **labels: str) -> str:
        _, secret = await self.here.create(worker_id, labels, ADMIN)
        return secret


@pytest.fixture
async def world() -> World:
    return World()


# --- made ----------------------------------------------------------------------------------------------------


async def test_a_secret_is_stored_nowhere_nor_anything_that_signs(world: World) -> None:
    secret = await world.made(zone="b")
    (entry,) = await world.broker.bucket(Bucket.CREDENTIALS).entries()
    stored = json.loads(entry.value)
    assert secret not in entry.value.decode()
    assert set(stored) == {"public_key", "labels", "created_at", "by"}
    with pytest.raises(UnauthenticatedError):
        await world.here.verify(world.hello(new_secret()))


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 65, "ä", "nonce.w"])
async def test_a_name_becomes_a_key_and_must_be_one(world: World, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await world.here.create(name, {}, ADMIN)
    with pytest.raises(NotFoundError):
        await world.here.revoke(name)


async def test_a_name_is_given_once(world: World) -> None:
    await world.made()
    with pytest.raises(ConflictError, match="revoke it first"):
        await world.there.create("w1", {}, ADMIN)


async def test_there_is_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WORKERS", 2)
    for name in ("a", "b"):
        await world.made(name)
    with pytest.raises(ConflictError, match="too many"):
        await world.made("c")


async def test_they_are_listed_page_by_page(world: World) -> None:
    for name in ("c", "a", "b"):
        await world.made(name, of=name)
    first, after = await world.there.list(limit=2)
    assert [(one.worker_id, one.labels) for one in first] == [("a", {"of": "a"}), ("b", {"of": "b"})]
    assert after == "b"
    rest, end = await world.there.list(after=after, limit=2)
    assert [one.worker_id for one in rest] == ["c"]
    assert end is None


# --- let in --------------------------------------------------------------------------------------------------


async def test_whoever_has_the_secret_is_let_in_with_what_it_declares(world: World) -> None:
    secret = await world.made()
    assert await world.there.verify(world.hello(secret)) == DECLARED


async def test_what_the_operator_says_of_a_worker_counts(world: World) -> None:
    secret = await world.made(zone="b")
    declared = await world.here.verify(world.hello(secret))
    assert dict(declared.labels) == {"zone": "b", "rack": "1"}


async def test_everybody_who_is_refused_is_told_the_same(world: World) -> None:
    secret = await world.made()
    used = world.hello(secret)
    await world.here.verify(used)
    told = set()
    for hello in (
        world.hello(new_secret()),
        world.hello(secret, worker_id="unknown"),
        world.hello(secret, at=NOW - WINDOW_MS - 1),
        world.hello(secret, at=NOW + WINDOW_MS + 1),
        used,
    ):
        with pytest.raises(UnauthenticatedError) as refused:
            await world.here.verify(hello)
        told.add(refused.value.detail)
    assert len(told) == 1


async def test_a_hello_counts_once_in_the_whole_cell(world: World) -> None:
    hello = world.hello(await world.made())
    results = await asyncio.gather(
        *(server.verify(hello) for server in (world.here, world.there) for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Declaration"] + ["UnauthenticatedError"] * 9


async def test_a_nonce_is_remembered_for_as_long_as_its_hello_could_count(world: World) -> None:
    secret = await world.made()
    early = world.hello(secret, at=NOW + WINDOW_MS)
    await world.here.verify(early)
    (entry,) = await world.broker.bucket(Bucket.CONSOLE).entries("nonce.w1")
    assert entry.ttl == NONCE_SECONDS
    assert NONCE_SECONDS * 1000 >= 2 * WINDOW_MS + 30_000, "with room for servers whose clocks differ"


async def test_strangers_leave_nothing_behind(world: World) -> None:
    await world.made()
    for hello in (world.hello(new_secret()), world.hello(new_secret(), worker_id="unknown")):
        with pytest.raises(UnauthenticatedError):
            await world.here.verify(hello)
    assert await world.broker.bucket(Bucket.CONSOLE).entries() == []


@pytest.mark.parametrize("away", ["credentials.get", "console.create"])
async def test_a_broker_that_cannot_be_asked_lets_nobody_in(world: World, away: str) -> None:
    secret = await world.made()
    world.faults.away.add(away)
    with pytest.raises(BrokerUnavailableError):
        await world.here.verify(world.hello(secret))


async def test_an_answer_that_was_lost_is_no_reason_to_let_anybody_in_twice(world: World) -> None:
    hello = world.hello(await world.made())
    world.faults.mute.add("console.create")
    with pytest.raises(BrokerUnavailableError):
        await world.here.verify(hello)
    world.faults.mute.clear()
    for server in (world.here, world.there):
        with pytest.raises(UnauthenticatedError):
            await server.verify(hello)


@pytest.mark.parametrize(
    "stored", [b"", b"[]", b"{}", b'{"public_key": "00", "labels": {}, "created_at": 1, "by": ""}']
)
async def test_what_cannot_be_read_lets_nobody_in(world: World, stored: bytes) -> None:
    secret = await world.made()
    await world.broker.bucket(Bucket.CREDENTIALS).put("w1", stored)
    with pytest.raises(UnauthenticatedError):
        await world.here.verify(world.hello(secret))
    assert await world.here.list(limit=10) == ([], None)


# --- revoked -------------------------------------------------------------------------------------------------


async def test_a_revoked_worker_is_let_in_nowhere(world: World) -> None:
    secret = await world.made()
    await world.there.revoke("w1")
    for server in (world.here, world.there):
        with pytest.raises(UnauthenticatedError):
            await server.verify(world.hello(secret))
    with pytest.raises(NotFoundError):
        await world.here.revoke("w1")


async def test_where_it_is_connected_that_is_told(world: World) -> None:
    revoked: list[str] = []
    world.here.on_revoked(revoked.append)
    await world.here.verify(world.hello(await world.made()))
    await world.here.verify(world.hello(await world.made("w2"), worker_id="w2"))
    working = asyncio.create_task(world.here.work())
    try:
        await asyncio.sleep(0)
        await world.there.revoke("w1")

        async def told() -> bool:
            return bool(revoked)

        await until(told)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert set(revoked) == {"w1"}


async def test_a_watch_that_fell_silent_hides_nothing(world: World) -> None:
    revoked: list[str] = []
    world.here.on_revoked(revoked.append)
    await world.here.verify(world.hello(await world.made()))
    await world.here.look()
    assert revoked == []
    await world.there.revoke("w1")
    for count in (1, 2):
        await world.here.look()
        assert revoked == ["w1"] * count, "again, until the console must know of its stream"


async def test_a_name_that_was_given_again_is_another_worker(world: World) -> None:
    revoked: list[str] = []
    world.here.on_revoked(revoked.append)
    old = await world.made()
    await world.here.verify(world.hello(old))
    await world.there.revoke("w1")
    _, new = await world.there.create("w1", {}, ADMIN)
    await world.here.look()
    assert revoked == ["w1"]
    with pytest.raises(UnauthenticatedError):
        await world.here.verify(world.hello(old))
    await world.here.verify(world.hello(new))
    await world.here.look()
    assert revoked == ["w1"]


async def test_a_list_that_lags_throws_nobody_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    revoked: list[str] = []
    world.here.on_revoked(revoked.append)
    await world.here.verify(world.hello(await world.made()))

    async def nothing_yet(_prefix: str = "") -> list[object]:
        return []

    monkeypatch.setattr(world.here._known, "entries", nothing_yet)
    await world.here.look()
    assert revoked == []
