"""A server's readiness and its deciders."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.control import service as module
from fumehood.control.callers import ADMIN, DEFAULT_TENANT, Scope
from fumehood.control.keys import NewKey
from fumehood.control.runs import Start
from fumehood.control.service import Probe, Service
from fumehood.engine.state import RunState
from fumehood.errors import BrokerUnavailableError
from tests.waiting import until

SMALL = b"name: w\nsteps:\n  - {id: a, sleep: 1h}\n"


class Counting(Faults):
    def __init__(self) -> None:
        self.writes = 0
        self.verdict = Verdict.OK
        self.gate: asyncio.Event | None = None

    async def call(self, operation: str, subject: str) -> Verdict:
        if not operation.endswith(".put"):
            return Verdict.OK
        self.writes += 1
        if self.gate is not None:
            await self.gate.wait()
        return self.verdict


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_readiness_is_a_write_shared_by_all_who_ask_within_a_second() -> None:
    faults, clock = Counting(), Clock()
    probe = Probe(MemoryBroker(faults=faults), clock=clock)
    answers = await asyncio.gather(*(probe.readiness() for _ in range(50)))
    assert all(answer.ready for answer in answers)
    assert faults.writes == 1
    clock.now += 0.9
    await probe.readiness()
    assert faults.writes == 1
    clock.now += 0.2
    faults.verdict = Verdict.LOST
    answer = await probe.readiness()
    assert (answer.ready, answer.reason) == (False, "the broker cannot be written to (broker-unavailable)")
    assert faults.writes == 2


async def test_a_broker_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_SECONDS", 0.05)
    faults = Counting()
    faults.gate = asyncio.Event()
    answer = await Probe(MemoryBroker(faults=faults)).readiness()
    assert (answer.ready, answer.reason) == (False, "the broker does not answer in time")


async def test_a_caller_that_goes_away_takes_nobody_elses_answer_along() -> None:
    faults = Counting()
    faults.gate = asyncio.Event()
    probe = Probe(MemoryBroker(faults=faults))
    first, second = asyncio.create_task(probe.readiness()), asyncio.create_task(probe.readiness())
    await asyncio.sleep(0)
    first.cancel()
    faults.gate.set()
    assert (await second).ready
    assert faults.writes == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_server_that_shuts_down_is_not_ready() -> None:
    service = Service(MemoryBroker())
    assert (await service.readiness()).ready
    service.drain()
    assert not (await service.readiness()).ready


async def test_readiness_is_known_although_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(module, "READY_FRESH_SECONDS", 0.0)
    faults = Counting()
    service = Service(MemoryBroker(faults=faults))

    def is_ready(wanted: bool) -> bool:
        return service.is_ready is wanted

    assert not service.is_ready
    async with service.deciding():
        for ready, verdict in [(True, Verdict.LOST), (False, Verdict.OK), (True, Verdict.OK)]:
            await until(partial(is_ready, ready))
            faults.verdict = verdict
        service.drain()
        assert not service.is_ready


async def is_decided(service: Service, run_id: str) -> bool:
    return isinstance(await service.runs.get(run_id, ADMIN), RunState)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_every_partition_is_decided(partitions: int) -> None:
    server = MemoryServer(partitions=partitions)
    service = Service(MemoryBroker(server))
    await service.workflows.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    ids = [(await service.runs.start(Start("w"), ADMIN))[0] for _ in range(20)]
    async with service.deciding():
        for run_id in ids:
            await until(partial(is_decided, service, run_id))


async def test_a_decider_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    service = Service(MemoryBroker())
    await service.workflows.apply("w", SMALL, is_json=False, tenant=DEFAULT_TENANT)
    run_id, _ = await service.runs.start(Start("w"), ADMIN)
    failures = [RuntimeError("a fault of ours"), BrokerUnavailableError("a broker's")]
    work = service.decider.work

    async def faulty(partition: int) -> None:
        if failures:
            raise failures.pop()
        await work(partition)

    monkeypatch.setattr(service.decider, "work", faulty)
    async with service.deciding():
        await until(partial(is_decided, service, run_id))
    assert failures == []


class Asked(Faults):
    """Counts what is asked about keys."""

    keys = 0

    async def call(self, operation: str, subject: str) -> Verdict:
        self.keys += operation == "keys.get"
        return Verdict.OK


async def test_a_server_that_decides_watches_its_keys() -> None:
    """And answers from memory, which makes the broker's part of a request's way one question a second."""
    faults = Asked()
    service = Service(MemoryBroker(MemoryServer(), faults=faults))
    async with service.deciding():
        _, token = await service.keys.create(NewKey("k", frozenset({Scope.RUNS_READ})), ADMIN)

        async def from_memory() -> bool:
            faults.keys = 0
            assert await service.keys.caller(token) is not None
            return faults.keys == 0

        await until(from_memory)
