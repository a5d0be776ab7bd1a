"""What every driver does for commands that wait: no deadline and no time of their own until they begin."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fumehood.errors import SandboxLostError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.spec import Command, End, Outcome
from tests.conformance.conftest import Bench
from tests.conformance.test_drivers import LIMIT
from tests.conformance.test_drivers_for_sessions import SOON, Heard, give_up
from tests.waiting import past

WAITED_SECONDS = 0.5
NEVER_MS = 600_000
CLOCKS_DIFFER_SECONDS = 0.1
"""A sandbox's clock may be the runtime's own, and go a little otherwise than ours."""


@dataclass
class Waited:
    """A command that echoes its input, and has waited for far longer than it was allowed to run."""

    task: asyncio.Task[Outcome]
    heard: Heard


def a_cat(bench: Bench, *, waits: bool = True, timeout_ms: int = 1) -> Command:
    return Command(bench.programs("cat"), open_stdin=True, timeout_ms=timeout_ms, waits=waits)


async def waited(bench: Bench, handle: Handle, command: Command) -> Waited:
    heard = Heard()
    task = asyncio.create_task(bench.driver.run(handle, command, heard, command_id=1))
    await bench.driver.feed(handle, 1, 0, b"here")
    await heard.until(b"here")
    await past(WAITED_SECONDS)
    assert await bench.driver.feed(handle, 1, 4, b" still") == 10
    await heard.until(b" still")
    assert not task.done()
    return Waited(task, heard)


async def test_a_command_that_waits_does_not_time_out_before_it_begins_but_after(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        before = time.monotonic()
        await bench.driver.begin(handle, 1, 300)
        outcome = await asyncio.wait_for(one.task, SOON)
        took = time.monotonic() - before
    assert (outcome.end, outcome.exit_code) == (End.TIMED_OUT, None)
    assert 0.3 - CLOCKS_DIFFER_SECONDS <= outcome.duration_us / 1e6 <= took + CLOCKS_DIFFER_SECONDS
    assert one.heard.kept(STDOUT) == b"here still"


async def test_the_time_of_a_command_that_waited_counts_from_its_begin(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        before = time.monotonic()
        await bench.driver.begin(handle, 1, NEVER_MS)
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(one.task, SOON)
        took = time.monotonic() - before
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert outcome.duration_us / 1e6 <= took + CLOCKS_DIFFER_SECONDS
    assert (outcome.ended_at - outcome.started_at).total_seconds() <= took + CLOCKS_DIFFER_SECONDS


async def test_a_command_that_ends_before_it_begins_counts_from_its_start(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(one.task, SOON)
        await bench.driver.begin(handle, 1, 1)
        again = await bench.driver.run(handle, a_cat(bench), Capture(LIMIT), command_id=1)
        await bench.driver.settle(handle, 1)
        await bench.driver.begin(handle, 1, 1)
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert outcome.duration_us / 1e6 >= WAITED_SECONDS - CLOCKS_DIFFER_SECONDS
    assert (again.end, again.started_at, again.duration_us) == (outcome.end, outcome.started_at, outcome.duration_us)


async def test_only_the_first_begin_counts(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        await bench.driver.begin(handle, 1, NEVER_MS)
        begun = time.monotonic()
        await past(WAITED_SECONDS)
        await bench.driver.begin(handle, 1, 1)
        await past(WAITED_SECONDS)
        assert await bench.driver.feed(handle, 1, 10, b" on") == 13
        await one.heard.until(b" on")
        since = time.monotonic() - begun
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(one.task, SOON)
    assert outcome.end is End.EXITED
    assert outcome.duration_us / 1e6 >= since - CLOCKS_DIFFER_SECONDS  # gate: clock it lies within the duration


async def test_begin_is_nothing_to_a_command_that_does_not_wait(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench, waits=False, timeout_ms=NEVER_MS))
        await bench.driver.begin(handle, 1, 1)
        await past(WAITED_SECONDS)
        assert await bench.driver.feed(handle, 1, 10, b" on") == 13
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(one.task, SOON)
    assert outcome.end is End.EXITED
    assert outcome.duration_us / 1e6 >= 2 * WAITED_SECONDS - CLOCKS_DIFFER_SECONDS


async def test_begin_waits_for_a_command_that_is_about_to_be_run(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        begin = asyncio.create_task(bench.driver.begin(handle, 1, 300))
        await asyncio.sleep(0)
        command = Command(bench.programs("sleep", "60"), waits=True)
        outcome = await asyncio.wait_for(bench.driver.run(handle, command, Capture(LIMIT), command_id=1), SOON)
        await begin
    assert outcome.end is End.TIMED_OUT


async def test_a_command_waits_on_for_another_owner_who_lets_it_begin(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        await give_up(one.task)
        await bench.restart()
        await bench.driver.attach(handle)
        joined = asyncio.create_task(bench.driver.run(handle, a_cat(bench), one.heard, command_id=1))
        assert await bench.driver.feed(handle, 1, 10, b" on") == 13
        await one.heard.until(b" on")
        await bench.driver.begin(handle, 1, 300)
        outcome = await asyncio.wait_for(joined, SOON)
    assert outcome.end is End.TIMED_OUT
    assert one.heard.kept(STDOUT) == b"here still on"


async def test_what_has_begun_goes_on_for_another_owner_who_says_it_again(bench: Bench) -> None:
    """The deadline is the sandbox's own: it holds while nobody is there, and is not set anew."""
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        before = time.monotonic()
        await bench.driver.begin(handle, 1, 1000)
        await give_up(one.task)
        await bench.restart()
        await bench.driver.attach(handle)
        await bench.driver.begin(handle, 1, NEVER_MS)
        outcome = await asyncio.wait_for(bench.driver.run(handle, a_cat(bench), one.heard, command_id=1), SOON)
        took = time.monotonic() - before
    assert outcome.end is End.TIMED_OUT
    assert 1.0 - CLOCKS_DIFFER_SECONDS <= outcome.duration_us / 1e6 <= took + CLOCKS_DIFFER_SECONDS


async def test_who_joins_what_has_begun_may_call_it_an_ordinary_command(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        await give_up(one.task)
        await bench.driver.begin(handle, 1, NEVER_MS)
        joined = asyncio.create_task(bench.driver.run(handle, ordinary(bench), one.heard, command_id=1))
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(joined, SOON)
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert one.heard.kept(STDOUT) == b"here still"


def ordinary(bench: Bench) -> Command:
    return Command(bench.programs("cat"), timeout_ms=NEVER_MS)


async def test_begin_survives_a_connection_that_breaks(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        bench.cut(handle)
        await bench.driver.begin(handle, 1, 300)
        bench.cut(handle)
        outcome = await asyncio.wait_for(one.task, SOON)
    assert outcome.end is End.TIMED_OUT


async def test_nothing_begins_in_a_sandbox_that_does_not_run(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        one = await waited(bench, handle, a_cat(bench))
        await bench.driver.kill(handle)
        refused = await asyncio.gather(one.task, bench.driver.begin(handle, 1, 300), return_exceptions=True)
    assert [type(error) for error in refused] == [SandboxLostError, SandboxLostError]
