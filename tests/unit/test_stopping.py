"""Stopping where something stands in the way. That it works at all is in `tests/conformance`, on every driver."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from fumehood.errors import EngineUnavailableError, SandboxLostError
from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.sandbox import stopping
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Handle, State
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.spec import Command, End, Outcome, SandboxSpec
from fumehood.sandbox.stopping import stop_command

IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64


class Deaf(FakeDriver):
    """Signals do not come through: the first few fail, or all are lost on the way."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.failures = 0
        self.lost = False
        self.unreachable = False
        self.sent: list[int] = []

    async def signal(self, handle: Handle, command_id: int, signal: int, *, everything: bool = False) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise SandboxLostError("the connection to the sandbox broke")
        self.sent.append(signal)
        if not self.lost:
            await super().signal(handle, command_id, signal, everything=everything)

    async def kill(self, handle: Handle) -> None:
        if self.unreachable:
            raise EngineUnavailableError("the container engine does not answer")
        await super().kill(handle)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(stopping, "KILL_SECONDS", 0.1)


@pytest.fixture
def driver() -> Deaf:
    return Deaf(FakeEngine())


@pytest.fixture
async def handle(driver: Deaf) -> AsyncIterator[Handle]:
    async with RegistryClient() as registry:
        image = await Admission(DevelopmentPolicy(), registry).admit(IMAGE)
    made = await driver.prepare(SandboxSpec("s", image))
    await driver.start(made)
    yield made
    await driver.destroy(made)


def begin(driver: Deaf, handle: Handle) -> asyncio.Task[Outcome]:
    return asyncio.create_task(driver.run(handle, Command(("sleep", "60")), Capture(100), command_id=1))


async def test_a_signal_is_tried_again_until_it_is_sent(driver: Deaf, handle: Handle) -> None:
    driver.failures = 3
    task = begin(driver, handle)
    assert await stop_command(driver, handle, 1, grace_seconds=30)
    assert driver.sent == [signal.SIGTERM]
    assert (await task).signal == signal.SIGTERM


async def test_a_sandbox_that_does_not_even_kill_is_killed_by_the_engine(driver: Deaf, handle: Handle) -> None:
    driver.lost = True
    task = begin(driver, handle)
    assert await stop_command(driver, handle, 1, grace_seconds=0.05)
    assert driver.sent[0] == signal.SIGTERM
    assert set(driver.sent[1:]) == {signal.SIGKILL}
    assert (await driver.inspect(handle)).state is State.ENDED
    with pytest.raises(SandboxLostError):
        await task


async def test_a_sandbox_out_of_reach_is_not_said_to_be_stopped(driver: Deaf, handle: Handle) -> None:
    driver.failures, driver.unreachable = 10**6, True
    task = begin(driver, handle)
    with pytest.raises(EngineUnavailableError):
        await stop_command(driver, handle, 1, grace_seconds=0.05)
    assert not task.done()
    driver.failures = 0
    assert await stop_command(driver, handle, 1, grace_seconds=30)
    assert (await task).end is End.SIGNALED


async def test_a_command_that_never_comes_costs_the_sandbox_and_no_more_than_its_time(
    driver: Deaf, handle: Handle
) -> None:
    assert await asyncio.wait_for(stop_command(driver, handle, 1, grace_seconds=0.05), 120)
    assert (await driver.inspect(handle)).state is State.ENDED


async def test_no_grace_is_a_kill_at_once(driver: Deaf, handle: Handle) -> None:
    task = begin(driver, handle)
    assert await stop_command(driver, handle, 1, grace_seconds=0)
    assert (await task).signal == signal.SIGKILL
    assert not await stop_command(driver, handle, 1, grace_seconds=0)


async def test_two_who_stop_the_same_command(driver: Deaf, handle: Handle) -> None:
    task = begin(driver, handle)
    await asyncio.gather(*(stop_command(driver, handle, 1, grace_seconds=30) for _ in range(2)))
    assert (await task).signal == signal.SIGTERM
