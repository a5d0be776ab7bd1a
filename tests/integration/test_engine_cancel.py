"""Cancelling a run reaches its work, wherever that is: in the queue, with a worker, or asleep."""

from __future__ import annotations

from pathlib import Path

import pytest

from fumehood.broker.handout import Handouts, _Taker
from fumehood.broker.lease import Lease
from fumehood.errors import LeaseLostError
from tests.integration.engine_world import World, cancel, queued_tasks, world
from tests.waiting import until

THREE = """
name: w
deadline: 7d
steps:
- {id: queued, task: idle}
- {id: running, task: t, timeout: 1d}
- {id: nap, sleep: 7d}
- {id: after, task: t, needs: [queued, running, nap]}
"""


async def is_cancelled(here: World, run_id: str) -> None:
    events = await here.journals.until(run_id)
    assert events[-1] == {"type": "run.cancelled", "reason": "no longer needed", "by": "test"}


@pytest.mark.parametrize("partitions", [1, 4])
async def test_tasks_in_the_queue_disappear_and_running_ones_lose_their_lease(tmp_path: Path, partitions: int) -> None:
    async with world(tmp_path, partitions) as here:
        run_id, handouts = await here.begin(THREE), Handouts(here.broker)
        (held,) = await handouts.take(["t"], max_tasks=1, timeout=60, worker_id="w")
        assert held.task.step_id == "running"
        await here.journals.until(run_id, lambda events: any(event["type"] == "step.started" for event in events))
        lease = await handouts.heartbeat(held.lease)
        assert set(await queued_tasks(here.broker, run_id)) == {f"task.idle.{run_id}", f"task.t.{run_id}"}

        await cancel(here.broker, run_id)
        await is_cancelled(here, run_id)
        await here.settled()
        assert await queued_tasks(here.broker, run_id) == {}
        assert await here.broker.tasks.pull(["idle", "t"], max_tasks=8, timeout=0.3) == []
        assert await here.broker.timers.pending(run_id) == []
        with pytest.raises(LeaseLostError):
            await handouts.heartbeat(lease)
        with pytest.raises(LeaseLostError):
            await handouts.complete(await handouts.find(held.task.task_id, lease.lease_id), "too late")


async def test_a_task_that_is_taken_just_when_its_run_is_cancelled_is_taken_away_again(tmp_path: Path) -> None:
    """The worker has the message when the queue is emptied, and asks for its lease only then."""
    async with world(tmp_path, 1) as here:
        run_id, handouts = await here.begin(THREE), Handouts(here.broker)
        (delivery,) = await here.take("idle")
        await cancel(here.broker, run_id)
        await is_cancelled(here, run_id)
        await here.settled()
        held = await handouts._offer(delivery, _Taker("w", None, None))
        if held is not None:
            await until(lambda: is_lost(handouts, held.lease))


async def is_lost(handouts: Handouts, lease: Lease) -> bool:
    try:
        await handouts.heartbeat(lease)
    except LeaseLostError:
        return True
    return False


async def test_a_run_that_is_cancelled_twice_or_after_its_end_stays_as_it_is(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as here:
        run_id = await here.begin(THREE)
        await cancel(here.broker, run_id)
        await is_cancelled(here, run_id)
        before = await here.journals.events(run_id)
        await here.broker.mailboxes.send(run_id, f"{run_id}.again", b'{"type":"cancel","reason":"once more"}')
        await here.settled()
        assert await here.journals.events(run_id) == before
