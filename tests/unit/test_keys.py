"""Keys: shown once, never more than their maker, and worth nothing from the moment on that they are revoked."""

from __future__ import annotations

import dataclasses
import hmac
import json
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control import keys as keys_module
from fumehood.control.callers import ADMIN, DEFAULT_TENANT, Caller, Scope
from fumehood.control.key_store import FRESH_SECONDS, Tenant
from fumehood.control.keys import NewKey
from fumehood.errors import (
    BrokerUnavailableError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
)
from tests.unit.key_world import A_TENANTS, ALL_BUT_ADMIN, KeyWorld
from tests.waiting import until

READ = frozenset({Scope.RUNS_READ})


# --- made and shown ----------------------------------------------------------------------------------------


async def test_a_key_is_whoever_it_was_made_for() -> None:
    world = KeyWorld()
    key_id, token = await world.made(READ, tenant="acme")
    assert await world.keys.caller(token) == Caller("acme", f"{key_id}/k", READ)


async def test_a_token_is_stored_nowhere() -> None:
    world = KeyWorld()
    _, token = await world.made()
    secret = token.split("_", 2)[2]
    assert len(secret) >= 43
    for entry in await world.broker.bucket(Bucket.KEYS).entries():
        assert secret not in entry.value.decode()
    (key,) = (await world.keys.list(DEFAULT_TENANT, limit=10))[0]
    assert secret not in repr(key)
    assert key.hash.hex() not in repr(key)


async def test_no_two_keys_are_alike() -> None:
    world = KeyWorld()
    made = [await world.made() for _ in range(50)]
    assert len({key_id for key_id, _ in made}) == len({token for _, token in made}) == 50
    assert all("_" not in key_id and len(key_id) >= 12 for key_id, _ in made)


@pytest.mark.parametrize("change", ["", "x", "id", "prefix", "case", "truncated", "blank"])
async def test_what_is_nearly_a_key_is_none(change: str) -> None:
    world = KeyWorld()
    key_id, token = await world.made()
    _, other = await world.made()
    secret = token.removeprefix(f"fhk_{key_id}_")
    wrong = {
        "": "",
        "x": token + "x",
        "id": f"fhk_{other.split('_')[1]}_{secret}",
        "prefix": token.removeprefix("fhk_"),
        "case": f"fhk_{key_id}_{secret.swapcase()}",
        "truncated": token[:-1],
        "blank": f"{token}\n",
    }[change]
    assert await world.keys.caller(wrong) is None


@settings(max_examples=200, deadline=None)
@given(token=st.one_of(st.text(max_size=80), st.from_regex(r"fhk_[A-Za-z0-9-]{0,70}_[A-Za-z0-9_-]{0,140}")))
async def test_no_text_opens_anything_and_none_is_an_error(token: str) -> None:
    world = KeyWorld()
    await world.made()
    assert await world.keys.caller(token) is None


async def test_a_key_is_over_when_its_time_is() -> None:
    world = KeyWorld()
    _, token = await world.made(seconds=60)
    world.now += 59_999
    assert await world.keys.caller(token) is not None
    world.now += 1
    assert await world.keys.caller(token) is None


@pytest.mark.parametrize(("asked", "lives"), [(None, 60), (30, 30), (90, 60)])
async def test_a_key_ends_no_later_than_the_key_that_made_it(asked: int | None, lives: int) -> None:
    world = KeyWorld()
    _, token = await world.made(frozenset({Scope.KEYS, *READ}), seconds=60)
    maker = await world.keys.caller(token)
    assert maker is not None
    key, _ = await world.keys.create(NewKey("k", READ, expires_in_seconds=asked), maker)
    assert key.expires_at == world.now + lives * 1000


async def test_a_damaged_key_and_a_scope_of_another_version_open_nothing() -> None:
    world = KeyWorld()
    bucket = world.broker.bucket(Bucket.KEYS)
    key_id, token = await world.made(frozenset({Scope.RUNS_READ, Scope.KEYS}))
    entry = await bucket.get(f"key.{key_id}")
    assert entry is not None
    said = json.loads(entry.value)
    await bucket.put(f"key.{key_id}", json.dumps(said | {"scopes": ["runs:read", "runs:everything"]}).encode())
    caller = await world.keys.caller(token)
    assert caller is not None
    assert caller.scopes == READ
    for damage in (b"", b"[]", b"{}", json.dumps(said | {"hash": "zz"}).encode(), b"\xff"):
        await bucket.put(f"key.{key_id}", damage)
        assert await world.keys.caller(token) is None


