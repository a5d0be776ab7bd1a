"""Slots: never too many at once, first come first served, and no slot is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fumehood.errors import DrainingError, OverloadedError
from fumehood.node.slots import Reservation, Slots


def make(slots: int = 1, queue: int = 1, wait: float = 5.0) -> Slots:
    return Slots(slots, queue, queue_wait_seconds=wait)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def started(call: Coroutine[Any, Any, Reservation]) -> asyncio.Task[Reservation]:
    task = asyncio.create_task(call)
    await settle()
    return task


async def test_a_free_slot_is_taken_at_once_and_given_back() -> None:
    slots = make()
    async with slots.admit():
        assert (slots.taken, slots.waiting) == (1, 0)
    assert slots.taken == 0


async def test_a_slot_is_given_back_when_the_job_fails() -> None:
    slots = make()
    with pytest.raises(ZeroDivisionError):
        async with slots.admit():
            raise ZeroDivisionError
    assert slots.taken == 0


async def test_releasing_twice_frees_one_slot() -> None:
    slots = make(slots=2)
    first, _second = await slots.reserve(), await slots.reserve()
    first.release()
    first.release()
    assert slots.taken == 1


async def test_beyond_slots_and_queue_is_refused_at_once_with_a_time() -> None:
    slots = make(slots=1, queue=1)
    await slots.reserve()
    waiting = await started(slots.reserve())
    with pytest.raises(OverloadedError) as caught:
        await slots.reserve()
    assert 1 <= caught.value.retry_after_seconds <= 60
    assert not isinstance(caught.value, DrainingError)
    waiting.cancel()


async def test_a_queue_of_zero_waits_for_nobody() -> None:
    slots = make(queue=0)
    await slots.reserve()
    with pytest.raises(OverloadedError):
        await slots.reserve()


async def test_waiting_has_an_end() -> None:
    slots = make(wait=0.01)
    held = await slots.reserve()
    with pytest.raises(OverloadedError, match="in time"):
        await slots.reserve()
    assert slots.waiting == 0
    held.release()
    assert slots.taken == 0


async def test_first_come_first_served_and_nobody_overtakes() -> None:
    slots = make(queue=3)
    held = await slots.reserve()
    line = [await started(slots.reserve()) for _ in range(3)]
    held.release()
    with pytest.raises(OverloadedError):
        await Slots.reserve(make_full(slots))
    await settle()
    assert [task.done() for task in line] == [True, False, False]
    for task in line:
        (await task).release()
        await settle()
    assert (slots.taken, slots.waiting) == (0, 0)


def make_full(slots: Slots) -> Slots:
    """The slot just given back belongs to the first in line already: for a newcomer nothing is free."""
    assert slots.taken == 1
    slots._queue = slots.waiting
    return slots


async def test_leaving_the_line_leaves_no_trace() -> None:
    slots = make(queue=2)
    held = await slots.reserve()
    first, second = await started(slots.reserve()), await started(slots.reserve())
    first.cancel()
    await settle()
    assert slots.waiting == 1
    held.release()
    await settle()
    assert second.done()


async def test_a_slot_granted_to_somebody_who_is_cancelled_is_passed_on() -> None:
    """Granted and cancelled in the same turn of the loop: the slot must not vanish."""
    slots = make(queue=2)
    held = await slots.reserve()
    first, second = await started(slots.reserve()), await started(slots.reserve())
    held.release()
    first.cancel()
    await settle()
    assert first.cancelled()
    (await second).release()
    assert (slots.taken, slots.waiting) == (0, 0)


async def test_draining_refuses_newcomers_but_not_those_in_line() -> None:
    slots = make()
    held = await slots.reserve()
    waiting = await started(slots.reserve())
    slots.drain()
    with pytest.raises(DrainingError) as caught:
        await slots.reserve()
    assert caught.value.retry_after_seconds >= 1
    idle = asyncio.create_task(slots.idle())
    held.release()
    await settle()
    assert not idle.done()
    (await waiting).release()
    await idle


async def test_idle_returns_at_once_when_nothing_ever_ran() -> None:
    await asyncio.wait_for(make().idle(), 30)


async def test_recovered_jobs_count_even_beyond_the_number() -> None:
    slots = make(slots=1, queue=1)
    found = [slots.force(), slots.force()]
    waiting = await started(slots.reserve())
    found[0].release()
    await settle()
    assert (slots.taken, waiting.done()) == (1, False)
    found[1].release()
    assert (await waiting) is not None
    assert slots.taken == 1


actions = st.lists(st.tuples(st.sampled_from(["enter", "leave", "cancel", "tick"]), st.integers(0, 20)), max_size=60)


HANDED_ON = [("enter", 0)] * 3 + [("tick", 0)] * 3 + [("leave", 0), ("leave", 1), ("tick", 0), ("enter", 0)]
"""The third is given the slot of the first, and before it wakes the fourth takes that of the second."""


@example(2, 1, HANDED_ON)
@given(st.integers(1, 3), st.integers(0, 3), actions)
@settings(max_examples=200, deadline=None)
def test_any_interleaving_keeps_the_bounds_and_the_order(slots: int, queue: int, script: list[tuple[str, int]]) -> None:
    asyncio.run(play(make(slots, queue, wait=60), slots, queue, script))


async def play(slots: Slots, most: int, line: int, script: list[tuple[str, int]]) -> None:
    tasks: list[asyncio.Task[None]] = []
    doors: list[asyncio.Event] = []
    entered: dict[bool, list[int]] = {False: [], True: []}

    async def one(number: int) -> None:
        waited = slots.taken == most
        async with slots.admit():
            entered[waited].append(number)
            await doors[number].wait()

    for action, number in script:
        if action == "enter":
            doors.append(asyncio.Event())
            tasks.append(asyncio.create_task(one(len(tasks))))
        elif action == "tick":
            await asyncio.sleep(0)
        elif tasks and action == "leave":
            doors[number % len(tasks)].set()
        elif tasks:
            tasks[number % len(tasks)].cancel()
        assert 0 <= slots.taken <= most
        assert slots.waiting <= line
        assert slots.waiting == 0 or slots.taken == most, "a slot is free, and somebody waits for one"
    for door in doors:
        door.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(numbers == sorted(numbers) for numbers in entered.values())
    assert (slots.taken, slots.waiting) == (0, 0)
    await asyncio.wait_for(slots.idle(), 30)
