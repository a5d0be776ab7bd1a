"""The node over the in-memory driver: one answer for each job, whatever happens around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from fumehood.errors import (
    ConflictError,
    DeadlineExceededError,
    DrainingError,
    EngineStatusError,
    EngineUnavailableError,
    InvalidReferenceError,
    LedgerError,
    OverloadedError,
    RegistryUnavailableError,
)
from fumehood.images.admission import Admission
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.reference import ImageReference
from fumehood.node.ledger import JobRecord, Ledger
from fumehood.node.node import Node
from fumehood.node.receipts import Receipts
from fumehood.node.service import JobAnswer
from fumehood.node.signing import ReceiptKeys
from fumehood.node.telemetry import Telemetry
from fumehood.sandbox.driver import Handle, Inspection, Sink
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.spec import Command, Outcome, SandboxSpec
from fumehood.settings import NodeSettings
from fumehood.wire.worker_api import JobStatus, RunJobRequest, SandboxRequest
from tests.waiting import until

IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64


class Driver(FakeDriver):
    """The fake, able to prove itself and to be out of reach."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.away = False
        self.created = 0

    async def ping(self) -> None:
        if self.away:
            raise EngineUnavailableError("the container engine does not answer")

    async def check(self) -> None:
        await self.ping()

    async def prepare(self, spec: SandboxSpec) -> Handle:
        await self.ping()
        self.created += 1
        return await super().prepare(spec)


class NoRegistry:
    async def resolve(self, reference: ImageReference) -> str:
        raise AssertionError("a digest needs no registry")


def receipts(settings: NodeSettings, worker: str = "node-1") -> Receipts:
    return Receipts(ReceiptKeys.load(settings.state_dir), worker)


