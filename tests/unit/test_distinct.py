"""Of the tasks of a group no worker has two, whatever fails between."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.broker import distinct
from fumehood.broker.clock import ManualClock
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.wire.protocol import TaskPayload

SECONDS = 20


class Hall:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer(self.clock)
        self.broker = MemoryBroker(self.server)
        self.handouts = Handouts(self.broker, now_ms=lambda: int(self.clock.now() * 1000))

    async def hand_out(self, step: str, attempt: int = 1) -> None:
        task = TaskPayload(task_id=f"run.{step}", run_id="run", step_id=step, attempt=attempt, distinct="many")
        await self.broker.tasks.publish("t", "run", f"run.{step}.{attempt}", task.encode())

    async def take(self, worker: str) -> Leased | None:
        taken = await self.handouts.take(["t"], max_tasks=1, timeout=0, worker_id=worker, lease_seconds=SECONDS)
        return taken[0] if taken else None

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)


async def test_a_worker_has_one_of_them_and_another_worker_the_next() -> None:
    hall = Hall()
    for step in ("a", "b"):
        await hall.hand_out(step)
    first = await hall.take("w1")
    assert first is not None
    assert await hall.take("w1") is None
    await hall.handouts.complete(first.lease, 1)
    await hall.later(5)
    assert await hall.take("w1") is None, "nor when it has answered"
    await hall.later(5)
    second = await hall.take("w2")
    assert second is not None
    assert second.task.step_id != first.task.step_id


async def test_who_failed_at_one_of_them_may_have_another() -> None:
    hall = Hall()
    await hall.hand_out("a")
    first = await hall.take("w1")
    assert first is not None
    await hall.handouts.fail(first.lease, {"code": "x", "message": "x"})
    await hall.hand_out("b")
    found = await hall.take("w1")
    assert found is not None
    assert found.task.step_id == "b"


async def test_who_lost_one_of_them_may_have_another_once_its_time_is_over() -> None:
    hall = Hall()
    await hall.hand_out("a")
    assert await hall.take("w1") is not None
    await hall.hand_out("b")
    assert await hall.take("w1") is None
    await hall.later(SECONDS + 3)
    assert await hall.take("w1") is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["complete", "fail", "drop", "hold"])), max_size=40))
def test_no_two_answers_of_a_group_are_of_one_worker(moves: list[tuple[int, str]]) -> None:
    """Workers take, answer, fail, and fall silent in any order; a failed attempt is handed out again."""

    async def play() -> None:
        hall = Hall()
        attempts = dict.fromkeys("abc", 1)
        for step in attempts:
            await hall.hand_out(step)
        answered: dict[str, str] = {}
        for number, move in moves:
            worker = f"w{number}"
            leased = await hall.take(worker)
            if leased is None:
                await hall.later(3)
                continue
            await _answer(hall, leased, worker, move, attempts, answered)
        assert len(set(answered.values())) == len(answered)

    asyncio.run(play())


async def _answer(
    hall: Hall, leased: Leased, worker: str, move: str, attempts: dict[str, int], answered: dict[str, Any]
) -> None:
    step = leased.task.step_id
    if move == "complete":
        await hall.handouts.complete(leased.lease, 1)
        answered[step] = worker
    elif move == "fail":
        await hall.handouts.fail(leased.lease, {"code": "x", "message": "x"})
        attempts[step] += 1
        await hall.hand_out(step, attempts[step])
    elif move == "drop":
        await hall.later(SECONDS + 3)


def test_delay_before_the_next_offer_varies_within_its_bounds() -> None:
    """A fixed delay that is as long as a pull brings the task back to the same worker each time."""
    delays = {distinct.again_seconds(100) for _ in range(50)}
    assert len(delays) > 10
    assert all(distinct.LATE_SECONDS / 2 <= delay <= distinct.LATE_SECONDS for delay in delays)
    assert distinct.again_seconds(1) < distinct.LATE_SECONDS / 2, "soon at first"
