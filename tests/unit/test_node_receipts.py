"""Receipts of a node: what each end claims, that they hold against a list of keys, and that none is made twice."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fumehood.broker.handout import Handouts, Leased
from fumehood.control.callers import ADMIN
from fumehood.control.run_receipts import BY_HAND, NODE_LOST, NOT_ENDED, RunReceipts
from fumehood.control.runs import Runs
from fumehood.control.workflows import Workflows
from fumehood.engine.state import RunStatus
from fumehood.errors import ConflictError, NotFoundError, UnverifiedError
from fumehood.node import hold
from fumehood.node import receipts as receipts_of_nodes
from fumehood.node.receipts import Receipts, Said
from fumehood.node.signing import ReceiptKeys, rotate
from fumehood.sandbox.fake import FakeEngine
from fumehood.settings import NodeSettings
from fumehood.verify.keylist import KeyList
from fumehood.verify.receipt import Asked, Image, Kind, Outcome, Statement, check, look
from fumehood.wire.canonical import json_sha256
from fumehood.wire.receipts import LARGEST_RECEIPT, decoded, encoded
from fumehood.wire.sandbox import SandboxTask
from fumehood.wire.worker_api import RunJobRequest
from tests import receipt_check
from tests.receipt_check import sha256
from tests.unit.test_node import IMAGE, Driver, World, job
from tests.unit.test_node_tasks import TaskWorld, now_ms, output
from tests.waiting import until

DIGEST = IMAGE.partition("@")[2]
NOON = dt.datetime(2026, 2, 16, 12, tzinfo=dt.UTC)


def key_list(folder: Path) -> KeyList:
    return receipt_check.key_list(folder, "node-1")


@pytest.fixture
def tasks(tmp_path: Path) -> TaskWorld:
    return TaskWorld(tmp_path)


@pytest.fixture
def world(tmp_path: Path) -> World:
    engine = FakeEngine()
    return World(NodeSettings(state_dir=tmp_path, slots=2, queue=0), engine, Driver(engine))


# --- tasks of the queue ------------------------------------------------------------------------------------


async def _report(world: TaskWorld, *command: str, **sandbox: Any) -> tuple[str, dict[str, Any]]:
    async with world.deciding(), world.node():
        run_id = await world.start(*command, **sandbox)
        state = await world.ended(run_id)
    failure = state.steps["run"].failure
    if failure is None:
        return run_id, output(state)
    assert failure.details is not None
    return run_id, dict(failure.details)


async def _claimed(world: TaskWorld, *command: str, **sandbox: Any) -> Statement:
    _, said = await _report(world, *command, **sandbox)
    return check(said["receipt"], key_list(world.settings.state_dir))


async def test_a_receipt_binds_the_request_the_image_and_the_output(tasks: TaskWorld) -> None:
    run_id, said = await _report(tasks, "both", "out", "err", env={"A": "b"})
    found = check(said["receipt"], key_list(tasks.settings.state_dir))
    assert {one.name: one.digest.sha256 for one in found.subject} == {
        "stdout": sha256(b"out"),
        "stderr": sha256(b"err"),
        "stdout.returned": sha256(b"out"),
        "stderr.returned": sha256(b"err"),
    }
    claim = found.predicate
    request = SandboxTask(image=IMAGE, command=("both", "out", "err"), env={"A": "b"})
    assert claim.request.sha256 == json_sha256(request.model_dump(mode="json", exclude_defaults=True))
    assert claim.request.type == "fumehood.sandbox"
    lease = claim.task["lease_id"]
    assert claim.task == {
        "run_id": run_id,
        "step_id": "run",
        "attempt": 1,
        "iteration": 0,
        "resumption": 0,
        "lease_id": lease,
    }
    assert isinstance(lease, str)
    assert (claim.worker.id, claim.kind) == ("node-1", Kind.SANDBOX_RUN)
    assert claim.image is not None
    assert (claim.image.digest, claim.image.evidence["policy"]) == (DIGEST, "development")
    assert claim.image.evidence == said["evidence"]["admission"]
    assert claim.observed["isolation"]["network"] == "none"
    limits = claim.observed["limits"]
    assert (limits["memory_bytes"], limits["timeout_ms"]) == (512 * 1024 * 1024, 300_000)
    assert claim.observed["streams"] == {"stdout": {"total_bytes": 3}, "stderr": {"total_bytes": 3}}
    assert (claim.outcome.status, claim.outcome.reason, claim.outcome.exit_code) == ("succeeded", "exit", 0)
    assert claim.started_at is not None
    assert claim.started_at <= claim.finished_at
    assert claim.software.startswith("fumehood ")


async def test_the_hash_of_a_stream_is_of_all_of_it_and_that_of_the_answer_of_what_is_in_it(tasks: TaskWorld) -> None:
    _, said = await _report(tasks, "flood", "300000")
    found = look(said["receipt"])
    printed = said["streams"]["stdout"]["total_bytes"]
    assert printed > len(said["stdout"]) == 64 * 1024
    assert found.digest_of("stdout") == sha256(b"x" * printed)
    assert found.digest_of("stdout.returned") == sha256(said["stdout"].encode())


ENDS: list[tuple[tuple[str, ...], dict[str, Any], tuple[str, str | None, int | None, int | None]]] = [
    (("exit", "3"), {}, ("failed", "exit", 3, None)),
    (("exit", "3"), {"must_succeed": True}, ("failed", "exit", 3, None)),
    (("hog",), {}, ("failed", "oom", 137, None)),
    (("raise", "15"), {}, ("failed", "signal", 143, 15)),
    (("sleep", "30"), {"timeout": "100ms"}, ("timed_out", "timeout", None, None)),
    (("no-such-program",), {}, ("failed", "image_error", 127, None)),
]


@pytest.mark.parametrize(("command", "sandbox", "expected"), ENDS)
async def test_every_end_has_its_receipt(
    tasks: TaskWorld, command: tuple[str, ...], sandbox: dict[str, Any], expected: tuple[object, ...]
) -> None:
    found = await _claimed(tasks, *command, **sandbox)
    outcome = found.predicate.outcome
    assert (outcome.status, outcome.reason, outcome.exit_code, outcome.signal) == expected
    assert found.predicate.image is not None
    assert found.digest_of("stdout.returned") is not None


async def test_a_denial_has_a_receipt_with_the_decision_and_no_image(tasks: TaskWorld) -> None:
    found = await _claimed(tasks, "echo", image="registry.example/x@sha256:" + "0" * 64)
    claim = found.predicate
    assert claim.image is None
    assert claim.observed["admission"]["denial_reason"] == "registry_not_allowed"
    assert claim.observed["never_ran"] is True
    assert claim.started_at is None
    assert found.digest_of("stdout") is None, "nobody printed anything"


async def test_what_the_policy_forbids_has_a_receipt_with_the_reason(tasks: TaskWorld) -> None:
    claim = (await _claimed(tasks, "echo", network="full")).predicate
    assert (claim.outcome.reason, claim.observed["denied"]) == ("policy_denied", "network_not_allowed")


async def test_a_node_that_went_between_end_and_answer_gives_the_very_same_receipt(
    tasks: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored with the end, before anybody was told: also where the key is another one by now."""
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(hold, "TOLERANCE_SECONDS", 5)
    async with tasks.deciding():
        async with tasks.node() as node:
            run_id = await tasks.start("sleep", "0.15")
            await until(tasks.is_running)
            tasks.line.cut = True
            await until(lambda: not tasks.engine.boxes)
            record = await node._ledger.get(f"{run_id}.run.1.0.0")
        assert record is not None
        assert record.response_json is not None
        listed = key_list(tasks.settings.state_dir)
        rotate(tasks.settings.state_dir)
        tasks.line.cut = False
        async with tasks.node():
            state = await tasks.ended(run_id)
    assert output(state)["receipt"] == json.loads(record.response_json)["receipt"]
    assert check(output(state)["receipt"], listed).predicate.outcome.exit_code == 0


