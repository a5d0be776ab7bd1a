"""The clock of the unit and contract tests: `tests/virtual_time.py`."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time

from tests.waiting import past

YEAR = 365 * 24 * 3600.0


async def test_a_sleep_ends_without_waiting() -> None:
    began = time.monotonic()
    await past(YEAR)
    assert time.monotonic() - began >= YEAR


async def test_timers_end_in_the_order_of_their_times() -> None:
    ended = []

    async def record(seconds: float) -> None:
        await past(seconds)
        ended.append(seconds)

    await asyncio.gather(*map(record, (3600, 60, 7200, 1)))
    assert ended == [1, 60, 3600, 7200]


async def test_all_clocks_move_together() -> None:
    loop = asyncio.get_running_loop()
    before = loop.time(), time.monotonic(), time.monotonic_ns() / 1e9, time.time(), time.time_ns() / 1e9
    await past(YEAR)
    after = loop.time(), time.monotonic(), time.monotonic_ns() / 1e9, time.time(), time.time_ns() / 1e9
    assert {round(then - now) for now, then in zip(before, after, strict=True)} == {YEAR}


async def test_code_takes_no_time() -> None:
    began = time.monotonic()
    sum(range(100_000))
    assert time.monotonic() == began  # gate: clock it is not a real one


async def test_a_loop_that_never_waits_reaches_its_end() -> None:
    end = time.monotonic() + 1
    while time.monotonic() < end:  # noqa: ASYNC110 - as code does that polls
        await asyncio.sleep(0)


async def test_a_timeout_does_not_overtake_a_working_thread() -> None:
    done = threading.Event()
    threading.Timer(0.05, done.set).start()
    assert await asyncio.wait_for(asyncio.to_thread(done.wait), YEAR)


async def test_a_timeout_does_not_overtake_a_thread_whose_result_nobody_wants() -> None:
    loop, begun, go_on, told = asyncio.get_running_loop(), threading.Event(), threading.Event(), asyncio.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        loop.call_soon_threadsafe(told.set)

    task = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    threading.Timer(0.05, go_on.set).start()
    await asyncio.wait_for(told.wait(), YEAR)


async def test_a_timeout_does_not_overtake_a_thread_that_nobody_announced() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    threading.Timer(0.05, loop.call_soon_threadsafe, [told.set]).start()
    await asyncio.wait_for(told.wait(), YEAR)


async def test_a_timeout_does_not_overtake_a_process() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(0.05)")
    assert await asyncio.wait_for(program.wait(), YEAR) == 0


async def test_a_timeout_does_not_overtake_an_open_connection() -> None:
    here, there = socket.socketpair()
    with there:
        reader, writer = await asyncio.open_connection(sock=here)
        threading.Timer(0.05, there.send, [b"late\n"]).start()
        assert await asyncio.wait_for(reader.readline(), YEAR) == b"late\n"
        writer.close()


async def test_other_threads_see_the_real_clock() -> None:
    before = await asyncio.to_thread(time.monotonic)
    await past(YEAR)
    assert await asyncio.to_thread(time.monotonic) - before < YEAR / 2
