"""A node that falls silent is answered for; one that is heard of, answers, or gives its task back is not."""

from __future__ import annotations

from fumehood.broker.handout import Leased
from fumehood.broker.ports import Bucket
from fumehood.control.lost_nodes import GRACE_SECONDS, LostNodes
from fumehood.engine.state import RunStatus
from tests.unit.decider_world import DeciderWorld

LEASE = 45
ONCE = 'name: w\nsteps:\n- {id: s, sandbox: {image: "a/b", command: [x]}}\n'
TWICE = 'name: w\nsteps:\n- {id: s, sandbox: {image: "a/b", command: [x]}, retry: {attempts: 2, backoff: 1s}}\n'


class LostWorld(DeciderWorld):
    def __init__(self) -> None:
        super().__init__()
        self.silence = 0.0
        self.keeper = LostNodes(self.broker, now_ms=self.now_ms, clock=lambda: self.silence)

    async def take(self) -> Leased:
        taken = await self.handouts.take(
            ["fumehood.sandbox"], max_tasks=1, timeout=0.0, worker_id="node-1", lease_seconds=LEASE
        )
        await self.settle()
        return taken[0]

    async def see(self) -> None:
        """What the watch would tell."""
        async for change in self.broker.bucket(Bucket.NODE_LEASES).watch():
            if change.kind == "caught-up":
                return
            self.keeper.take(change)

    async def pass_silently(self, seconds: float) -> None:
        """Looking all the time, as a server does."""
        end = self.silence + seconds
        while self.silence < end:
            self.silence = min(end, self.silence + 1.0)
            await self.keeper.look()
        await self.settle()


async def test_a_node_that_fell_silent_is_answered_for_when_its_lease_has_run_out() -> None:
    world = LostWorld()
    await world.start(ONCE)
    leased = await world.take()
    assert leased.lease.seconds == LEASE
    await world.see()
    await world.pass_silently(LEASE + GRACE_SECONDS - 0.1)
    assert (await world.state()).status is RunStatus.RUNNING
    await world.pass_silently(0.2)
    state = await world.state()
    assert state.status is RunStatus.FAILED
    assert state.failure is not None
    assert state.failure.code == "node_lost"
    assert await world.tasks("fumehood.sandbox") == [], "the queue has forgotten it"


async def test_a_step_that_may_be_tried_again_is_handed_out_anew() -> None:
    world = LostWorld()
    await world.start(TWICE)
    await world.take()
    await world.see()
    await world.pass_silently(LEASE + GRACE_SECONDS + 1)
    await world.pass_time(5)
    again = await world.take()
    assert (again.task.attempt, again.lease.count) == (2, 1)


async def test_whoever_is_heard_of_is_not_lost() -> None:
    world = LostWorld()
    await world.start(ONCE)
    leased = await world.take()
    lease = leased.lease
    for _ in range(5):
        await world.see()
        await world.pass_silently(LEASE - 1)
        lease = await world.handouts.heartbeat(lease)
    assert (await world.state()).status is RunStatus.RUNNING
    await world.handouts.complete(lease, {"exit_code": 0})
    await world.settle()
    await world.see()
    await world.pass_silently(10 * LEASE)
    assert (await world.state()).status is RunStatus.SUCCEEDED
    assert world.keeper.found == 0


async def test_what_changed_while_it_was_looked_at_is_left_alone() -> None:
    world = LostWorld()
    await world.start(ONCE)
    leased = await world.take()
    await world.see()
    await world.handouts.heartbeat(leased.lease)  # the watch has not told yet
    await world.pass_silently(LEASE + GRACE_SECONDS)
    assert (await world.state()).status is RunStatus.RUNNING
    assert world.keeper.found == 0


async def test_a_server_that_was_deaf_gives_everybody_their_time_again() -> None:
    """Nobody could renew while the broker was away: that says nothing about those who wanted to."""
    world = LostWorld()
    await world.start(ONCE)
    leased = await world.take()
    await world.see()
    await world.pass_silently(LEASE)
    world.silence += 60  # no look in a minute
    await world.pass_silently(LEASE - 1)
    await world.handouts.heartbeat(leased.lease)
    assert (await world.state()).status is RunStatus.RUNNING
    assert world.keeper.found == 0


async def test_a_task_that_was_given_back_waits_for_the_next_node_however_long() -> None:
    world = LostWorld()
    await world.start(ONCE)
    leased = await world.take()
    await world.handouts.release(leased.lease)
    await world.see()
    await world.pass_silently(3 * LEASE)
    assert (await world.state()).status is RunStatus.RUNNING
    assert (await world.take()).lease.count == 1


async def test_other_workers_leases_are_their_own_matter() -> None:
    world = LostWorld()
    await world.start("name: w\nsteps:\n- {id: a, task: t}\n")
    await world.handouts.take(["t"], max_tasks=1, timeout=0.0, worker_id="w")
    await world.settle()
    await world.see()
    await world.pass_silently(1000)
    assert (await world.state()).status is RunStatus.RUNNING
