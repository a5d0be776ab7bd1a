"""The published list of receipt keys: one root, versions that only grow, and whoever checks is told of changes."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.receipt_keys import FRESH_SECONDS, ReceiptKeyStore
from fumehood.errors import BrokerUnavailableError, ConflictError, InvalidRequestError, NotFoundError, UnverifiedError
from fumehood.verify.dsse import to_file
from fumehood.verify.keylist import published
from tests.unit.receipt_world import OTHER_ROOT, ROOT, key_list, listed

FIRST, SECOND = key_list(listed("w1")), key_list(listed("w1"), listed("w2"), version=2)


class World:
    def __init__(self) -> None:
        self.server = MemoryServer()
        self.now = 0.0

    def store(self, *, root: bytes | None = None, faults: Faults | None = None) -> ReceiptKeyStore:
        return ReceiptKeyStore(MemoryBroker(self.server, faults=faults or Faults()), root=root, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


async def test_before_the_first_there_is_none(world: World) -> None:
    store = world.store()
    assert await store.current() is None
    with pytest.raises(NotFoundError):
        await store.document()


async def test_what_is_published_counts_at_once_here_and_soon_elsewhere(world: World) -> None:
    here, there = world.store(), world.store()
    assert await here.current() is None
    assert await there.current() is None
    assert await here.publish(published(FIRST, ROOT)) == (FIRST, True)
    assert await here.current() == FIRST
    assert await there.current() is None
    world.now += FRESH_SECONDS
    assert await there.current() == FIRST
    assert await there.document() == published(FIRST, ROOT)


async def test_the_first_list_fixes_the_root(world: World) -> None:
    store = world.store()
    await store.publish(published(FIRST, ROOT))
    with pytest.raises(ConflictError, match="another root"):
        await store.publish(published(SECOND, OTHER_ROOT))
    assert await store.current() == FIRST


async def test_a_root_from_outside_is_the_only_one(world: World) -> None:
    pinned = world.store(root=ROOT.public_key)
    with pytest.raises(ConflictError, match="receipt_root"):
        await pinned.publish(published(FIRST, OTHER_ROOT))
    assert await pinned.current() is None
    await world.store().publish(published(FIRST, OTHER_ROOT))
    world.now += FRESH_SECONDS
    with pytest.raises(UnverifiedError, match="receipt_root") as caught:
        await pinned.current()
    assert caught.value.reason == "wrong_root"
    await pinned.publish(published(SECOND, ROOT))
    assert await pinned.current() == SECOND


async def test_versions_only_grow(world: World) -> None:
    store = world.store()
    await store.publish(published(SECOND, ROOT))
    with pytest.raises(ConflictError, match="version 1 and the published one 2"):
        await store.publish(published(FIRST, ROOT))
    with pytest.raises(ConflictError, match="version 2"):
        await store.publish(published(key_list(listed("w3"), version=2), ROOT))
    assert await store.publish(published(SECOND, ROOT)) == (SECOND, False)
    assert await store.current() == SECOND


async def test_what_its_root_did_not_sign_is_refused(world: World) -> None:
    store = world.store()
    for document in ({}, {"root": "x", "list": {}}, published(FIRST, OTHER_ROOT) | {"root": ROOT.public_key.hex()}):
        with pytest.raises(InvalidRequestError):
            await store.publish(document)
    assert await store.current() is None


async def test_of_two_at_once_none_is_lost_unseen(world: World) -> None:
    wanted = [key_list(listed(f"w{n}"), version=2) for n in range(4)]
    await world.store().publish(published(FIRST, ROOT))
    done = await asyncio.gather(
        *(world.store().publish(published(keys, ROOT)) for keys in wanted), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in done) == ["ConflictError"] * 3 + ["tuple"]
    (winner,) = (one[0] for one in done if isinstance(one, tuple))
    assert await world.store().current() == winner


async def test_what_lies_in_the_broker_is_checked_too(world: World) -> None:
    forged = published(FIRST, OTHER_ROOT) | {"root": ROOT.public_key.hex()}
    await MemoryBroker(world.server).bucket(Bucket.RECEIPT_KEYS).put("published", to_file(forged))
    with pytest.raises(UnverifiedError):
        await world.store().current()


class Counting(Faults):
    def __init__(self, verdict: Verdict = Verdict.OK) -> None:
        self.calls = 0
        self.verdict = verdict

    async def call(self, operation: str, subject: str) -> Verdict:
        self.calls += 1
        return self.verdict


async def test_many_who_ask_are_one_question(world: World) -> None:
    await world.store().publish(published(FIRST, ROOT))
    faults = Counting()
    store = world.store(faults=faults)
    assert await asyncio.gather(*(store.current() for _ in range(50))) == [FIRST] * 50
    assert faults.calls == 1


async def test_a_broker_that_is_away_is_no_list_that_is_empty(world: World) -> None:
    store = world.store(faults=Counting(Verdict.LOST))
    with pytest.raises(BrokerUnavailableError):
        await store.current()


async def test_a_list_whose_answer_was_lost_may_be_published_again(world: World) -> None:
    faults = Counting(Verdict.UNANSWERED)
    store = world.store()
    with pytest.raises(BrokerUnavailableError):
        await world.store(faults=faults)._write(to_file(published(FIRST, ROOT)), None)
    assert await store.publish(published(FIRST, ROOT)) == (FIRST, False)
