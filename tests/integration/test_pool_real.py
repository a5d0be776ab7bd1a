"""The warm pool on the real engine: an interpreter that waits, lives that end in the middle, and what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fumehood.images.admission import Admission, AdmittedImage
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.pool import waiting
from fumehood.sandbox.pool.driver import PooledDriver
from fumehood.sandbox.pool.values import PoolOptions, key_of
from fumehood.sandbox.spec import WORKSPACE, Command, End, Outcome, SandboxSpec
from tests.python_image import push_other_python, push_python
from tests.waiting import until

RUNTIMES = ("runc", pytest.param("runsc", marks=pytest.mark.gvisor))


@dataclass
class Place:
    """A state folder, an image with a `python`, and a name on the engine that no other test uses."""

    options: DockerOptions
    image: AdmittedImage
    runtime: str

    def spec(self, waiting: str | None = "python") -> SandboxSpec:
        return SandboxSpec(uuid.uuid4().hex, self.image, runtime=self.runtime, waiting=waiting)

    @asynccontextmanager
    async def life(self, most: int = 0) -> AsyncIterator[PooledDriver]:
        driver = DockerDriver(self.options)
        try:
            async with PooledDriver.open(driver, self.options.state_dir, PoolOptions(most, quiet_seconds=0)) as pool:
                yield pool
        finally:
            await driver.close()
            await asyncio.sleep(0)  # a connection is closed in the loop's next turn


@pytest.fixture(params=RUNTIMES)
async def place(request: pytest.FixtureRequest, docker_socket: Path, tmp_path: Path) -> AsyncIterator[Place]:
    reference = await asyncio.to_thread(push_python, request.getfixturevalue("python_image"))
    async with RegistryClient() as registry:
        image = await Admission(DevelopmentPolicy(), registry).admit(reference)
    options = DockerOptions(node_id=f"pool-{uuid.uuid4().hex[:12]}", state_dir=tmp_path, socket=docker_socket)
    yield Place(options, image, request.param)
    driver = DockerDriver(options)
    for handle in await driver.list({}):
        await driver.destroy(handle)
    await driver.close()
    await asyncio.sleep(0)


def program(code: str, timeout_ms: int = 0) -> Command:
    return Command(("python", "-c", code), env={"HOME": WORKSPACE}, timeout_ms=timeout_ms)


async def claimed(pool: PooledDriver, place: Place) -> Handle:
    given: list[str] = []
    pool.on_given = given.append
    await pool.warm(place.spec())
    handle = await pool.prepare(place.spec())
    await pool.start(handle)
    assert given == ["warm"]
    return handle


async def ran(pool: PooledDriver, handle: Handle, command: Command) -> tuple[Outcome, str, str]:
    heard = Capture(64 * 1024)
    outcome = await pool.run(handle, command, heard, command_id=await pool.next_id(handle))
    return outcome, heard.text(STDOUT, None), heard.text(STDERR, None)


async def test_a_program_runs_in_the_interpreter_that_waited(place: Place) -> None:
    code = "import os, sys; print(sys.argv, sys.stdin.read() == '', os.getcwd(), os.getuid()); sys.exit(3)"
    async with place.life() as pool:
        handle = await claimed(pool, place)
        outcome, out, err = await ran(pool, handle, program(code))
        assert (outcome.end, outcome.exit_code) == (End.EXITED, 3)
        assert (out, err) == ("['-c'] True /workspace 65532\n", "")
        await pool.destroy(handle)
        assert await pool.list({}) == []


async def test_its_failure_is_told_as_that_of_any_program(place: Place) -> None:
    async with place.life() as pool:
        warm = await claimed(pool, place)
        cold = await pool.prepare(place.spec(waiting=None))
        await pool.start(cold)
        code = "def f():\n    raise ValueError('no')\nf()"
        told = [(await ran(pool, handle, program(code)))[1:] for handle in (warm, cold)]
        assert told[0] == told[1]
        for handle in (warm, cold):
            await pool.destroy(handle)


async def test_its_time_counts_from_its_owners_word(place: Place) -> None:
    async with place.life() as pool:
        handle = await claimed(pool, place)
        outcome, out, _ = await ran(pool, handle, program("import time; print(1, flush=True); time.sleep(600)", 3000))
        assert (outcome.end, out) == (End.TIMED_OUT, "1\n")
        assert outcome.duration_us >= 3_000_000
        await pool.destroy(handle)


async def test_a_code_that_no_argument_could_hold_never_starts(place: Place) -> None:
    async with place.life() as pool:
        handle = await claimed(pool, place)
        outcome, _, _ = await ran(pool, handle, program("#" * 200_000))
        assert (outcome.end, outcome.errno) == (End.NOT_STARTED, errno.E2BIG)
        await pool.destroy(handle)


async def test_the_next_life_goes_on_with_what_the_last_one_claimed(place: Place) -> None:
    """Before it had told the interpreter anything, and in the middle of the program: each program runs once."""
    code = "import time; print('begun', flush=True); time.sleep(2); print('ended')"
    async with place.life() as pool:
        untold, told = await claimed(pool, place), await claimed(pool, place)
        numbers = [await pool.next_id(handle) for handle in (untold, told)]
        heard = Capture(1024)
        running = asyncio.create_task(pool.run(told, program(code), heard, command_id=numbers[1]))
        await until(lambda: heard.kept(STDOUT))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    async with place.life() as pool:
        for handle, number in zip((untold, told), numbers, strict=True):
            (found,) = await pool.list({"fumehood.sandbox": handle.sandbox_id})
            heard = Capture(1024)
            outcome = await pool.run(found, program(code), heard, command_id=number)
            assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
            assert outcome.stdout is not None
            assert outcome.stdout.total_bytes == len("begun\nended\n"), "the whole of it, and that once"
            await pool.destroy(found)
        assert await pool.list({}) == []


async def test_an_interpreter_that_died_in_stock_is_not_given(place: Place) -> None:
    async with place.life() as pool:
        await pool.warm(place.spec())
        (idle,) = next(iter(pool._stock._idle.values()))
        await pool._driver.signal(idle.handle, 1, 9)
        assert idle.waiting is not None
        async with asyncio.timeout(120):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(idle.waiting.task)
        handle = await pool.prepare(place.spec())
        await pool.start(handle)
        assert (await ran(pool, handle, program("print(1)")))[1] == "1\n"
        await pool.destroy(handle)


@pytest.mark.parametrize(
    "script",
    ["echo old >&2; exit 1", "exit 125", 'echo hello; exec python3 "$@"', "exec sleep 600"],
    ids=["fails", "ends", "talks", "waits for nothing"],
)
async def test_an_interpreter_that_cannot_wait_is_never_given(
    place: Place, python_image: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its owner is told is what the image's own `python` does, each time."""
    monkeypatch.setattr(waiting, "_NOTHING", replace(waiting._NOTHING, timeout_ms=2000))
    reference = await asyncio.to_thread(push_other_python, python_image, f"#!/bin/sh\n{script}\n")
    async with RegistryClient() as registry:
        place.image = await Admission(DevelopmentPolicy(), registry).admit(reference)
    given: list[str] = []
    async with place.life(most=1) as pool:
        pool.on_given = given.append
        first = await pool.prepare(place.spec())
        kind = pool._stock._demand._kinds[key_of(place.spec())]
        await until(lambda: kind.fit is not None or kind.failures)
        assert (kind.fit, pool.idle) == (None if "sleep" in script else False, 0)
        second = await pool.prepare(place.spec())
        assert given == ["cold", "cold"]
        for handle in (first, second):
            await pool.destroy(handle)


async def test_the_keeper_has_one_ready_for_the_next(place: Place) -> None:
    given: list[str] = []
    async with place.life(most=1) as pool:
        pool.on_given = given.append
        for _ in range(3):
            handle = await pool.prepare(place.spec())
            await pool.start(handle)
            assert (await ran(pool, handle, program("print(1)")))[1] == "1\n"
            await pool.destroy(handle)
            await until(lambda: pool.idle)
    assert given == ["cold", "warm", "warm"]
    driver = DockerDriver(place.options)
    assert await driver.list({}) == [], "a stock goes with its process"
    await driver.close()
    await asyncio.sleep(0)