async def test_a_stopped_run_has_its_receipt_where_its_output_ends(
    tasks: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the report of a run that was cancelled: its log has what the node signed."""
    monkeypatch.setattr(hold, "RENEW_SECONDS", 0.05)
    receipts = server_side(tasks)
    async with tasks.deciding(), tasks.node():
        run_id = await tasks.start("sleep", "60")
        await until(tasks.is_running)
        with pytest.raises(NotFoundError, match=NOT_ENDED):
            await receipts.of_step(run_id, "run", ADMIN)
        await tasks.cancel(run_id)
        assert (await tasks.ended(run_id)).status is RunStatus.CANCELLED
        await tasks.empty()
    found = check(await receipts.of_step(run_id, "run", ADMIN), key_list(tasks.settings.state_dir))
    assert (found.predicate.outcome.status, found.predicate.task["run_id"]) == ("stopped", run_id)
    assert found.digest_of("stdout") == sha256(b"begun\n")


# --- at the server -----------------------------------------------------------------------------------------


def server_side(world: TaskWorld) -> RunReceipts:
    workflows = Workflows(world.broker, now_ms=now_ms)
    return RunReceipts(world.broker, Runs(world.broker, workflows, now_ms=now_ms))


async def test_a_server_gives_what_the_node_signed(tasks: TaskWorld) -> None:
    run_id, said = await _report(tasks, "echo", "hi")
    failed, why = await _report(tasks, "exit", "2", must_succeed=True)
    receipts = server_side(tasks)
    assert await receipts.of_step(run_id, "run", ADMIN) == said["receipt"]
    assert await receipts.of_step(failed, "run", ADMIN) == why["receipt"]
    with pytest.raises(NotFoundError, match="no such step"):
        await receipts.of_step(run_id, "walk", ADMIN)


async def test_where_nobody_signed_the_reason_is_told(tasks: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tasks.deciding():
        run_id = await tasks.start("echo", "hi")
        (leased,) = await take(tasks)
        await Handouts(tasks.broker).fail(leased.lease, {"code": "node_lost", "message": "gone", "retryable": False})
        await tasks.ended(run_id)
    with pytest.raises(NotFoundError, match=NODE_LOST):
        await server_side(tasks).of_step(run_id, "run", ADMIN)


async def take(world: TaskWorld) -> list[Leased]:
    handouts = Handouts(world.broker)
    for _ in range(100):
        taken = await handouts.take(
            ["fumehood.sandbox"], max_tasks=1, timeout=0.1, worker_id="node-1", lease_seconds=60
        )
        if taken:
            return list(taken)
    raise AssertionError("no task came")


async def test_an_older_node_gave_none(tasks: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receipts, "issue", lambda *_: None)
    run_id, said = await _report(tasks, "echo", "hi")
    assert said["receipt"] is None
    with pytest.raises(NotFoundError, match="gave no receipt"):
        await server_side(tasks).of_step(run_id, "run", ADMIN)


def test_the_words_for_people_say_nothing_of_the_host() -> None:
    assert "/" not in NOT_ENDED + NODE_LOST + BY_HAND


# --- jobs of the Worker API --------------------------------------------------------------------------------


def canonical(request: RunJobRequest) -> str:
    return json_sha256(request.model_dump(mode="json", exclude_defaults=True))


async def test_a_jobs_receipt_is_kept_with_its_answer(world: World) -> None:
    request = job("both", "out", "err")
    async with world.node() as node:
        answer = await node.run_job(request, "body")
        signed = await node.receipt(str(request.job_id))
    rotate(world.settings.state_dir)
    async with world.node() as node:  # another life, and another key
        again = await node.run_job(request, "body")
        assert await node.receipt(str(request.job_id)) == signed
    read = decoded(signed)
    assert read is not None
    found = look(read)
    assert answer.receipt_key == again.receipt_key == read["signatures"][0]["keyid"]
    claim = found.predicate
    assert claim.task == {"job_id": str(request.job_id), "task_id": str(request.task_id)}
    assert (claim.request.sha256, claim.request.type) == (canonical(request), "/v1/worker/jobs:run")
    assert found.digest_of("stdout") == found.digest_of("stdout.returned") == sha256(b"out")
    assert (claim.outcome.status, claim.outcome.exit_code) == ("completed", 0)


async def test_a_job_without_an_end_has_no_receipt_yet(world: World) -> None:
    request = job("sleep", "60")
    async with world.node() as node:
        running = asyncio.create_task(node.run_job(request, "body"))
        await until(lambda: bool(world.engine.boxes))
        with pytest.raises(NotFoundError, match="has not ended"):
            await node.receipt(str(request.job_id))
        with pytest.raises(NotFoundError, match="no such job"):
            await node.receipt("00000000-0000-0000-0000-000000000000")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_sandbox_that_was_lost_is_signed_as_lost(world: World) -> None:
    request = job("sleep", "60")
    async with world.node() as node:
        running = asyncio.create_task(node.run_job(request, "body"))
        await until(lambda: any(box.jobs for box in world.engine.boxes.values()))
        world.engine.boxes.clear()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    async with world.node() as node:
        await node.run_job(request, "body")
        claim = look(json.loads(await node.receipt(str(request.job_id)))).predicate
    assert (claim.outcome.status, claim.outcome.reason) == ("failed", "node_lost")
    assert claim.started_at is None


# --- issuing -----------------------------------------------------------------------------------------------


def said(**changes: Any) -> Said:
    fields: dict[str, Any] = {
        "kind": Kind.SANDBOX_RUN,
        "task": {"job_id": "j", "lease_id": None},
        "request": Asked(sha256="0" * 64),
        "outcome": Outcome(status="completed"),
        "finished_at": dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1),
        "subjects": {"stdout": "1" * 64, "stderr": None},
        "image": Image(digest="sha256:" + "0" * 64, reference="x", evidence={"policy": "p"}),
        "observed": {"isolation": {"runtime": "runsc"}},
    }
    return Said(**fields | changes)


def test_what_is_not_known_is_not_claimed(tmp_path: Path) -> None:
    found = look(Receipts(ReceiptKeys.load(tmp_path), "node-1").issue(said))
    assert [one.name for one in found.subject] == ["stdout"]
    assert found.predicate.task == {"job_id": "j"}


def test_a_receipt_has_a_bound_whatever_the_evidence(tmp_path: Path) -> None:
    much = {"denials": ["x" * 300] * 1000}
    receipt = Receipts(ReceiptKeys.load(tmp_path), "node-1").issue(lambda: said(observed=much))
    assert receipt is not None
    assert len(encoded(receipt)) < LARGEST_RECEIPT
    found = check(receipt, key_list(tmp_path))
    assert found.predicate.observed == {"sha256": json_sha256(much)}
    assert found.predicate.image is not None
    assert found.predicate.image.evidence == {"sha256": json_sha256({"policy": "p"})}
    assert found.digest_of("stdout") == "1" * 64


def test_a_key_claims_nothing_from_before_it_was(tmp_path: Path) -> None:
    """An end that an earlier life left, and that is signed after a rotation, counts all the same."""
    receipt = Receipts(ReceiptKeys.load(tmp_path), "node-1").issue(lambda: said(finished_at=NOON))
    found = check(receipt, key_list(tmp_path)).predicate
    assert found.finished_at == ReceiptKeys.load(tmp_path).since
    assert found.observed["ended_at"] == "2026-02-16T12:00:00.000Z"


def test_a_receipt_in_anothers_name_does_not_count(tmp_path: Path) -> None:
    receipt = Receipts(ReceiptKeys.load(tmp_path), "node-2").issue(said)
    with pytest.raises(UnverifiedError, match="another's name"):
        check(receipt, key_list(tmp_path))


@pytest.mark.parametrize("error", [ConflictError("no"), ZeroDivisionError()])
def test_a_receipt_that_cannot_be_made_costs_no_result(tmp_path: Path, error: Exception) -> None:
    def broken() -> Said:
        raise error

    with capture_logs() as logs:
        assert Receipts(ReceiptKeys.load(tmp_path), "node-1").issue(broken) is None
    assert [line["event"] for line in logs] == ["receipt.not_made"]


def test_the_largest_receipt_of_a_worker_is_one_that_others_take() -> None:
    assert receipts_of_nodes.LARGEST + 1024 < LARGEST_RECEIPT


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"nonsense", b"{" * 100_000, b" " * (LARGEST_RECEIPT + 1)])
def test_what_has_not_the_form_of_a_receipt_is_none(data: bytes) -> None:
    assert decoded(data) is None


def test_a_receipt_is_the_same_bytes_after_it_was_read(tmp_path: Path) -> None:
    data = encoded(Receipts(ReceiptKeys.load(tmp_path), "node-1").issue(said))
    assert encoded(decoded(data)) == data
