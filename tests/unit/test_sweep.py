"""The sweep puts back what is missing, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import records
from fumehood.control.sweep import Sweeper
from fumehood.engine.state import RunStatus
from fumehood.wire.protocol import EventType
from tests.unit.decider_world import RUN, DeciderWorld

TASK_AND_NAP = "name: w\nsteps:\n- {id: a, task: t}\n- {id: nap, sleep: 2h}\n"


def sweeper(world: DeciderWorld) -> Sweeper:
    return Sweeper(MemoryBroker(world.server), now_ms=world.now_ms)


async def test_a_task_that_was_acked_and_never_answered_is_handed_out_again() -> None:
    world = DeciderWorld()
    await world.start(TASK_AND_NAP)
    assert len(await world.tasks()) == 1
    await world.pass_time(301)
    assert await sweeper(world).sweep() == 1
    assert [task["attempt"] for task in await world.tasks()] == [1]


async def test_a_timer_that_is_gone_is_set_again_and_fires() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: nap, sleep: 2h}\n")
    for timer in await world.broker.timers.pending(RUN):
        await world.broker.timers.cancel(RUN, timer.timer_id)
    await world.pass_time(301)
    assert await sweeper(world).sweep() == 1
    await world.pass_time(7200)
    assert (await world.state()).status is RunStatus.SUCCEEDED


async def test_what_is_where_it_should_be_is_left_alone() -> None:
    world = DeciderWorld()
    await world.start(TASK_AND_NAP)
    await world.pass_time(301)
    assert await sweeper(world).sweep() == 0


async def test_a_run_that_just_moved_is_its_deciders() -> None:
    world = DeciderWorld()
    await world.start(TASK_AND_NAP)
    await world.tasks()
    await world.pass_time(200)
    assert await sweeper(world).sweep() == 0


async def test_a_task_in_somebodys_hands_or_answered_is_not_missing() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t, timeout: 30m}\n- {id: b, task: t, timeout: 30m}\n")
    held, answered = await world.handouts.take(["t"], max_tasks=2, timeout=0.0, worker_id="w")
    await world.settle()
    await world.broker.tasks.ack(held.lease.token)
    other = MemoryBroker(world.server)
    await world.handouts.complete(answered.lease, 1)  # the decider has not looked yet
    world.clock.advance_to(world.clock.now() + 301)
    assert await Sweeper(other, now_ms=world.now_ms).sweep() == 0


async def test_one_server_sweeps_in_each_interval() -> None:
    world = DeciderWorld()
    await world.start(TASK_AND_NAP)
    await world.tasks()
    world.clock.advance_to(world.clock.now() + 1000)
    waits: list[float] = []

    async def once(seconds: float) -> None:
        waits.append(seconds)
        raise asyncio.CancelledError

    both = [Sweeper(MemoryBroker(world.server), now_ms=world.now_ms, sleep=once) for _ in range(2)]
    await asyncio.gather(*(one.work() for one in both), return_exceptions=True)
    assert sorted(one.replaced for one in both) == [0, 1]
    assert len(waits) == 2


async def test_a_run_that_ended_without_saying_so_is_tidied_up() -> None:
    world = DeciderWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t}\n")
    await world.say(EventType.COMPLETED, "a", 1)
    await world.broker.timers.set(RUN, "stray", world.now_ms() + 9_000_000, "stray", b"{}")
    await world.broker.bucket(Bucket.SUMMARIES).put(RUN, b'{"status":"running"}')
    await world.pass_time(301)
    await sweeper(world).sweep()
    assert await world.broker.timers.pending(RUN) == []


async def test_a_run_that_cannot_be_read_keeps_the_sweep_from_no_other() -> None:
    world = DeciderWorld()
    await world.start(TASK_AND_NAP)
    await world.tasks()
    await world.broker.journal.append("run-0", records.name("run-0", 0, b"[]"), b"[]", expected=0)
    await world.broker.bucket(Bucket.SUMMARIES).put("run-0", b'{"status":"running"}')
    await world.pass_time(301)
    swept = sweeper(world)
    assert await swept.sweep() == 1
    assert swept.failed == 1


async def test_a_broker_that_fails_once_does_not_end_the_sweep_for_good() -> None:
    world = DeciderWorld()

    class Away(Faults):
        left = 3

        async def call(self, operation: str, subject: str) -> Verdict:
            self.left -= 1
            return Verdict.LOST if self.left >= 0 else Verdict.OK

    turns = 0

    async def turn(seconds: float) -> None:
        nonlocal turns
        turns += 1
        if turns == 6:
            raise asyncio.CancelledError
        world.clock.advance_to(world.clock.now() + 700)

    flaky = Sweeper(MemoryBroker(world.server, faults=Away()), now_ms=world.now_ms, sleep=turn)
    with pytest.raises(asyncio.CancelledError):
        await flaky.work()
    assert (turns, flaky.failed) == (6, 3)
