"""The warm pool: whoever is above it sees no difference but time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood.errors import EngineUnavailableError, LedgerError, SandboxNameTakenError
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Handle, State
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.pool import driver, stock
from fumehood.sandbox.pool.store import PoolStore
from fumehood.sandbox.pool.values import LABEL_WARM, Claim, PoolOptions, key_of, stock_spec
from fumehood.sandbox.pool.waiting import Later, Waiting
from fumehood.sandbox.spec import ROOT, Limits, Network, Outcome, SandboxSpec
from tests.unit.pool_world import NO_KEEPER, QUICK, PoolWorld, image, said, spec
from tests.waiting import turns, until


@pytest.fixture(autouse=True, scope="module")
def admitted() -> None:
    image()  # before there is a loop


@pytest.fixture
def world(tmp_path: Path) -> PoolWorld:
    return PoolWorld(tmp_path)


def mine(**changes: object) -> SandboxSpec:
    return spec(labels={"fumehood.job_id": "j1", "other.label": "x"}, **changes)


# --- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": Limits(memory_bytes=1024)},
        {"limits": Limits(workspace_bytes=1024)},
        {"user": ROOT},
        {"user": None},
        {"network": Network.FULL},
        {"runtime": "runsc"},
        {"read_only_root": False},
        {"waiting": "python"},
        {"labels": {"other.label": "y"}},
    ],
)
def test_what_cannot_change_after_the_start_makes_another_kind(changes: dict[str, object]) -> None:
    assert key_of(spec(**changes)) != key_of(spec())


def test_whose_it_is_makes_none() -> None:
    assert key_of(spec(name="run-1", labels={"fumehood.job_id": "1"})) == key_of(spec(name="run-2"))


# --- claims ------------------------------------------------------------------------------------------------


async def test_one_out_of_stock_is_its_owners_as_if_it_had_been_made_for_him(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        wanted = mine()
        await pool.warm(wanted)
        assert await pool.list({}) == [], "what is nobody's is nobody's business"
        handle = await pool.prepare(wanted)
        assert (world.given, world.boxes, pool.idle) == (["warm"], 1, 0)
        assert handle.sandbox_id == wanted.sandbox_id
        assert wanted.labels.items() <= handle.labels.items()
        assert handle.labels["fumehood.sandbox"] == wanted.sandbox_id
        assert LABEL_WARM not in handle.labels
        await pool.start(handle)
        outcome, text = await said(pool, handle, "echo", "hello")
        assert (outcome.exit_code, text) == (0, "hello\n")
        for labels in ({}, {"fumehood.job_id": "j1"}, {"other.label": "x"}, {"fumehood.sandbox": handle.sandbox_id}):
            assert await pool.list(labels) == [handle]
        assert await pool.list({"fumehood.job_id": "j2"}) == []
        assert await pool.list({LABEL_WARM: "true"}) == []
        await pool.destroy(handle)
        assert (await pool.list({}), world.boxes) == ([], 0)
        assert (await pool.inspect(handle)).state is State.GONE


async def test_each_is_given_once(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        for _ in range(3):
            await pool.warm(spec())
        handles = await asyncio.gather(*(pool.prepare(spec()) for _ in range(5)))
        assert sorted(world.given) == ["cold", "cold", "warm", "warm", "warm"]
        assert len({handle.engine_id for handle in handles}) == 5
        for handle in handles:
            await pool.destroy(handle)


async def test_another_kind_is_not_taken_for_it(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        handle = await pool.prepare(spec(limits=Limits(pids=9)))
        assert (world.given, pool.idle) == (["cold"], 1)
        await pool.destroy(handle)


async def test_one_that_died_in_stock_is_not_given(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        await pool.warm(spec())
        (dead, alive) = list(world.engine.boxes.values())
        world.engine.end(dead.handle)
        handle = await pool.prepare(spec())
        assert (handle.engine_id, world.given) == (alive.handle.engine_id, ["warm"])
        await pool.destroy(handle)
        await until(lambda: world.boxes == 0)


async def test_one_that_died_in_stock_is_replaced_before_anybody_asks(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(stock, "LOOK_SECONDS", 0.01)
    async with world.life() as pool:
        await pool.destroy(await pool.prepare(spec()))
        await until(lambda: pool.idle == 1)
        (dead,) = list(world.engine.boxes.values())
        world.engine.end(dead.handle)
        await until(lambda: pool.idle == 1 and dead.handle.engine_id not in world.engine.boxes)
        handle = await pool.prepare(spec())
        assert (world.given, handle.engine_id != dead.handle.engine_id) == (["cold", "warm"], True)
        await pool.destroy(handle)


async def test_it_has_its_owners_name(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        handle = await pool.prepare(spec(name="run-1"))
        assert world.engine.box(handle).spec.name == "run-1"
        await pool.warm(spec())
        with pytest.raises(SandboxNameTakenError):
            await pool.prepare(spec(name="run-1"))
        await until(lambda: world.boxes == 1)
        assert await pool.list({}) == [handle]
        await pool.destroy(handle)


async def test_whoever_leaves_in_the_middle_of_a_claim_leaves_nothing(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        for turns in range(12):
            await pool.warm(spec())
            claiming = asyncio.create_task(pool.prepare(spec(name=f"run-{turns}")))
            for _ in range(turns):
                await asyncio.sleep(0)
            claiming.cancel()
            done = await asyncio.gather(claiming, return_exceptions=True)
            if isinstance(done[0], Handle):
                await pool.destroy(done[0])
            await until(lambda: pool.idle == world.boxes)
        await until(lambda: pool.idle == world.boxes)
    assert world.boxes == 0
    store = await PoolStore.open(world.folder / "pool.sqlite3")
    assert await store.all() == []
    await store.close()


async def test_a_store_that_fails_costs_time_and_nothing_else(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        monkeypatch.setattr(PoolStore, "claim", full)
        handle = await pool.prepare(spec())
        assert world.given == ["cold"]
        await pool.destroy(handle)
        await until(lambda: world.boxes == 0)


async def test_the_same_sandbox_is_never_claimed_twice(world: PoolWorld) -> None:
    store = await PoolStore.open(world.folder / "pool.sqlite3")
    inner = Handle("inner", "engine", {})
    await store.claim(Claim("a", {}, inner))
    with pytest.raises(LedgerError):
        await store.claim(Claim("b", {}, inner))
    with pytest.raises(LedgerError):
        await store.claim(Claim("a", {}, Handle("other", "engine-2", {})))
    await store.close()


# --- lives -------------------------------------------------------------------------------------------------


async def test_the_next_life_finds_what_was_claimed_and_removes_the_stock(world: PoolWorld) -> None:
    wanted = mine()
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(wanted)
        handle = await pool.prepare(wanted)
    driver = FakeDriver(world.engine)
    left = await driver.prepare(spec(labels={LABEL_WARM: "true"}))  # a killed process does not clear its stock
    await driver.start(left)
    async with world.life(NO_KEEPER) as pool:
        assert await pool.list({"fumehood.job_id": "j1"}) == [handle]
        await pool.attach(handle)
        assert (await said(pool, handle, "echo", "again"))[1] == "again\n"
        await until(lambda: world.boxes == 1)
        assert await pool.list({}) == [handle]
        await pool.destroy(handle)
    assert world.boxes == 0


async def test_a_machine_that_was_started_anew_has_no_claims(world: PoolWorld) -> None:
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        await pool.prepare(spec())
    world.engine.boxes.clear()
    async with world.life(NO_KEEPER) as pool:
        await until(lambda: not pool._claims)
        assert await pool.list({}) == []


async def test_an_engine_that_is_away_is_waited_for_before_anything_is_forgotten(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(mine())
        handle = await pool.prepare(mine())
    answers: Iterator[bool] = iter([False])
    real = FakeDriver.list

    async def listed(driver: FakeDriver, labels: dict[str, str]) -> list[Handle]:
        if next(answers, True):
            return await real(driver, labels)
        raise EngineUnavailableError("the engine is away")

    monkeypatch.setattr(FakeDriver, "list", listed)
    async with world.life(NO_KEEPER) as pool:
        await until(lambda: not pool._stock._tasks)
        assert await pool.list({}) == [handle]
        await pool.destroy(handle)


async def test_closing_leaves_what_was_claimed_and_nothing_else(world: PoolWorld) -> None:
    async with world.life() as pool:
        handle = await pool.prepare(spec())
        await until(lambda: pool.idle > 0)
    assert [box.handle.engine_id for box in world.engine.boxes.values()] == [handle.engine_id]


# --- keeping -----------------------------------------------------------------------------------------------


async def test_what_was_asked_for_is_in_stock_the_next_time_and_is_replaced(world: PoolWorld) -> None:
    async with world.life() as pool:
        for expected in ("cold", "warm", "warm"):
            handle = await pool.prepare(spec())
            await pool.start(handle)
            assert (await said(pool, handle, "echo", "x"))[1] == "x\n"
            await pool.destroy(handle)
            assert world.given[-1] == expected
            await until(lambda: pool.idle > 0)


async def test_a_kind_that_nobody_asks_for_leaves_the_stock(world: PoolWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.sandbox.pool.stock.LOOK_SECONDS", 0.05)
    async with world.life(PoolOptions(most=2, keep_seconds=0.5, quiet_seconds=0)) as pool:
        handle = await pool.prepare(spec())
        await pool.destroy(handle)
        await until(lambda: pool.idle > 0)
        await until(lambda: pool.idle == 0 and world.boxes == 0)


async def test_no_more_than_there_is_room_for(world: PoolWorld) -> None:
    async with world.life(QUICK) as pool:
        handles = [await pool.prepare(spec(limits=Limits(pids=pids))) for pids in range(10, 20)]
        await until(lambda: pool.idle == QUICK.most and pool.making == 0)
        assert world.boxes == len(handles) + QUICK.most
        for handle in handles:
            await pool.destroy(handle)


class Broken(FakeDriver):
    """An engine that makes nothing for the stock."""

    tries = 0

    async def prepare(self, spec: SandboxSpec) -> Handle:
        if LABEL_WARM in spec.labels:
            self.tries += 1
            raise EngineUnavailableError("the engine is away")
        return await super().prepare(spec)


async def test_an_engine_that_fails_is_not_asked_again_and_again(world: PoolWorld) -> None:
    driver = Broken(world.engine)
    async with world.life(QUICK, driver) as pool:
        for _ in range(20):
            await pool.destroy(await pool.prepare(spec()))
            await asyncio.sleep(0)
        await until(lambda: driver.tries > 0 and pool.making == 0)
        assert driver.tries <= 4
        assert set(world.given) == {"cold"}


class Slow(FakeDriver):
    """Its starts take until they may end."""

    def __init__(self, world: PoolWorld) -> None:
        super().__init__(world.engine)
        self.go_on = asyncio.Event()
        self.warm = self.most = 0

    async def start(self, handle: Handle) -> None:
        if LABEL_WARM in handle.labels:
            self.warm += 1
            self.most = max(self.most, self.warm)
            await self.go_on.wait()
            self.warm -= 1
        await super().start(handle)


async def test_while_somebody_waits_for_his_own_one_at_a_time_is_made(world: PoolWorld) -> None:
    driver = Slow(world)
    async with world.life(PoolOptions(most=8, quiet_seconds=0, starts=2), driver) as pool:
        with pool._stock.starting():
            handles = [await pool.prepare(spec(limits=Limits(pids=pids))) for pids in range(10, 18)]
            await until(lambda: driver.warm == 1)
            driver.go_on.set()
            await until(lambda: pool.idle == 8)
        assert driver.most == 1
        for handle in handles:
            await pool.destroy(handle)


async def test_a_stock_that_closes_while_one_is_made_leaves_none(world: PoolWorld) -> None:
    driver = Slow(world)
    async with world.life(QUICK, driver) as pool:
        handle = await pool.prepare(spec())
        await until(lambda: driver.warm == 1)
        driver.go_on.set()
        await pool.destroy(handle)
    assert world.boxes == 0


class Sluggish(FakeDriver):
    """Everything takes a moment."""

    async def start(self, handle: Handle) -> None:
        await turns(200)
        await super().start(handle)

    async def destroy(self, handle: Handle) -> None:
        await turns(200)
        await super().destroy(handle)


async def test_what_is_made_while_the_stock_closes_is_removed_before_it_has_closed(world: PoolWorld) -> None:
    async with world.life(QUICK, Sluggish(world.engine)) as pool:
        await pool.destroy(await pool.prepare(spec()))
        await until(lambda: pool.making == 1, every=0)
    assert world.boxes == 0


async def test_what_an_engine_made_too_late_is_removed(world: PoolWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SWEEP_SECONDS", 0.01)
    async with world.life(NO_KEEPER) as pool:
        await pool.warm(spec())
        claimed = await pool.prepare(spec())
        await pool.warm(spec())
        await FakeDriver(world.engine).prepare(stock_spec(spec(), "late"))
        await until(lambda: "late" not in {box.handle.sandbox_id for box in world.engine.boxes.values()})
        assert (world.boxes, pool.idle) == (2, 1)
        await pool.destroy(claimed)


async def test_an_interpreter_that_says_something_does_not_wait() -> None:
    """Its end stands behind what it said, and is not heard of."""
    heard = Later()
    task: asyncio.Task[Outcome] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    waiting = Waiting(task, heard)
    before = waiting.ended
    saying = asyncio.create_task(heard.room())
    await asyncio.sleep(0)
    assert (before, waiting.ended) == (False, True)
    for one in (saying, task):
        one.cancel()
    told = Later()
    told.tell(Capture(1))
    await told.room()
    assert not told.spoke, "what it was asked to say"


class Stubborn(FakeDriver):
    """An engine that does not remove anything at first."""

    refusals = 3

    async def destroy(self, handle: Handle) -> None:
        if self.refusals:
            self.refusals -= 1
            raise EngineUnavailableError("the engine is away")
        await super().destroy(handle)


async def test_what_cannot_be_removed_is_removed_later(world: PoolWorld) -> None:
    driver = Stubborn(world.engine)
    async with world.life(NO_KEEPER, driver) as pool:
        await pool.warm(spec())
        (idle,) = world.engine.boxes.values()
        world.engine.end(idle.handle)
        handle = await pool.prepare(spec())
        await until(lambda: world.boxes == 1)
        await pool.destroy(handle)
    assert (driver.refusals, world.boxes) == (0, 0)