async def test_keys_are_listed_page_by_page_without_another_tenants() -> None:
    world = KeyWorld()
    ids = []
    for _ in range(5):
        world.now += 1
        ids.append((await world.made())[0])
        await world.made(tenant="acme")
    first, following = await world.keys.list(DEFAULT_TENANT, limit=3)
    rest, end = await world.keys.list(DEFAULT_TENANT, after=following or "", limit=3)
    assert [key.id for key in (*first, *rest)] == ids
    assert end is None


async def test_there_are_only_so_many_keys_and_those_that_are_over_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys_module, "MOST_OF_TENANT", 3)
    world = KeyWorld()
    _, lasting = await world.made()
    await world.made(seconds=1)
    await world.made(seconds=1)
    with pytest.raises(ConflictError):
        await world.made()
    world.now += 1000
    await world.made()
    assert len(await world.store.keys()) == 2
    assert await world.keys.caller(lasting) is not None


async def test_no_tenant_can_use_up_the_keys_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "MOST_OF_TENANT", 2)
    monkeypatch.setattr(keys_module, "MOST_KEYS", 3)
    world = KeyWorld()
    acme, globex = (Caller(tenant, "m", frozenset({Scope.KEYS, *READ})) for tenant in ("acme", "globex"))
    for _ in range(2):
        await world.made(by=acme)
    with pytest.raises(ConflictError) as own:
        await world.made(by=acme)
    await world.made(by=globex)
    with pytest.raises(ConflictError) as of_all:
        await world.made(by=globex)
    assert own.value.detail == of_all.value.detail, "who is refused does not learn how many others there are"
    await world.made(tenant="globex", by=ADMIN)
    await world.made(by=ADMIN)


# --- who may make which ------------------------------------------------------------------------------------

SCOPES = st.frozensets(st.sampled_from(sorted(Scope)))


@settings(max_examples=300, deadline=None)
@given(has=SCOPES, wants=SCOPES, own=st.booleans())
async def test_nobody_gives_what_it_does_not_have(has: frozenset[Scope], wants: frozenset[Scope], own: bool) -> None:
    """Whatever a chain of keys does, no link has more than the one before it."""
    world = KeyWorld()
    caller = Caller(DEFAULT_TENANT, "somebody", has)
    tenant = DEFAULT_TENANT if own else "acme"
    wish = NewKey("k", wants, tenant)
    may = Scope.ALL in has or (own and Scope.KEYS in has and wants <= has)
    if not may:
        with pytest.raises(ForbiddenError):
            await world.keys.create(wish, caller)
    elif {Scope.WORKERS, Scope.ALL} & wants and not own:
        with pytest.raises(InvalidRequestError, match="of the tenant default only"):
            await world.keys.create(wish, caller)
    else:
        key, _ = await world.keys.create(wish, caller)
        assert (key.tenant, key.scopes, key.by) == (tenant, wants, "somebody")
        return
    assert await world.store.keys() == []


async def test_a_key_is_of_its_makers_tenant_unless_it_is_said() -> None:
    world = KeyWorld()
    maker = Caller("acme", "m", A_TENANTS)
    key, _ = await world.keys.create(NewKey("k", READ), maker)
    assert key.tenant == "acme"
    with pytest.raises(ForbiddenError):
        await world.keys.create(NewKey("k", READ, DEFAULT_TENANT), maker)


@pytest.mark.parametrize(
    ("caller", "may"),
    [
        (ADMIN, True),
        (Caller("acme", "m", frozenset({Scope.KEYS, *READ})), True),
        (Caller("acme", "m", frozenset({Scope.KEYS})), False),
        (Caller("acme", "m", A_TENANTS - {Scope.KEYS}), False),
        (Caller("globex", "m", A_TENANTS), False),
        (Caller(DEFAULT_TENANT, "m", ALL_BUT_ADMIN), False),
    ],
)
async def test_a_key_is_revoked_by_its_own_tenants_equals_or_the_administrator(caller: Caller, may: bool) -> None:
    world = KeyWorld()
    key_id, token = await world.made(tenant="acme")
    if may:
        assert (await world.keys.revoke(key_id, caller)).id == key_id
        assert await world.keys.caller(token) is None
        return
    with pytest.raises(NotFoundError) as hidden:
        await world.keys.revoke(key_id, caller)
    with pytest.raises(NotFoundError) as unknown:
        await world.keys.revoke("0" * 21, caller)
    assert hidden.value.detail == unknown.value.detail
    assert await world.keys.caller(token) is not None


