"""What somebody says about a sandbox who was never handed its task has no effect: at real servers, with a worker's own
rights at the broker, who knows all about the run but what only its node was given."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.broker.handout import Leased
from fumehood.control.callers import ADMIN
from fumehood.engine.messages import Ignored
from fumehood.wire.protocol import EventType, StepEvent
from fumehood.wire.runner_api import RunnerStatus
from fumehood.wire.sandbox import RUN_STEP
from tests.conformance.broker_bench import OTHER_WORKER
from tests.contract.runner_harness import report
from tests.integration.test_runner_real import Cell, cell
from tests.waiting import until

PAYLOADS: dict[EventType, Any] = {
    EventType.STARTED: None,
    EventType.COMPLETED: report(exit_code=77, stdout="forged").model_dump(mode="json"),
    EventType.FAILED: {"error": {"code": "exit", "message": "forged", "retryable": False}},
    EventType.CONTINUE: {},
    EventType.PAUSED: {"duration_ms": 60_000},
    EventType.SIGNAL: {"name": "forged", "data": {}},
}


@asynccontextmanager
async def stranger(world: Cell) -> AsyncIterator[NatsBroker]:
    """A worker that may take nothing but a type of its own."""
    options = world.nats.options(OTHER_WORKER, request_timeout=1.0, retry_seconds=0.1)
    broker = await NatsBroker.open_worker(options)
    yield broker
    await broker.close()


async def say(broker: NatsBroker, run_id: str, kind: EventType, **fields: Any) -> None:
    event = {"type": kind, "run_id": run_id, "step_id": RUN_STEP, "payload": PAYLOADS[kind], **fields}
    await broker.histories.publish(run_id, secrets.token_hex(8), json.dumps(event).encode())


async def dropped(world: Cell, number: int) -> None:
    """Until the deciders have dropped so many for want of a proof."""

    async def there() -> bool:
        return sum(service.decider.counters.ignored.get(Ignored.UNPROVEN, 0) for service in world.services) >= number

    await until(there)


async def ends_as_its_node_says(world: Cell, taken: Leased) -> None:
    run_id = taken.task.run_id
    assert await world.status(run_id) is RunnerStatus.RUNNING
    await world.complete(taken)
    await world.reaches(run_id, RunnerStatus.SUCCEEDED)
    assert (await world.services[1].runner.get(run_id, ADMIN)).exit_code == 0


@pytest.mark.parametrize("numbers", [{}, {"attempt": 1, "iteration": 0, "resumption": 0}], ids=["bare", "whole"])
async def test_nobody_but_its_node_ends_a_run(tmp_path: Path, numbers: dict[str, int]) -> None:
    async with cell(tmp_path) as world, stranger(world) as worker:
        made, _ = await world.create()
        taken = await world.begin()
        await world.reaches(made.run_id, RunnerStatus.RUNNING)
        for kind in EventType:
            await say(worker, made.run_id, kind, **numbers)
            await say(worker, made.run_id, kind, lease_id=taken.lease.lease_id, proof="0" * 64, **numbers)
        await dropped(world, 2 * len(EventType))
        await ends_as_its_node_says(world, taken)


async def test_the_proof_of_one_hand_out_is_none_for_another(tmp_path: Path) -> None:
    """Neither of another run, nor with other numbers, nor without: else what was once handed out would count for
    ever."""
    async with cell(tmp_path) as world, stranger(world) as worker:
        made, _ = await world.create()
        taken = await world.begin()
        await world.reaches(made.run_id, RunnerStatus.RUNNING)
        other, _ = await world.create()
        theirs = await world.begin()
        assert theirs.task.run_id == other.run_id
        assert theirs.task.proof not in (None, taken.task.proof)
        whole = {"attempt": 1, "iteration": 0, "resumption": 0}
        await say(worker, made.run_id, EventType.COMPLETED, proof=theirs.task.proof, **whole)
        for number in whole:
            changed = {**whole, number: whole[number] + 1}
            await say(worker, made.run_id, EventType.COMPLETED, proof=taken.task.proof, **changed)
            named = {name: value for name, value in whole.items() if name != number}
            await say(worker, made.run_id, EventType.COMPLETED, proof=taken.task.proof, **named)
        await dropped(world, 1 + 2 * len(whole))
        await ends_as_its_node_says(world, taken)


async def test_nobody_begins_a_run_that_waits_for_a_node(tmp_path: Path) -> None:
    async with cell(tmp_path) as world, stranger(world) as worker:
        made, _ = await world.create()
        for kind in (EventType.STARTED, EventType.COMPLETED):
            await say(worker, made.run_id, kind, attempt=1, iteration=0, resumption=0)
        await dropped(world, 2)
        assert await world.status(made.run_id) is RunnerStatus.QUEUED
        await world.complete(await world.begin())
        await world.reaches(made.run_id, RunnerStatus.SUCCEEDED)


async def test_what_a_run_needs_to_be_believed_is_shown_to_nobody(tmp_path: Path) -> None:
    """The proof is neither in the lease, nor in the journal, nor in what says what the task is."""
    async with cell(tmp_path) as world:
        made, _ = await world.create()
        taken = await world.begin()
        proof = taken.task.proof
        assert proof is not None
        await world.complete(taken)
        await world.reaches(made.run_id, RunnerStatus.SUCCEEDED)
        kept = [entry.data for entry in await world.services[0].broker.journal.read(made.run_id)]
        kept += [taken.lease.encode(), repr(taken.lease).encode(), repr(taken.task).encode()]
        event = StepEvent(type=EventType.STARTED, run_id="r", step_id="s", proof=proof)
        kept.append(repr(event).encode())
        assert not [data for data in kept if proof.encode() in data]
