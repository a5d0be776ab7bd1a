"""How handlers are called, and what survives a cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood import Continue, Pause, SyncTask, Task, TaskFailed
from fumehood.broker.shield import shielded
from fumehood.sdk.calling import in_loop, in_thread, is_async
from fumehood.wire.protocol import LONGEST_PAUSE_MS, TaskPayload

PAYLOAD = TaskPayload(task_id="r.s", run_id="r", step_id="s", attempt=2, iteration=3, input={"x": 1})


class Hands:
    """Writes down what a handler asks for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.cancelled = False

    async def save(self, data: Any) -> None:
        self.asked.append(("save", data, threading.current_thread() is threading.main_thread()))

    async def heartbeat(self) -> None:
        self.asked.append("heartbeat")

    async def signal(self, name: str, data: Any) -> None:
        self.asked.append((name, data))


class CallableObject:
    async def __call__(self, task: Task) -> None: ...


async def coroutine(task: Task) -> None: ...


def plain(task: SyncTask) -> None: ...


def test_coroutine_functions_are_told_from_plain_ones() -> None:
    assert is_async(coroutine)
    assert is_async(functools.partial(coroutine))
    assert is_async(CallableObject())
    assert not is_async(plain)
    assert not is_async(functools.partial(plain))


async def test_a_plain_function_uses_the_same_words() -> None:
    hands, where = Hands(), contextvars.ContextVar("where", default="nowhere")
    where.set("in the caller's context")

    def handler(task: SyncTask) -> Any:
        task.save({"page": 1})
        task.heartbeat()
        task.signal("progress", 5)
        hands.cancelled = True
        return [task.input, task.attempt, task.iteration, where.get(), task.cancelled]

    outcome = await in_thread(handler, SyncTask(PAYLOAD, "kind", {}, hands))
    assert outcome.value == [{"x": 1}, 2, 3, "in the caller's context", True]
    assert hands.asked == [("save", {"page": 1}, True), "heartbeat", ("progress", 5)]


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(1), KeyboardInterrupt()])
async def test_whatever_a_plain_function_raises_is_its_outcome(error: BaseException) -> None:
    def handler(task: SyncTask) -> None:
        raise error

    assert (await in_thread(handler, SyncTask(PAYLOAD, "kind", {}, Hands()))).error is error


async def test_a_coroutine_that_is_cancelled_may_still_say_something() -> None:
    begun = asyncio.Event()

    async def handler(task: Task) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await task.save("on the way out")
        return "left"

    hands = Hands()
    work = asyncio.create_task(in_loop(handler, Task(PAYLOAD, "kind", {}, hands)))
    await begun.wait()
    work.cancel()
    assert (await work).value == "left"
    assert hands.asked[0][1] == "on the way out"


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_what_is_shielded_is_done_however_often_its_caller_is_cancelled(times: int) -> None:
    go, done = asyncio.Event(), []

    async def work() -> str:
        await go.wait()
        done.append(True)
        return "answer"

    caller = asyncio.create_task(shielded(work()))
    for _ in range(times):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    go.set()
    if times:
        with pytest.raises(asyncio.CancelledError):
            await caller
    else:
        assert await caller == "answer"
    assert done == [True]


async def test_what_fails_under_a_shield_fails() -> None:
    async def work() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await shielded(work())


@given(seconds=st.floats(0, LONGEST_PAUSE_MS / 1000))
def test_a_pause_is_in_whole_milliseconds_and_never_none(seconds: float) -> None:
    assert 1 <= Pause(seconds).duration_ms <= LONGEST_PAUSE_MS
    assert abs(Pause(seconds).duration_ms - seconds * 1000) <= 1


@given(seconds=st.floats(max_value=-1e-9) | st.floats(min_value=LONGEST_PAUSE_MS / 1000 + 0.001))
def test_a_pause_that_the_protocol_does_not_know_is_an_error(seconds: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        Pause(seconds)


def test_ways_to_end_are_values_that_can_be_raised() -> None:
    task = Task(PAYLOAD, "kind", {"traceparent": "00-a-b-01"}, Hands())
    assert isinstance(task.pause(5, {"a": 1}), Pause)
    assert isinstance(task.again("said"), Continue)
    assert (task.pause(5, {"a": 1}).checkpoint, task.again("said").said) == ({"a": 1}, "said")
    assert issubclass(TaskFailed, Exception)
    assert task.traceparent == "00-a-b-01"
    assert repr(task) == "<Task kind r.s attempt 2 iteration 3>"