@pytest.mark.parametrize("key_id", ["", "a.b", "*", ">", "x" * 65, "key\n", "../tenant", "change"])
async def test_what_cannot_be_a_keys_id_is_nobodys(key_id: str) -> None:
    with pytest.raises(NotFoundError):
        await KeyWorld().keys.revoke(key_id, ADMIN)


# --- what is remembered ------------------------------------------------------------------------------------


async def test_a_server_that_watches_answers_from_memory() -> None:
    world = KeyWorld()
    async with world.watching():
        _, token = await world.made()
        await world.keys.caller(token)
        world.faults.asked.clear()
        for _ in range(100):
            assert await world.keys.caller(token) is not None
            assert await world.keys.caller(token[:-4] + "AAAA") is None
            assert await world.keys.caller("fhk_" + "0" * 21 + "_" + "A" * 43) is None
        assert world.faults.asked == []


async def test_a_revocation_counts_at_the_server_that_made_it_at_once_and_at_others_when_told() -> None:
    memory = MemoryServer()
    here, there = KeyWorld(memory), KeyWorld(memory)
    async with here.watching(), there.watching():
        key_id, token = await here.made()

        async def known() -> bool:
            return await there.keys.caller(token) is not None

        await until(known)
        await here.keys.revoke(key_id, ADMIN)
        assert await here.keys.caller(token) is None

        async def gone() -> bool:
            return await there.keys.caller(token) is None

        await until(gone)


async def test_a_watch_that_fell_silent_is_not_believed() -> None:
    """The one server's watch tells nothing any more, and nothing says so."""
    memory = MemoryServer()
    here, deaf = KeyWorld(memory), KeyWorld(memory)
    key_id, token = await here.made()
    async with deaf.watching():
        assert await deaf.keys.caller(token) is not None
    deaf_memory = deaf.store._memory  # as a watch leaves it that is cut off without a word
    assert deaf_memory.caught_up
    await here.keys.revoke(key_id, ADMIN)
    assert deaf_memory.keys
    deaf.ticks += FRESH_SECONDS
    assert await deaf.keys.caller(token) is None


async def test_what_is_remembered_counts_for_no_longer_than_a_second_without_the_broker() -> None:
    world = KeyWorld()
    async with world.watching():
        _, token = await world.made()
        await world.keys.caller(token)
        world.faults.away.add("keys.get")
        assert await world.keys.caller(token) is not None
        world.ticks += FRESH_SECONDS
        for _ in range(3):
            with pytest.raises(BrokerUnavailableError):
                await world.keys.caller(token)
        world.faults.away.clear()
        assert await world.keys.caller(token) is not None


async def test_before_the_watch_has_told_everything_the_leader_is_asked() -> None:
    world = KeyWorld()
    _, token = await world.made()
    world.faults.asked.clear()
    assert await world.keys.caller(token) is not None
    assert len(world.faults.asked) == 1
    world.faults.away.add("keys.get")
    with pytest.raises(BrokerUnavailableError):
        await world.keys.caller(token)


async def test_a_wrong_secret_and_an_unknown_id_are_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests to the broker, and one comparison in constant time."""
    world = KeyWorld()
    _, token = await world.made()
    asked, compared = [], Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr("fumehood.control.keys.hmac.compare_digest", compared)
    for one in (token[:-4] + "AAAA", "fhk_" + "0" * 21 + "_" + "A" * 43):
        world.faults.asked.clear()
        assert await world.keys.caller(one) is None
        asked.append(len(world.faults.asked))
    assert asked == [1, 1]
    assert compared.call_count == 2


# --- tenants -----------------------------------------------------------------------------------------------


async def test_a_tenant_may_use_everything_until_it_is_said_otherwise() -> None:
    memory = MemoryServer()
    here, there = KeyWorld(memory), KeyWorld(memory)
    async with there.watching():
        assert await there.keys.tenant("acme") == Tenant("acme", None)
        await here.keys.set_tenant(Tenant("acme", 5))

        async def told() -> bool:
            return await there.keys.max_runs("acme") == 5

        await until(told)
        assert await here.keys.max_runs("acme") == 5
        assert await there.keys.max_runs("globex") is None


async def test_tenants_are_those_with_keys_or_a_quota_and_the_default_one() -> None:
    world = KeyWorld()
    await world.made(tenant="b")
    await world.keys.set_tenant(Tenant("c", 1))
    assert list(await world.keys.tenants()) == [Tenant("b"), Tenant("c", 1), Tenant(DEFAULT_TENANT)]


def test_a_key_cannot_be_changed_by_who_holds_it() -> None:
    caller = Caller("acme", "k", READ)
    with pytest.raises(dataclasses.FrozenInstanceError):
        caller.tenant = "globex"  # type: ignore[misc]
