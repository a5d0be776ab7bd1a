"""What a node asks its policy: with its own limits where none was asked for, and one policy for all of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.engine.state import RunStatus
from fumehood.errors import PolicyDeniedError
from fumehood.images import Admission, DevelopmentPolicy, RunWish
from fumehood.images.egress import EgressRules
from fumehood.node.ledger import JobRecord, JobState, Ledger
from fumehood.node.node import Node, Queue
from fumehood.node.receipts import Receipts
from fumehood.node.sandbox_run import SandboxRun
from fumehood.node.signing import ReceiptKeys
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings
from fumehood.wire.protocol import TaskPayload
from tests.unit.policy_world import GOOD, policy
from tests.unit.test_node import IMAGE, NoRegistry, receipts
from tests.unit.test_node_tasks import TaskWorld

NOON = dt.datetime(2026, 2, 16, 12, 0, tzinfo=dt.UTC)
OWN = NodeSettings(cpu_millis=2000, memory_mib=1024, default_timeout_seconds=600)
FITTING = {"cpu_millis": 2000, "memory_mib": 1024, "timeout_seconds": 600}


def work(folder: Path, **asked: Any) -> SandboxRun:
    task = TaskPayload(task_id="t", run_id="run-1", step_id="s", sandbox={"image": IMAGE, **asked})
    record = JobRecord(
        job_id="j",
        task_id="t",
        body_sha256="",
        request_json=task.model_dump_json(exclude_none=True),
        state=JobState.ACCEPTED,
        sandbox_id=None,
        runtime=None,
        accepted_at=NOON,
        response_json=None,
        exit_reason=None,
        effective_timeout_seconds=OWN.effective_timeout(None),
        evidence_json=None,
        finished_at=None,
    )
    return SandboxRun(record, OWN, "node-1", Receipts(ReceiptKeys.load(folder), "node-1"))


def bounded(folder: Path, **maxima: int) -> Any:
    limits = ", ".join(f"{name}: {most}" for name, most in maxima.items())
    return policy(folder, re.sub(r"limits: \{.*\}", f"limits: {{{limits}}}", GOOD))


@pytest.mark.parametrize("name", FITTING)
def test_a_maximum_holds_for_the_nodes_own_limits_too(tmp_path: Path, name: str) -> None:
    work(tmp_path).permit(bounded(tmp_path, **FITTING))
    less = FITTING | {name: FITTING[name] - 1}
    with pytest.raises(PolicyDeniedError, match=f"{name} {FITTING[name]} is above") as caught:
        work(tmp_path).permit(bounded(tmp_path, **less))
    assert caught.value.reason == "limits_not_allowed"
    asked = {"timeout_ms": 599_000} if name == "timeout_seconds" else {name: less[name]}
    work(tmp_path, **asked).permit(bounded(tmp_path, **less))


def test_what_was_asked_for_is_compared_as_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PolicyDeniedError, match="memory_mib 1025 is above"):
        work(tmp_path, memory_mib=1025).permit(bounded(tmp_path, **FITTING))


class Source:
    """A policy file."""

    trouble = None

    def __init__(self, policy: DevelopmentPolicy) -> None:
        self.policy = policy

    def current(self) -> DevelopmentPolicy:
        return self.policy


@contextlib.asynccontextmanager
async def node(world: TaskWorld, source: Source) -> AsyncIterator[Node]:
    ledger = await Ledger.open(world.settings.state_dir / "ledger.sqlite3")
    queue = Queue(MemoryBroker(world.server), "node-1")
    opened = lambda: contextlib.nullcontext(queue)  # noqa: E731
    admission = Admission(source, NoRegistry())
    try:
        async with Node.open(
            world.settings, world.driver, admission, ledger, receipts(world.settings), Telemetry(), opened
        ) as made:
            yield made
    finally:
        await ledger.close()


async def test_image_and_wish_are_judged_by_one_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node reads its policy once for each piece of work: a file that is replaced on the way changes nothing."""
    before, after = DevelopmentPolicy(), DevelopmentPolicy(egress=EgressRules.parse(["example.com:443"]))
    source, asked = Source(before), []
    whole = DevelopmentPolicy.judge

    def permits(self: DevelopmentPolicy, wish: RunWish) -> None:
        asked.append(self)
        source.policy = after

    async def judge(self: DevelopmentPolicy, *given: Any) -> Any:
        asked.append(self)
        return await whole(self, *given)

    monkeypatch.setattr(DevelopmentPolicy, "permits", permits)
    monkeypatch.setattr(DevelopmentPolicy, "judge", judge)
    world = TaskWorld(tmp_path)
    async with world.deciding(), node(world, source):
        state = await world.ended(await world.start("echo", "hi"))
    assert state.status is RunStatus.SUCCEEDED
    assert asked == [before, before]
