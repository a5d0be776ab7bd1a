"""A node's entry in the directory of workers: there while it takes tasks, and at no other time."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.memory_faults import Faults, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.directory import Directory
from fumehood.images import DevelopmentPolicy
from fumehood.images.admission import AdmissionPolicy
from fumehood.node import registration
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.unit.policy_world import policy
from tests.waiting import until

ME = registration.entry("node-user", "node-1", 8, DevelopmentPolicy(), "0" * 64)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "LOOK_SECONDS", 0.01)


async def test_it_is_listed_while_it_takes_tasks_and_under_its_users_name() -> None:
    broker, takes, asked = MemoryBroker(), False, 0
    directory = Directory(broker)

    def takes_tasks() -> bool:
        nonlocal asked
        asked += 1
        return takes

    async def names() -> list[str]:
        return [one.worker_id for one in (await directory.workers())[0]]

    async def is_listed() -> bool:
        return await names() == ["node-user"]

    async def is_gone() -> bool:
        return await names() == []

    async with registration.listed(broker, lambda: ME, takes_tasks, structlog.get_logger()):
        await until(lambda: asked >= 3)
        assert await is_gone()
        takes = True
        await until(is_listed)
        (found,) = (await directory.workers())[0]
        assert (found.task_types, found.max_tasks, found.metadata["node_id"]) == ([SANDBOX_TASK], 8, "node-1")
        takes = False
        await until(is_gone)
        takes = True
        await until(is_listed)
    assert await is_gone()


async def test_it_is_renewed_before_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "RENEW_SECONDS", 0.05)
    broker = MemoryBroker()
    bucket = broker.bucket(Bucket.WORKERS)
    seen: set[int] = set()

    async def is_renewed() -> bool:
        entry = await bucket.get("node-user")
        seen.update([entry.revision] if entry is not None else [])
        return len(seen) > 2

    async with registration.listed(broker, lambda: ME, lambda: True, structlog.get_logger()):
        await until(is_renewed)


class Down(Faults):
    """Nothing gets through while it is down."""

    def __init__(self) -> None:
        self.is_down = True
        self.asked = 0

    async def call(self, operation: str, subject: str) -> Verdict:
        self.asked += 1
        return Verdict.LOST if self.is_down else await super().call(operation, subject)


async def test_a_broker_that_is_away_is_said_once_and_tried_again() -> None:
    line = Down()
    broker = MemoryBroker()
    mine = MemoryBroker(broker.server, faults=line)

    async def is_listed() -> bool:
        return await broker.bucket(Bucket.WORKERS).get("node-user") is not None

    with capture_logs() as said:
        async with registration.listed(mine, lambda: ME, lambda: True, structlog.get_logger()):
            await until(lambda: line.asked >= 3)
            assert not await is_listed()
            line.is_down = False
            await until(is_listed)
    assert [one["event"] for one in said] == ["node.not_listed"]


async def test_the_policy_is_told_and_told_again_when_it_changes(tmp_path: Path) -> None:
    broker = MemoryBroker()
    current: AdmissionPolicy = DevelopmentPolicy()
    written = policy(tmp_path)

    async def said() -> dict[str, str]:
        found = (await Directory(broker).workers())[0]
        return dict(found[0].metadata) if found else {}

    async def is_development() -> bool:
        return (await said()).get("policy") == "development"

    async def is_written() -> bool:
        return (await said()).get("policy") == "production"

    def me() -> WorkerRegistration:
        return registration.entry("node-user", "node-1", 8, current, "0" * 64)

    async with registration.listed(broker, me, lambda: True, structlog.get_logger()):
        await until(is_development)
        assert "policy_sha256" not in await said()
        current = written
        await until(is_written)
        assert (await said())["policy_sha256"] == written.sha256
