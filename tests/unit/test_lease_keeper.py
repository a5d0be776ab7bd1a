"""The keeper: more time from the queue while a lease runs, "again, now" when it is over, and nothing without bound."""

from __future__ import annotations

import pytest

from fumehood.broker.clock import ManualClock
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.control.bridge_keeper import Keeper
from fumehood.wire.protocol import TaskPayload
from tests.waiting import until


class Noting(Faults):
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked.append(operation)
        return Verdict.LOST if self.broken else Verdict.OK


class Desk:
    """A queue whose patience is 300 s, and leases of 1,000 s."""

    def __init__(self, most: int = 100) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.faults = Noting()
        self.keeper = Keeper(
            MemoryBroker(self.server, faults=self.faults).tasks, extend_seconds=100, now_ms=self.now_ms, most=most
        )
        self.handouts = Handouts(MemoryBroker(self.server), default_seconds=1000, now_ms=self.now_ms)

    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    async def take(self, run_id: str = "run") -> Leased | None:
        found = await self.handouts.take(["llm"], max_tasks=1, timeout=0, worker_id="w", run_id=run_id)
        return found[0] if found else None

    async def hand_out(self, run_id: str = "run") -> Leased:
        task = TaskPayload(task_id=f"{run_id}.step", run_id=run_id, step_id="step")
        await MemoryBroker(self.server).tasks.publish("llm", run_id, "1", task.encode())
        taken = await self.take(run_id)
        assert taken is not None
        return taken

    async def pass_time(self, seconds: int, step: int = 50) -> None:
        for _ in range(0, seconds, step):
            self.clock.advance(step)
            await self.keeper.tick()


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_while_a_lease_runs_the_queue_is_asked_for_patience(desk: Desk) -> None:
    desk.keeper.hold((await desk.hand_out()).lease)
    await desk.pass_time(950)
    assert await desk.take() is None
    assert desk.handouts.counts["later"] == 0, "it was never handed out in vain"
    assert desk.faults.asked == ["tasks.extend"] * 9
    await desk.keeper.close()


async def test_when_a_lease_is_over_its_task_is_there_at_once(desk: Desk) -> None:
    desk.keeper.hold((await desk.hand_out()).lease)
    await desk.pass_time(1000)
    assert len(desk.keeper) == 0
    again = await desk.take()
    assert again is not None
    assert again.lease.count == 2
    await desk.keeper.close()


async def test_a_lease_that_was_extended_is_held_longer(desk: Desk) -> None:
    one = await desk.hand_out()
    desk.keeper.hold(one.lease)
    await desk.pass_time(500)
    desk.keeper.hold(await desk.handouts.heartbeat(one.lease))
    await desk.pass_time(900)
    assert len(desk.keeper) == 1
    assert await desk.take() is None
    await desk.keeper.close()


async def test_an_answered_lease_is_forgotten_and_another_ones_is_not(desk: Desk) -> None:
    first = (await desk.hand_out()).lease
    desk.keeper.hold(first)
    await desk.pass_time(1000)
    again = await desk.take()
    assert again is not None
    desk.keeper.hold(again.lease)
    desk.keeper.forget(first)
    assert len(desk.keeper) == 1
    desk.keeper.forget(again.lease)
    assert len(desk.keeper) == 0
    await desk.keeper.close()


async def test_there_is_a_bound_and_the_oldest_is_left_to_itself() -> None:
    desk = Desk(most=3)
    for number in range(10):
        desk.keeper.hold((await desk.hand_out(f"run-{number}")).lease)
    assert len(desk.keeper) == 3
    await desk.keeper.close()


async def test_a_broker_that_is_away_stops_nothing(desk: Desk) -> None:
    desk.keeper.hold((await desk.hand_out()).lease)
    desk.faults.broken = True
    await desk.pass_time(300)
    desk.faults.broken = False
    await desk.pass_time(100)
    assert desk.faults.asked == ["tasks.extend"] * 4
    await desk.keeper.close()


async def test_it_works_by_itself_and_ends_when_told(desk: Desk) -> None:
    desk.keeper.hold((await desk.hand_out()).lease)
    desk.clock.advance(1001)
    await until(lambda: not len(desk.keeper))
    await desk.keeper.close()
    await desk.keeper.close()
