"""The node's task loop over the in-memory driver and broker, with a real decider behind it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.memory_faults import Faults, Verdict
from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import LogKind, LogName
from fumehood.control import intake, loading
from fumehood.control.decider import Decider
from fumehood.engine import definition
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus
from fumehood.images.admission import Admission
from fumehood.images.development import DevelopmentPolicy
from fumehood.node import hold
from fumehood.node.ledger import Ledger
from fumehood.node.node import Node, Queue
from fumehood.node.telemetry import Telemetry
from fumehood.sandbox.fake import FakeEngine
from fumehood.settings import NodeSettings
from tests.unit.test_node import IMAGE, Driver, NoRegistry, receipts
from tests.waiting import past, until


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Line(Faults):
    """The node's connection to the broker."""

    cut = False

    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if self.cut else Verdict.OK


class TaskWorld:
    def __init__(self, folder: Path) -> None:
        self.line = Line()
        self.settings = NodeSettings(state_dir=folder, slots=2, orphan_seconds=1)
        self.engine = FakeEngine()
        self.driver = Driver(self.engine)
        self.server = MemoryServer()
        self._runs = 0
        self.connect()

    def connect(self) -> None:
        self.broker = MemoryBroker(self.server)
        self.decider = Decider(MemoryBroker(self.server), now_ms=now_ms, pull_seconds=0.05)

    @contextlib.asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.decider.work(0))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def node(self, node_id: str = "node-1") -> AsyncIterator[Node]:
        ledger = await Ledger.open(self.settings.state_dir / "ledger.sqlite3")
        try:
            admission = Admission(DevelopmentPolicy(), NoRegistry())
            queue = Queue(MemoryBroker(self.server, faults=self.line), node_id)
            opened = lambda: contextlib.nullcontext(queue)  # noqa: E731
            async with Node.open(
                self.settings, self.driver, admission, ledger, receipts(self.settings), Telemetry(), opened
            ) as node:
                yield node
        finally:
            await ledger.close()

    async def start(self, *command: str, retry: int = 1, **sandbox: Any) -> str:
        self._runs += 1
        run_id = f"run-{self._runs}"
        step = {"id": "run", "sandbox": {"image": IMAGE, "command": list(command), **sandbox}}
        step["retry"] = {"attempts": retry, "backoff": "10ms"}
        read = definition.parse(json.dumps({"name": "w", "steps": [step]}))
        body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": None}
        await self.broker.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))
        return run_id

    async def cancel(self, run_id: str) -> None:
        body = intake.encode(MessageType.CANCEL, {"reason": "enough", "by": "me"})
        await self.broker.mailboxes.send(run_id, f"{run_id}.cancel", body)

    async def state(self, run_id: str) -> RunState | None:
        return (await loading.load(self.broker, run_id))[0]

    async def ended(self, run_id: str) -> RunState:
        async def ended() -> RunState | None:
            state = await self.state(run_id)
            return state if state is not None and state.status.ended else None

        return await until(ended, what=f"{run_id} does not end")

    def is_running(self) -> bool:
        return any(box.jobs for box in self.engine.boxes.values())

    async def empty(self) -> None:
        """Nothing of any task is left: no sandbox, no output."""
        folder = self.settings.state_dir / "output"
        await until(lambda: not self.engine.boxes and not (folder.is_dir() and list(folder.iterdir())))


@pytest.fixture
def world(tmp_path: Path) -> TaskWorld:
    return TaskWorld(tmp_path)


def output(state: RunState) -> dict[str, Any]:
    found = state.steps["run"].output
    assert isinstance(found, dict)
    return found


