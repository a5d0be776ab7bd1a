"""Quotas: a tenant has as many runs in flight as it may, and nobody is refused for a run that is over."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control.quotas import FORGOTTEN_SECONDS, MOST_QUEUED, Quotas
from fumehood.errors import IndexUnavailableError, QuotaExceededError


class World:
    """A broker, an index that a test moves on, and a clock."""

    def __init__(self, **most: int) -> None:
        self.broker = MemoryBroker(MemoryServer())
        self.most: dict[str, int] = most
        self.counted: dict[str, int] = {}
        self.ticks = 1000.0
        self.quotas = Quotas(self.broker, quota=self.quota, running=self._running, clock=lambda: self.ticks)
        self._number = 0

    async def quota(self, tenant: str) -> int | None:
        await asyncio.sleep(0)
        return self.most.get(tenant)

    async def _running(self, tenant: str) -> int:
        await asyncio.sleep(0)
        return self.counted.get(tenant, 0)

    async def admit(self, tenant: str = "acme") -> str:
        self._number += 1
        run_id = f"run-{self._number}"
        await self.quotas.admit(tenant, run_id)
        return run_id

    async def begin(self, run_id: str, tenant: str = "acme") -> None:
        """A decider takes it, and the index counts it."""
        await self.broker.bucket(Bucket.SUMMARIES).put(run_id, b"{}")
        self.counted[tenant] = self.counted.get(tenant, 0) + 1

    def end(self, tenant: str = "acme") -> None:
        self.counted[tenant] -= 1


async def refused(world: World, tenant: str = "acme") -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught:
        await world.admit(tenant)
    return caught.value


async def test_a_tenant_without_a_quota_has_as_many_as_it_likes() -> None:
    world = World(acme=1)
    for _ in range(MOST_QUEUED * 2):
        await world.admit("globex")


async def test_starts_that_nobody_has_looked_at_count() -> None:
    world = World(acme=2)
    await world.admit()
    await world.admit()
    error = await refused(world)
    assert error.retry_after_seconds >= 1
    assert "2 runs" in error.detail


async def test_one_tenant_does_not_use_up_anothers() -> None:
    world = World(acme=1, globex=1)
    await world.admit("acme")
    await world.admit("globex")
    await refused(world, "acme")


async def test_a_run_counts_once_whoever_looks() -> None:
    world = World(acme=2)
    await world.begin(await world.admit())
    await world.begin(await world.admit())
    await refused(world)
    world.end()
    await world.admit()
    await refused(world)


async def test_a_quota_of_none_lets_nobody_in() -> None:
    await refused(World(acme=0))


async def test_many_at_once_are_as_many_as_may() -> None:
    world = World(acme=5)
    results = await asyncio.gather(*(world.admit() for _ in range(50)), return_exceptions=True)
    assert sum(isinstance(one, str) for one in results) == 5
    assert all(isinstance(one, str | QuotaExceededError) for one in results)


async def test_a_start_that_came_to_nothing_counts_no_longer() -> None:
    world = World(acme=1)
    run_id = await world.admit()
    world.quotas.release("acme", run_id)
    await world.admit()
    await refused(world)
    world.ticks += FORGOTTEN_SECONDS
    await world.admit()


async def test_what_is_remembered_has_an_end() -> None:
    world = World(acme=10 * MOST_QUEUED)
    for _ in range(MOST_QUEUED):
        await world.admit()
    await refused(world)


async def test_what_cannot_be_counted_is_not_admitted() -> None:
    world = World(acme=1)

    async def building(_: str) -> int:
        raise IndexUnavailableError("it is being built")

    quotas = Quotas(world.broker, quota=world.quota, running=building)
    with pytest.raises(IndexUnavailableError):
        await quotas.admit("acme", "run-1")
    await quotas.admit("globex", "run-2")


@settings(max_examples=100, deadline=None)
@given(most=st.integers(0, 6), moves=st.lists(st.sampled_from(["start", "begin", "end"]), max_size=60))
async def test_never_more_than_may_and_never_fewer_than_could(most: int, moves: list[str]) -> None:
    """With an index that knows everything: a start is refused exactly if the tenant has all its runs in flight."""
    world = World(acme=most)
    queued: list[str] = []
    running = 0
    for move in moves:
        if move == "start":
            if len(queued) + running >= most:
                await refused(world)
            else:
                queued.append(await world.admit())
        elif move == "begin" and queued:
            await world.begin(queued.pop())
            running += 1
        elif move == "end" and running:
            world.end()
            running -= 1


async def test_to_look_takes_no_place_and_says_the_same_as_taking_one() -> None:
    world = World(acme=1)
    for _ in range(3):
        assert await world.quotas.check("acme")
    assert not await world.quotas.check("globex")
    await world.admit()
    with pytest.raises(QuotaExceededError):
        await world.quotas.check("acme")
