"""What every driver does for runs: names, the image's own command, an end with grace, and limits of each their own."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid

import pytest

from fumehood.errors import SandboxNameTakenError, SandboxNotFoundError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.driver import Handle, Phase
from fumehood.sandbox.spec import MIB, Command, End, ImageCommand, Limits
from fumehood.sandbox.stopping import stop_command
from tests.conformance.conftest import Bench
from tests.conformance.test_drivers import LIMIT, Waiting, begin

LONG = 120.0
"""A grace that nobody waits for: what ends before it ended at once."""


async def said(bench: Bench, handle: Handle, command_id: int, *program: str) -> str:
    """What another program prints beside the first one, without ending it."""
    capture = Capture(LIMIT)
    command = Command(bench.programs(*program), sweep=False)
    await bench.driver.run(handle, command, capture, command_id=command_id)
    await bench.driver.settle(handle, command_id)
    return capture.text(STDOUT, None)


# --- names -------------------------------------------------------------------------------------------------


async def test_a_sandbox_may_be_named(bench: Bench) -> None:
    name = f"run-{uuid.uuid4().hex}"
    async with bench.sandbox(name=name) as handle:
        command = Command(bench.programs("echo", "hello"))
        outcome = await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)
        assert outcome.exit_code == 0
        await bench.restart()
        assert await bench.driver.list({"fumehood.sandbox": handle.sandbox_id}) == [handle]


async def test_a_name_is_free_again_once_its_bearer_is_destroyed(bench: Bench) -> None:
    name = f"run-{uuid.uuid4().hex}"
    first = await bench.driver.prepare(bench.spec(name=name))
    with pytest.raises(SandboxNameTakenError) as caught:
        await bench.driver.prepare(bench.spec(name=name))
    assert caught.value.retryable
    assert name in caught.value.detail
    assert await bench.driver.list({}) == [first], "the refused one left something behind"
    await bench.driver.destroy(first)
    second = await bench.driver.prepare(bench.spec(name=name))
    await bench.driver.destroy(second)


# --- the image's own command -------------------------------------------------------------------------------

DECLARED = [
    ImageCommand(("/usr/bin/env", "A=1"), ("sh", "-c", "echo $A")),
    ImageCommand(("/bin/echo",)),
    ImageCommand(cmd=("/bin/bash",)),
    ImageCommand(),
]


@pytest.mark.parametrize("declared", DECLARED, ids=["both", "entrypoint", "cmd", "neither"])
async def test_what_an_image_declares_is_told_before_and_after_a_restart(bench: Bench, declared: ImageCommand) -> None:
    handle = await bench.driver.prepare(bench.spec(image=await bench.declaring(declared)))
    try:
        assert await bench.driver.image_command(handle) == declared
        await bench.restart()
        assert await bench.driver.image_command(handle) == declared
    finally:
        await bench.driver.destroy(handle)
    with pytest.raises(SandboxNotFoundError):
        await bench.driver.image_command(handle)


# --- an end with grace -------------------------------------------------------------------------------------


async def test_a_program_that_obeys_ends_with_its_own_code(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "obeys", "7")
        await capture.spoke.wait()
        assert await asyncio.wait_for(stop_command(bench.driver, handle, 1, grace_seconds=LONG), LONG / 2)
        outcome = await task
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 7)


async def test_a_program_that_does_not_care_ends_by_the_signal(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "sleep", "60")
        await capture.spoke.wait()
        assert await asyncio.wait_for(stop_command(bench.driver, handle, 1, grace_seconds=LONG), LONG / 2)
        outcome = await task
    assert (outcome.end, outcome.signal, outcome.killed_by_owner) == (End.SIGNALED, signal.SIGTERM, True)


async def test_a_program_that_ignores_the_signal_is_killed_after_the_grace(bench: Bench) -> None:
    capture, grace = Waiting(), 1.0
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "ignores")
        await capture.spoke.wait()
        began = time.monotonic()
        assert await stop_command(bench.driver, handle, 1, grace_seconds=grace)
        assert time.monotonic() - began >= grace
        outcome = await task
    assert (outcome.end, outcome.signal, outcome.killed_by_owner) == (End.SIGNALED, signal.SIGKILL, True)


async def test_a_stop_ends_what_left_its_session_and_ignores_signals(bench: Bench) -> None:
    capture, mark = Waiting(), "4711"
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "leaves", mark)
        await capture.spoke.wait()
        assert await said(bench, handle, 2, "left", mark) == "alive\n"
        await stop_command(bench.driver, handle, 1, grace_seconds=LONG)
        outcome = await task
        assert await said(bench, handle, 3, "left", mark) == "gone\n"
    assert (outcome.end, outcome.killed_by_owner) == (End.SIGNALED, True)


async def test_a_stop_that_comes_before_its_command_waits_for_it(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        stopping = asyncio.create_task(stop_command(bench.driver, handle, 1, grace_seconds=LONG))
        await asyncio.sleep(0)
        outcome = await asyncio.wait_for(begin(bench, handle, Waiting(), "sleep", "60"), LONG / 2)
        assert await stopping
    assert (outcome.end, outcome.signal, outcome.killed_by_owner) == (End.SIGNALED, signal.SIGTERM, True)


async def test_a_stop_of_what_has_ended_does_nothing(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        command = Command(bench.programs("echo"), sweep=False)
        await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)
        capture = Waiting()
        other = asyncio.create_task(
            bench.driver.run(handle, Command(bench.programs("ticks", "5", "0.1")), capture, command_id=2)
        )
        await capture.spoke.wait()
        assert not await stop_command(bench.driver, handle, 1, grace_seconds=LONG)
        assert (await other).exit_code == 0
    assert not await stop_command(bench.driver, handle, 1, grace_seconds=LONG)


async def test_a_stop_by_the_next_owner(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "obeys", "9")
        await capture.spoke.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bench.restart()
        again = begin(bench, handle, capture, "obeys", "9")
        await bench.driver.reached(handle, 1, Phase.SENT)
        assert await stop_command(bench.driver, handle, 1, grace_seconds=LONG)
        assert (await again).exit_code == 9


async def test_a_stop_ends_with_its_sandbox(bench: Bench) -> None:
    capture = Waiting()
    handle = await bench.driver.prepare(bench.spec())
    await bench.driver.start(handle)
    task = begin(bench, handle, capture, "ignores")
    await capture.spoke.wait()
    stopping = asyncio.create_task(stop_command(bench.driver, handle, 1, grace_seconds=LONG))
    await asyncio.sleep(0)
    await bench.driver.destroy(handle)
    await asyncio.wait_for(stopping, LONG / 2)
    await asyncio.gather(task, return_exceptions=True)


# --- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpu_millis", "memory_mib"), [(8000, 192), (250, 64)])
async def test_each_sandbox_has_limits_of_its_own(bench: Bench, cpu_millis: int, memory_mib: int) -> None:
    """More processors than the machine has are a share of all of them; file systems may be larger than memory."""
    limits = Limits(
        cpu_millis=cpu_millis, memory_bytes=memory_mib * MIB, workspace_bytes=1024 * MIB, tmp_bytes=1024 * MIB
    )
    async with bench.sandbox(limits=limits) as handle:
        command = Command(bench.programs("echo", "hello"), timeout_ms=60_000)
        outcome = await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)
        seen = (await bench.driver.inspect(handle)).isolation
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert seen is not None
    assert (seen.cpu_millis, seen.memory_bytes) == (cpu_millis, memory_mib * MIB)