async def test_a_step_is_run_and_its_report_is_its_output(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        run_id = await world.start("echo", "hi")
        state = await world.ended(run_id)
        assert state.status is RunStatus.SUCCEEDED
        said = output(state)
        assert (said["status"], said["reason"], said["exit_code"], said["stdout"]) == ("succeeded", "exit", 0, "hi\n")
        assert said["container"] == run_id
        assert said["evidence"]["admission"]["resolved_digest"] == IMAGE.partition("@")[2]
        assert said["evidence"]["isolation"]["network"] == "none"
        kept = json.loads(await world.broker.blobs(NODES_TENANT).get(said["logs"], limit=10**6))
        assert base64.b64decode(kept["stdout"]["head"]) == b"hi\n"
        await world.empty()
    entries = await world.broker.logs.read(LogName(run_id, "run", 1))
    assert [entry.record.kind for entry in entries] == [LogKind.START, LogKind.OUT, LogKind.END]


async def test_an_exit_code_is_an_answer_unless_it_must_be_zero(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        told, must = await world.start("exit", "3"), await world.start("exit", "3", must_succeed=True)
        state = await world.ended(told)
        assert (state.status, output(state)["exit_code"]) == (RunStatus.SUCCEEDED, 3)
        state = await world.ended(must)
        assert state.status is RunStatus.FAILED
        assert state.failure is not None
        assert (state.failure.code, state.failure.details) == ("exit", None)
        failure = state.steps["run"].failure
        assert failure is not None
        assert failure.details is not None
        assert (failure.details["exit_code"], failure.details["reason"]) == (3, "exit")


async def test_a_timeout_is_no_exit(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        said = output(await world.ended(await world.start("sleep", "30", timeout="100ms")))
    assert (said["status"], said["reason"], said.get("exit_code")) == ("timed_out", "timeout", None)


async def test_a_program_that_is_not_there_never_ran(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        state = await world.ended(await world.start("no-such-program", retry=3))
    assert state.steps["run"].attempt == 1, "trying again would not help"
    assert state.failure is not None
    assert (state.failure.code, state.status) == ("image_error", RunStatus.FAILED)
    assert "no-such-program" in state.failure.message


async def test_a_denied_image_fails_with_its_evidence(world: TaskWorld) -> None:
    async with world.deciding(), world.node():
        state = await world.ended(await world.start("echo", image="registry.example/x@sha256:" + "0" * 64))
    failure = state.steps["run"].failure
    assert failure is not None
    assert failure.details is not None
    assert failure.details["evidence"]["admission"]["denial_reason"] == "registry_not_allowed"


async def test_a_run_that_is_cancelled_ends_its_sandbox(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    async with world.deciding(), world.node():
        run_id = await world.start("sleep", "60")
        await until(world.is_running)
        await world.cancel(run_id)
        assert (await world.ended(run_id)).status is RunStatus.CANCELLED
        await world.empty()


async def test_a_next_life_of_the_node_goes_on_with_what_runs(world: TaskWorld) -> None:
    async with world.deciding():
        async with world.node():
            run_id = await world.start("sleep", "0.5")
            await until(world.is_running)
        assert world.is_running()
        async with world.node():
            state = await world.ended(run_id)
            await world.empty()
    assert (state.status, world.driver.created, state.steps["run"].attempt) == (RunStatus.SUCCEEDED, 1, 1)


async def test_more_than_there_are_slots_are_run_in_the_order_of_their_coming(world: TaskWorld) -> None:
    async with world.deciding():
        runs = []
        for _ in range(12):
            runs.append(await world.start("echo", "x"))
            await wait_until_begun(world, runs[-1])
        async with world.node():
            states = [await world.ended(run_id) for run_id in runs]
            await world.empty()
    begun = [state.steps["run"].output["started_at"] for state in states]
    assert begun == sorted(begun)


async def wait_until_begun(world: TaskWorld, run_id: str) -> None:
    await until(lambda: world.state(run_id))


async def test_a_node_that_could_not_be_heard_ends_its_sandbox_and_says_that_it_was_lost(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 0.3)
    async with world.deciding(), world.node():
        run_id = await world.start("sleep", "60")
        await until(world.is_running)
        world.line.cut = True
        await until(lambda: not world.engine.boxes)
        state = await world.state(run_id)
        assert state is not None
        assert state.status is RunStatus.RUNNING
        world.line.cut = False
        state = await world.ended(run_id)
        await world.empty()
    assert state.failure is not None
    assert (state.status, state.failure.code) == (RunStatus.FAILED, "node_lost")


async def test_an_answer_that_could_not_be_heard_for_long_is_given_when_it_can(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 0.6)
    async with world.deciding(), world.node():
        run_id = await world.start("sleep", "0.3")
        await until(world.is_running)
        world.line.cut = True
        await until(lambda: not world.engine.boxes)
        await past(1.0)  # beyond any tolerance
        world.line.cut = False
        state = await world.ended(run_id)
        await world.empty()
    assert (state.status, state.steps["run"].attempt, world.driver.created) == (RunStatus.SUCCEEDED, 1, 1)


async def test_an_answer_that_a_node_took_into_its_next_life_is_given_there_whatever_else_fails(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 0.2)
    async with world.deciding():
        async with world.node():
            run_id = await world.start("sleep", "0.15")
            await until(world.is_running)
            world.line.cut = True
            await until(lambda: not world.engine.boxes)
        async with world.node():
            await past(0.5)  # the broker is away, and the lease as good as over
            world.line.cut = False
            state = await world.ended(run_id)
            await world.empty()
    assert (state.status, world.driver.created) == (RunStatus.SUCCEEDED, 1)


async def test_a_task_that_somebody_else_never_answered_is_lost_and_its_retry_decides(world: TaskWorld) -> None:
    once, twice = await world.start("echo", "x"), await world.start("echo", "x", retry=2)
    handouts = Handouts(world.broker)
    async with world.deciding():
        taken: list[Leased] = []
        while len(taken) < 2:
            taken += await handouts.take(
                ["fumehood.sandbox"], max_tasks=2, timeout=1, worker_id="dead", lease_seconds=1
            )
        for leased in taken:
            await world.broker.tasks.give_back(leased.lease.token, 1.1)
        async with world.node():
            state = await world.ended(once)
            assert state.failure is not None
            assert (state.status, state.failure.code) == (RunStatus.FAILED, "node_lost")
            assert (await world.ended(twice)).steps["run"].attempt == 2
