"""What stands in a task's way: a disk, an engine, a broker, a lease that is gone. No attempt is burnt for it, no answer
is lost, and nothing runs that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.broker.memory import MemoryBroker
from fumehood.broker.memory_faults import Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.lost_nodes import LostNodes
from fumehood.control.proofs import Proofs
from fumehood.engine.state import RunStatus
from fumehood.errors import (
    BrokerFullError,
    EngineUnavailableError,
    LedgerError,
    PayloadTooLargeError,
    WardenProtocolError,
)
from fumehood.node import hold, tasks
from fumehood.node.ledger import Accepted, Ledger, NewJob
from fumehood.node.task_output import TaskOutput
from fumehood.sandbox.driver import Handle, Sink
from fumehood.sandbox.spec import Command, Outcome, SandboxSpec
from tests.unit.test_node import Driver
from tests.unit.test_node_tasks import TaskWorld, now_ms
from tests.waiting import past, until

NODE_LOST = {"code": "node_lost", "message": "silent", "retryable": True}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskWorld:
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 1)
    monkeypatch.setattr(tasks, "RETRY_SECONDS", 0.02)
    return TaskWorld(tmp_path)


@contextlib.asynccontextmanager
async def keeping(world: TaskWorld) -> AsyncIterator[None]:
    """A server looks after nodes that fall silent."""
    work = asyncio.create_task(LostNodes(MemoryBroker(world.server), now_ms=now_ms).work())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def engine_away(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many times."""
    real, left = Driver.prepare, times

    async def prepare(self: Driver, spec: SandboxSpec) -> Handle:
        nonlocal left
        left -= 1
        if left >= 0:
            raise EngineUnavailableError("away")
        return await real(self, spec)

    monkeypatch.setattr(Driver, "prepare", prepare)


async def check_succeeds(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        state = await world.ended(await world.start("echo", "x"))
        assert (state.status, state.steps["run"].attempt) == (RunStatus.SUCCEEDED, 1), state.failure
        await world.empty()


async def test_a_ledger_that_refuses_once_burns_no_attempt(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = Ledger.accept, False

    async def accept(self: Ledger, job: NewJob) -> Accepted:
        nonlocal refused
        if not refused:
            refused = True
            raise LedgerError("the disk is full")
        return await real(self, job)

    monkeypatch.setattr(Ledger, "accept", accept)
    await check_succeeds(world)


@pytest.mark.parametrize("times", [1, 10])
async def test_an_engine_that_is_away_burns_no_attempt_however_slow_the_broker_is(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Not even where a renewal is under way when the task is given back."""
    engine_away(monkeypatch, times)

    async def slowly(operation: str, subject: str) -> Verdict:
        await past(0.2 if operation.endswith("give_back") and times == 1 else 0.01)
        return Verdict.OK

    monkeypatch.setattr(world.line, "call", slowly)
    async with keeping(world):
        await check_succeeds(world)


async def test_a_task_that_comes_again_at_once_does_not_meet_its_own_record(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_away(monkeypatch, 1)
    real = Ledger.mark_told

    async def slowly(self: Ledger, job_id: str) -> None:
        await past(0.2)
        await real(self, job_id)

    monkeypatch.setattr(Ledger, "mark_told", slowly)
    await check_succeeds(world)


async def test_an_answer_waits_neither_for_room_nor_for_a_disk(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: object, data: bytes) -> str:
        raise BrokerFullError("the broker is full")

    monkeypatch.setattr(type(world.broker.blobs()), "put", full)
    await check_succeeds(world)
    monkeypatch.undo()
    real = tasks.TaskLoop._until_done

    def broken(self: TaskOutput, *_: int) -> bytes:
        raise OSError(5, "Input/output error")

    async def until_done(self: tasks.TaskLoop, *args: Any, **options: Any) -> Any:
        done = await real(self, *args, **options)
        monkeypatch.setattr(TaskOutput, "read", broken)
        return done

    monkeypatch.setattr(tasks.TaskLoop, "_until_done", until_done)
    await check_succeeds(world)


async def test_nothing_begins_under_a_lease_that_is_lost(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node was killed while it made a sandbox, and was away for so long that a server has answered for it."""
    real, hangs = Driver.prepare, True

    async def prepare(self: Driver, spec: SandboxSpec) -> Handle:
        if hangs:
            await asyncio.Event().wait()
        return await real(self, spec)

    monkeypatch.setattr(Driver, "prepare", prepare)
    async with world.deciding():
        async with world.node():
            run_id = await world.start("echo", "too late")
            ledger = world.settings.state_dir / "ledger.sqlite3"
            await until(lambda: ledger.exists() and _is_leased(world, run_id))
        handouts = Handouts(world.broker)
        entry = await world.broker.bucket(Bucket.NODE_LEASES).get(f"{run_id}.run")
        lease = Lease.decode(entry) if entry is not None else None
        assert lease is not None
        proof = Proofs(world.broker).of(run_id, "run", lease.age)
        assert await handouts.give_up(replace(lease, proof=proof), NODE_LOST)
        assert (await world.ended(run_id)).status is RunStatus.FAILED
        hangs = False

        async def slowly(operation: str, subject: str) -> Verdict:
            await past(0.02)
            return Verdict.OK

        monkeypatch.setattr(world.line, "call", slowly)
        async with world.node():
            await world.empty()
            await until(lambda: _is_forgotten(world))
    assert world.driver.created == 0


async def _is_leased(world: TaskWorld, run_id: str) -> bool:
    ledger = await Ledger.open(world.settings.state_dir / "ledger.sqlite3")
    try:
        return bool(await ledger.untold())
    finally:
        await ledger.close()


async def _is_forgotten(world: TaskWorld) -> bool:
    return not await _is_leased(world, "")


async def test_an_end_that_nobody_knows_is_told_when_the_sandbox_is_gone(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be tried again, and two must never run at once."""
    real_destroy, real_run = Driver.destroy, Driver.run
    first: list[str] = []
    still: set[asyncio.Task[Outcome]] = set()

    async def destroy(self: Driver, handle: Handle) -> None:
        if handle.sandbox_id in first:
            await past(0.5)
        await real_destroy(self, handle)

    async def run(self: Driver, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        if not first:
            first.append(handle.sandbox_id)
            still.add(asyncio.create_task(real_run(self, handle, command, sink, command_id=command_id)))
        if handle.sandbox_id in first:
            await past(0.05)
            raise WardenProtocolError("garbled")
        assert first[0] not in {box.spec.sandbox_id for box in world.engine.boxes.values()}, "two at once"
        return await real_run(self, handle, command, sink, command_id=command_id)

    monkeypatch.setattr(Driver, "destroy", destroy)
    monkeypatch.setattr(Driver, "run", run)
    async with world.deciding(), world.node():
        state = await world.ended(await world.start("sleep", "0.3", retry=2))
        await asyncio.gather(*still, return_exceptions=True)
    assert (state.status, state.steps["run"].attempt) == (RunStatus.SUCCEEDED, 2)


async def test_a_renewal_that_fails_in_a_way_nobody_thought_of_ends_the_sandbox(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Handouts, lease: object) -> None:
        raise PayloadTooLargeError("nobody thought of it")

    async with world.deciding(), world.node():
        await world.start("sleep", "60")
        await until(world.is_running)
        monkeypatch.setattr(Handouts, "heartbeat", broken)
        await until(lambda: not world.is_running())
