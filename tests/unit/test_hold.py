"""When a node renews the lease of a task."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.node.hold import RENEW_SECONDS, Hold
from fumehood.wire.protocol import TaskPayload
from tests.waiting import past


class Desk:
    def __init__(self) -> None:
        self._broker = MemoryBroker(MemoryServer())
        self._handouts = Handouts(self._broker)
        self.renewed: list[Lease] = []

    async def hold(self) -> Hold:
        """Of a lease that was just taken."""
        task = TaskPayload(task_id="run.step", run_id="run", step_id="step")
        await self._broker.tasks.publish("llm", "run", "1", task.encode())
        (taken,) = await self._handouts.take(["llm"], max_tasks=1, timeout=0, worker_id="w", lease_seconds=60)
        return Hold(self._handouts, taken.lease, self.renewed.append)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_new_lease_is_renewed_after_a_while(desk: Desk) -> None:
    hold = await desk.hold()
    async with hold.kept(new=True):
        await past(RENEW_SECONDS - 0.5)
        assert desk.renewed == []
        await past(1)
        assert len(desk.renewed) == 1
        await past(RENEW_SECONDS)
        assert len(desk.renewed) == 2


@pytest.mark.parametrize(("new", "age"), [(False, 0.0), (True, RENEW_SECONDS)])
async def test_other_leases_are_renewed_at_once(desk: Desk, new: bool, age: float) -> None:
    hold = await desk.hold()
    await past(age)
    async with hold.kept(new=new):
        async with asyncio.timeout(RENEW_SECONDS / 2):
            assert await hold.confirmed
    assert len(desk.renewed) == 1


async def test_the_beginning_of_the_command_is_stored_at_once(desk: Desk) -> None:
    hold = await desk.hold()
    async with hold.kept(new=True):
        hold.begin()
        async with asyncio.timeout(RENEW_SECONDS / 2):
            assert await hold.confirmed
    assert [lease.begun_ms for lease in desk.renewed] == [hold.lease.begun_ms]
    assert hold.lease.begun_ms > 0