@dataclass
class World:
    settings: NodeSettings
    engine: FakeEngine
    driver: Driver

    @contextlib.asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        ledger = await Ledger.open(self.settings.state_dir / "ledger.sqlite3")
        telemetry = Telemetry()
        try:
            admission = Admission(DevelopmentPolicy(), NoRegistry())
            async with Node.open(
                self.settings, self.driver, admission, ledger, receipts(self.settings), telemetry
            ) as node:
                yield node
        finally:
            await ledger.close()

    async def empty(self) -> None:
        """Wait until no sandbox and no spooled output is left."""
        spool = self.settings.state_dir / "spool"
        await until(lambda: not self.engine.boxes and not list(spool.iterdir()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    engine = FakeEngine()
    return World(NodeSettings(state_dir=tmp_path, slots=2, queue=0), engine, Driver(engine))


def job(*argv: str, job_id: str | None = None, timeout: int | None = None, image: str = IMAGE) -> RunJobRequest:
    sandbox = SandboxRequest(image=image, command=argv, env={})
    if timeout is not None:
        sandbox = sandbox.model_copy(update={"timeout_seconds": timeout})
    return RunJobRequest(version=1, task_id=str(uuid4()), job_id=job_id or str(uuid4()), sandbox=sandbox)


def begin(node: Node, request: RunJobRequest, body: str = "body") -> asyncio.Task[JobAnswer]:
    return asyncio.create_task(node.run_job(request, body))


async def sandbox_running(world: World) -> None:
    await until(lambda: any(box.jobs for box in world.engine.boxes.values()))


async def test_a_job_is_answered_and_leaves_nothing(world: World) -> None:
    async with world.node() as node:
        answer = await node.run_job(job("echo", "hi"), "body")
        assert (answer.response.status, answer.response.exit_code, answer.response.stdout) == ("completed", 0, "hi\n")
        assert (answer.effective_timeout_seconds, answer.replayed) == (300, False)
        await world.empty()


async def test_the_same_job_again_runs_nothing_and_says_the_same(world: World) -> None:
    request = job("echo", "hi")
    async with world.node() as node:
        first = await node.run_job(request, "body")
        again = await node.run_job(request, "body")
        assert again == replace(first, replayed=True)
        with pytest.raises(ConflictError):
            await node.run_job(request, "another body")
    assert world.driver.created == 1


async def test_a_job_under_way_is_joined(world: World) -> None:
    request = job("sleep", "0.3")
    async with world.node() as node:
        answers = await asyncio.gather(*(node.run_job(request, "body") for _ in range(5)))
    assert {answer.response.started_at for answer in answers} == {answers[0].response.started_at}
    assert world.driver.created == 1


async def test_a_caller_that_goes_away_does_not_end_its_job(world: World) -> None:
    request = job("sleep", "0.3")
    async with world.node() as node:
        task = begin(node, request)
        await sandbox_running(world)
        task.cancel()
        answer = await node.run_job(request, "body")
    assert answer.response.status is JobStatus.COMPLETED
    assert world.driver.created == 1


async def test_overload_is_refused_at_once_and_records_nothing(world: World) -> None:
    async with world.node() as node:
        running = [begin(node, job("sleep", "30"), str(number)) for number in range(2)]
        await until(lambda: node._slots.taken == 2)
        request = job("echo", "later")
        with pytest.raises(OverloadedError) as caught:
            await node.run_job(request, "body")
        assert caught.value.retry_after_seconds >= 1
        assert await node._ledger.get(str(request.job_id)) is None
        for task in running:
            task.cancel()


async def test_a_restart_goes_on_with_what_runs(world: World) -> None:
    request = job("ticks", "20", "0.05")
    async with world.node() as node:
        task = begin(node, request)
        await sandbox_running(world)
        task.cancel()
    assert len(world.engine.boxes) == 1, "a node that stops ends no sandbox"
    async with world.node() as node:
        answer = await node.run_job(request, "body")
        await world.empty()
    assert answer.response.stdout == "".join(f"tick {number}\n" for number in range(20))
    assert world.driver.created == 1


async def test_a_sandbox_that_is_gone_at_the_restart_is_node_lost_and_not_run_again(world: World) -> None:
    request = job("sleep", "30")
    async with world.node() as node:
        task = begin(node, request)
        await sandbox_running(world)
        task.cancel()
    world.engine.boxes.clear()
    async with world.node() as node:
        answer = await node.run_job(request, "body")
    assert (answer.response.status, answer.response.exit_code, answer.exit_reason) == ("failed", 137, "node_lost")
    assert world.driver.created == 1


async def test_an_engine_that_is_away_refuses_and_the_id_stays_free(world: World) -> None:
    request = job("echo", "hi")
    async with world.node() as node:
        world.driver.away = True
        with pytest.raises(EngineUnavailableError):
            await node.run_job(request, "body")
        world.driver.away = False
        answer = await node.run_job(request, "body")
    assert (answer.response.stdout, answer.replayed) == ("hi\n", False)


async def test_readiness_follows_the_engine(world: World) -> None:
    async with world.node() as node:
        assert (await node._readiness.once()).ready
        world.driver.away = True
        assert await node._readiness.once() == node.readiness()
        assert not node.readiness().ready
        world.driver.away = False
        assert (await node._readiness.once()).ready


async def test_draining_finishes_what_runs_and_takes_nothing_new(world: World) -> None:
    async with world.node() as node:
        task = begin(node, job("sleep", "0.3"))
        await sandbox_running(world)
        draining = asyncio.create_task(node.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(DrainingError):
            await node.run_job(job("echo", "no"), "body")
        assert not node.readiness().ready
        assert await draining
        assert (await task).response.status is JobStatus.COMPLETED


async def test_a_drain_that_takes_too_long_tells_its_callers_but_loses_nothing(world: World) -> None:
    async with world.node() as node:
        task = begin(node, job("sleep", "30"))
        await sandbox_running(world)
        assert not await node.drain(0.05)
        with pytest.raises(DrainingError, match="ask again"):
            await task
    assert len(world.engine.boxes) == 1


async def test_what_belongs_to_nobody_is_removed_and_neighbours_are_spared(world: World) -> None:
    other = FakeDriver(world.engine, node_id="another-node")
    async with world.node() as node:
        task = begin(node, job("sleep", "30"))
        await sandbox_running(world)
        image = await Admission(DevelopmentPolicy(), NoRegistry()).admit(IMAGE)
        stray = await FakeDriver.prepare(world.driver, SandboxSpec("stray", image))
        foreign = await other.prepare(SandboxSpec("foreign", image))
        assert await node._reconciler.once() == 1
        assert stray.engine_id not in world.engine.boxes
        assert foreign.engine_id in world.engine.boxes
        assert len(world.engine.boxes) == 2
        task.cancel()


@pytest.mark.parametrize("image", ["", "UPPER", "a b", "https://x/y", "x@sha256:1"])
async def test_a_reference_that_does_not_parse_is_a_bad_request(world: World, image: str) -> None:
    request = job("echo", "hi")
    request = request.model_copy(update={"sandbox": request.sandbox.model_copy(update={"image": image})})
    async with world.node() as node:
        with pytest.raises(InvalidReferenceError):
            await node.run_job(request, "body")
        assert await node._ledger.get(str(request.job_id)) is None


async def test_an_image_that_policy_denies_is_a_failed_job(world: World) -> None:
    request = job("echo", "hi", image="registry.example.com/a@sha256:" + "0" * 64)
    async with world.node() as node:
        answer = await node.run_job(request, "body")
        record = await node._ledger.get(str(request.job_id))
    assert (answer.response.status, answer.response.exit_code) == ("failed", 125)
    assert "registry" in answer.response.stderr
    assert world.driver.created == 0
    assert record is not None
    assert '"denial_reason": "registry_not_allowed"' in (record.evidence_json or ""), "a denial leaves evidence"


async def test_a_timeout_is_gone_before_its_answer(world: World) -> None:
    async with world.node() as node:
        answer = await node.run_job(job("sleep", "30", timeout=1), "body")
        assert not world.engine.boxes
    assert (answer.response.status, answer.response.exit_code, answer.response.stdout) == ("timeout", None, "begun\n")


async def test_evidence_says_what_was_decided_and_what_was_observed(world: World) -> None:
    request = job("echo", "hi")
    async with world.node() as node:
        await node.run_job(request, "body")
        record = await node._ledger.get(str(request.job_id))
    assert record is not None
    assert record.runtime == "fake"
    assert record.evidence_json is not None
    assert '"policy": "development"' in record.evidence_json
    assert '"isolation"' in record.evidence_json


class Hiccup(Driver):
    """A driver whose engine fails now and then, as told."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.failing: dict[str, list[Exception]] = {}

    def _maybe(self, call: str) -> None:
        if self.failing.get(call):
            raise self.failing[call].pop()

    async def list(self, labels: Mapping[str, str]) -> list[Handle]:
        self._maybe("list")
        return await super().list(labels)

    async def inspect(self, handle: Handle) -> Inspection:
        self._maybe("inspect")
        return await super().inspect(handle)

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        self._maybe("run")
        return await super().run(handle, command, sink, command_id=command_id)

    async def destroy(self, handle: Handle) -> None:
        self._maybe("destroy")
        await super().destroy(handle)


TROUBLE = [EngineUnavailableError("away"), DeadlineExceededError("slow"), EngineStatusError(500, "broken"), OSError(28)]


@pytest.fixture
def shaky(world: World) -> Hiccup:
    world.driver = Hiccup(world.engine)
    return world.driver


@pytest.mark.parametrize("call", ["list", "run", "inspect"])
@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__)
async def test_a_hiccup_of_the_engine_at_a_restart_costs_no_job(
    world: World, shaky: Hiccup, call: str, error: Exception
) -> None:
    request = job("ticks", "20", "0.1")
    async with world.node() as node:
        task = begin(node, request)
        await sandbox_running(world)
        task.cancel()
    shaky.failing[call] = [error, error]
    async with world.node() as node:
        answer = await node.run_job(request, "body")
    assert (answer.response.status, answer.exit_reason) == ("completed", None)
    assert answer.response.stdout == "".join(f"tick {number}\n" for number in range(20))


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__)
async def test_a_hiccup_while_a_command_runs_is_not_its_end(world: World, shaky: Hiccup, error: Exception) -> None:
    shaky.failing = {"run": [error], "inspect": [error]}
    async with world.node() as node:
        answer = await node.run_job(job("echo", "hi"), "body")
    assert (answer.response.status, answer.response.stdout) == ("completed", "hi\n")
    assert world.driver.created == 1


async def test_a_ledger_that_fails_delays_the_answer_and_does_not_change_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.node() as node:
        finish, failures = node._ledger.finish, [LedgerError("the disk is full")] * 2

        async def failing(job_id: str, response_json: str, *rest: str | None) -> JobRecord:
            if failures:
                raise failures.pop()
            return await finish(job_id, response_json, *rest)

        monkeypatch.setattr(node._ledger, "finish", failing)
        answer = await node.run_job(job("exit", "5"), "body")
    assert not failures
    assert (answer.response.status, answer.response.exit_code) == ("failed", 5)


async def test_a_sandbox_that_cannot_be_removed_is_removed_later(world: World, shaky: Hiccup) -> None:
    shaky.failing["destroy"] = [EngineStatusError(500, "busy")]
    async with world.node() as node:
        answer = await node.run_job(job("echo", "hi"), "body")
        assert answer.response.status is JobStatus.COMPLETED
        await world.empty()


async def test_the_reconciler_survives_whatever_the_engine_says(world: World, shaky: Hiccup) -> None:
    image = await Admission(DevelopmentPolicy(), NoRegistry()).admit(IMAGE)
    await FakeDriver.prepare(world.driver, SandboxSpec("stray", image))
    shaky.failing["list"] = [EngineStatusError(500, "broken"), ValueError("nonsense")]
    async with world.node() as node:
        await until(lambda: not world.engine.boxes, 30)
        assert (await node._readiness.once()).ready


async def test_a_timeout_is_stored_before_its_sandbox_goes(world: World, shaky: Hiccup) -> None:
    request = job("sleep", "30", timeout=1)
    async with world.node() as node:
        stored: list[bool] = []
        destroy = shaky.destroy

        async def watching(handle: Handle) -> None:
            record = await node._ledger.get(str(request.job_id))
            stored.append(record is not None and record.done)
            await destroy(handle)

        shaky.destroy = watching  # type: ignore[method-assign]
        answer = await node.run_job(request, "body")
    assert answer.response.status is JobStatus.TIMEOUT
    assert stored[0]


async def test_a_registry_that_is_away_is_an_image_that_cannot_be_pulled(world: World) -> None:
    """The contract's answer: a failed job, 125, with the reason."""

    class Away(NoRegistry):
        async def resolve(self, reference: ImageReference) -> str:
            raise RegistryUnavailableError("cannot resolve it: the connection was refused")

    request = job("echo", "hi", image="127.0.0.1:5055/fake/image:1")
    ledger = await Ledger.open(world.settings.state_dir / "ledger.sqlite3")
    admission = Admission(DevelopmentPolicy(), Away())
    async with Node.open(
        world.settings, world.driver, admission, ledger, receipts(world.settings), Telemetry()
    ) as node:
        answer = await node.run_job(request, "body")
    await ledger.close()
    assert (answer.response.status, answer.response.exit_code) == ("failed", 125)
    assert "connection was refused" in answer.response.stderr
