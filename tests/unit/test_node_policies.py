"""A server that has a policy says of which nodes it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control.node_policies import NodePolicies
from fumehood.control.service import Service
from fumehood.images import Admission, DevelopmentPolicy, ImageReference
from fumehood.images.admission import AdmissionPolicy
from fumehood.node import registration
from fumehood.wire.protocol import WorkerRegistration
from tests.unit.policy_world import policy
from tests.waiting import until


class NoRegistry:
    async def resolve(self, reference: ImageReference) -> str:
        raise AssertionError("nobody asks")


class World:
    def __init__(self, own: AdmissionPolicy) -> None:
        self.broker = MemoryBroker()
        self.admission = Admission(own, NoRegistry())
        self.policies = NodePolicies(self.broker, self.admission)

    async def register(self, name: str, node: AdmissionPolicy) -> None:
        await self.put(registration.entry(name, name, 1, node, "0" * 64))

    async def put(self, said: WorkerRegistration) -> None:
        await self.broker.bucket(Bucket.WORKERS).put(said.worker_id, said.model_dump_json().encode())

    async def told(self) -> Sequence[str]:
        """Whom a look warns of."""
        with capture_logs() as logs:
            await self.policies.look()
        return named(logs)


def named(logs: Any) -> Sequence[str]:
    return [line["node"] for line in logs if line["event"] == "node_policies.none" and line["log_level"] == "warning"]


async def test_a_node_without_a_file_is_told_of_once_and_again_when_it_changes(tmp_path: Path) -> None:
    written = policy(tmp_path)
    world = World(written)
    await world.register("good", written)
    await world.register("open", DevelopmentPolicy())
    assert await world.told() == ["open"]
    assert await world.told() == []
    await world.register("open", written)
    assert await world.told() == []
    await world.register("open", DevelopmentPolicy())
    await world.register("other", DevelopmentPolicy())
    assert await world.told() == ["open", "other"]


async def test_a_node_that_does_not_tell_its_policy_has_none(tmp_path: Path) -> None:
    world = World(policy(tmp_path))
    old = registration.entry("old", "old", 1, DevelopmentPolicy(), "0" * 64)
    await world.put(old.model_copy(update={"metadata": {"node_id": "old"}}))
    assert await world.told() == ["old"]


async def test_workers_that_run_no_sandboxes_are_none_of_it(tmp_path: Path) -> None:
    world = World(policy(tmp_path))
    await world.put(WorkerRegistration(worker_id="w", task_types=["mail"]))
    assert await world.told() == []


@pytest.mark.parametrize("has_admission", [True, False])
async def test_a_server_without_a_file_has_nothing_to_say(has_admission: bool) -> None:
    world = World(DevelopmentPolicy())
    world.policies = NodePolicies(world.broker, world.admission if has_admission else None)
    await world.register("open", DevelopmentPolicy())
    assert await world.told() == []


async def test_a_server_looks_by_itself(tmp_path: Path) -> None:
    world = World(policy(tmp_path))
    await world.register("open", DevelopmentPolicy())
    service = Service(world.broker, admission=world.admission)

    async def is_told() -> bool:
        return named(logs) == ["open"]

    with capture_logs() as logs:
        async with service.deciding():
            await until(is_told)
