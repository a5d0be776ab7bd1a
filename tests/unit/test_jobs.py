"""Verified jobs: what counts, what is caught, and what is said where nothing can be decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fumehood.broker.handout import Leased
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control.callers import Caller, Scope
from fumehood.control.jobs.jobs import Submission
from fumehood.control.service import Service
from fumehood.errors import ConflictError, InvalidRequestError, NoKeyListError, NotFoundError
from fumehood.verify import receipt
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, published
from fumehood.wire.job_api import JobStatus, SubmitJobRequest, VerdictOutcome
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sealed import job_task
from tests.jobs_world import ECHO, Echo, JobsWorld, Judge, failing


@pytest.fixture
async def world() -> AsyncIterator[JobsWorld]:
    made = JobsWorld()
    async with made.working():
        yield made


async def three(world: JobsWorld, *handlers: Echo) -> list[Echo]:
    given = [*handlers, Echo(), Echo(), Echo()][:3]
    for number, handler in enumerate(given):
        await world.provider(f"p{number}", handler)
    return given


def rejected(view: Any) -> dict[str, str]:
    return {one.worker: one.rejected for one in view.verdict.candidates if one.rejected is not None}


# --- what is decided -----------------------------------------------------------------------------------------


async def test_a_single_job_is_answered_with_a_receipt_that_binds_it(world: JobsWorld) -> None:
    await three(world)
    view = await world.done("hello")
    assert (view.status, view.verdict and view.verdict.outcome) == (JobStatus.SUCCEEDED, VerdictOutcome.SINGLE)
    assert view.result is not None
    assert view.result["text"] == "hello"
    keys = await world.service.receipt_keys.current()
    assert keys is not None
    (envelope,) = view.receipts
    statement = receipt.check(envelope, keys)
    assert statement.predicate.task["run_id"] == view.job_id
    assert statement.predicate.request.sha256 == view.request_sha256 == view.result["provenance"]["input_sha256"]


async def test_three_agree_though_each_took_its_own_time(world: JobsWorld) -> None:
    """Durations are no part of what is compared; and no worker has two of the executions."""
    handlers = await three(world)
    view = await world.done("x", 3, "majority_vote")
    assert view.verdict is not None
    assert (view.verdict.outcome, view.verdict.agreed) == (VerdictOutcome.MAJORITY, 3)
    assert {one.worker for one in view.verdict.candidates} == {"p0", "p1", "p2"}
    assert [one.done for one in handlers] == [1, 1, 1]
    assert len(view.receipts) == 3


@pytest.mark.parametrize("liar", [Echo(lambda text: text + "!"), Echo(exit_code=1)], ids=["stdout", "exit code"])
async def test_a_worker_that_lies_is_outvoted_and_remembered(world: JobsWorld, liar: Echo) -> None:
    await three(world, liar)
    view = await world.done("x", 3, "majority_vote")
    assert view.verdict is not None
    assert view.result is not None
    assert (view.verdict.outcome, view.verdict.agreed) == (VerdictOutcome.MAJORITY, 2)
    assert (view.result["text"], view.result["exit_code"]) == ("x", 0)
    counts = {one.worker: one.counts for one in await world.service.providers.all()}
    assert counts == {"p0": {"disagreed": 1}, "p1": {"agreed": 1}, "p2": {"agreed": 1}}


async def test_alone_a_liar_is_bound_to_what_it_claims(world: JobsWorld) -> None:
    await world.provider("p0", Echo(lambda _: "lie"))
    view = await world.done("truth")
    assert view.status is JobStatus.SUCCEEDED
    assert view.verdict is not None
    (one,) = view.verdict.candidates
    assert one.receipt is not None
    statement = receipt.check(one.receipt, await _keys(world))
    assert statement.predicate.worker.id == "p0"
    assert statement.digest_of("declared") == one.declared_sha256


async def test_disagreement_is_a_result_with_all_that_was_said(world: JobsWorld) -> None:
    await three(world, Echo(lambda _: "a"), Echo(lambda _: "b"), Echo(lambda _: "c"))
    view = await world.done("x", 3, "majority_vote")
    assert view.status is JobStatus.DISPUTED
    assert view.result is None
    assert view.verdict is not None
    assert view.verdict.outcome is VerdictOutcome.NO_MAJORITY
    assert sorted(one.response["text"] for one in view.verdict.candidates if one.response) == ["a", "b", "c"]
    assert {tuple(one.counts) for one in await world.service.providers.all()} == {("disputed",)}


async def test_half_is_no_majority(world: JobsWorld) -> None:
    await three(world, Echo(lambda _: "a"), Echo(lambda _: "b"), Echo(lambda _: "c"))
    assert (await world.done("x", 2, "majority_vote")).status is JobStatus.DISPUTED


async def test_a_judge_sees_answers_without_names_and_decides(world: JobsWorld) -> None:
    await three(world, Echo(lambda _: "short"), Echo(lambda _: "much longer"), Echo(lambda _: "mid"))
    judge = Judge()
    await world.provider("judge", judge=judge)
    view = await world.done("x", 3, "judge_model")
    assert view.verdict is not None
    assert view.result is not None
    assert view.verdict.judge is not None
    assert (view.verdict.outcome, view.result["text"]) == (VerdictOutcome.JUDGED, "much longer")
    (asked,) = judge.asked
    assert all("provenance" not in one for one in asked.candidates)
    assert not any(name in str(asked.candidates) for name in ("p0", "p1", "p2"))
    assert view.verdict.judge.order[view.verdict.judge.index] == view.verdict.chosen
    assert len(view.receipts) == 4


async def test_what_is_merged_has_all_of_it(world: JobsWorld) -> None:
    await three(world, Echo(lambda _: "b"), Echo(lambda _: "a"), Echo(lambda _: "c"))
    view = await world.done("x", 3, "merge")
    assert view.verdict is not None
    assert view.result is not None
    assert (view.verdict.outcome, view.result["text"]) == (VerdictOutcome.MERGED, "a+b+c")


# --- what is refused -----------------------------------------------------------------------------------------


async def test_an_old_answer_again_does_not_count(world: JobsWorld) -> None:
    """A provider that keeps what it once signed, and says it again for another job of the same request."""
    await three(world)
    old = await world.done("x")
    replayed = {"response": old.result, "receipt": old.receipts[0]}
    name = str(old.verdict.candidates[0].worker) if old.verdict else ""
    fresh = JobsWorld()
    fresh.keys, fresh.listed = world.keys, world.listed
    async with fresh.working():
        await fresh.forger(name, lambda _: replayed)
        others = [one for one in ("p0", "p1", "p2") if one != name]
        for other in others:
            await fresh.provider(other)
        view = await fresh.done("x", 3, "majority_vote")
        assert rejected(view) == {name: "task_mismatch"}
        assert view.verdict is not None
        assert (view.verdict.outcome, view.verdict.agreed) == (VerdictOutcome.MAJORITY, 2)
        counts = {one.worker: one.counts for one in await fresh.service.providers.all()}
        assert counts[name] == {"rejected": 1}


async def test_an_answer_that_was_changed_after_it_was_signed_does_not_count(world: JobsWorld) -> None:
    await world.provider("p0")
    signed: list[dict[str, Any]] = []

    def tampered(leased: Leased) -> Any:
        return {"response": {**signed[0]["response"], "text": "other"}, "receipt": signed[0]["receipt"]}

    first = await world.done("x")
    signed.append({"response": first.result, "receipt": first.receipts[0]})
    other = JobsWorld(wait_seconds=1)
    other.keys, other.listed = world.keys, world.listed
    async with other.working():
        await other.forger("p0", tampered)
        view = await other.done("x")
        assert view.status is JobStatus.FAILED
        assert view.error is not None
        assert view.error.code == "no_valid_answer"


@pytest.mark.parametrize("said", [None, "done", {"response": {}}, {"response": {}, "receipt": {}}, []])
async def test_what_is_no_answer_does_not_count(world: JobsWorld, said: Any) -> None:
    await world.enroll("p0")
    await world.forger("p0", lambda _: said)
    view = await world.done("x")
    assert (view.status, view.error and view.error.code) == (JobStatus.FAILED, "no_valid_answer")


async def test_a_key_that_is_not_listed_does_not_count(world: JobsWorld) -> None:
    await world.provider("p0", key=SigningKey.generate())
    view = await world.done("x")
    assert rejected(view) == {"p0": "unknown_key"}
    assert view.status is JobStatus.FAILED


async def test_a_key_that_was_revoked_does_not_count_and_the_reason_is_told(world: JobsWorld) -> None:
    await three(world)
    await world.revoke("p1")
    view = await world.done("x", 3, "majority_vote")
    assert rejected(view) == {"p1": "revoked_key"}
    assert view.verdict is not None
    (one,) = [one for one in view.verdict.candidates if one.rejected]
    assert one.error is not None
    assert "stolen" in one.error.message
    assert view.verdict.agreed == 2


async def test_another_workers_key_does_not_count(world: JobsWorld) -> None:
    mine = await world.enroll("p1")
    await world.enroll("p0")
    await world.provider("p0", key=mine)
    assert rejected(await world.done("x")) == {"p0": "wrong_worker"}


async def test_who_was_set_aside_does_not_count_until_it_is_taken_back(world: JobsWorld) -> None:
    await three(world)
    admin = Caller("default", "op", frozenset({Scope.ALL}))
    await world.done("x", 3, "majority_vote")
    await world.service.providers.set_aside("p2", "keeps disagreeing", admin)
    view = await world.done("y", 3, "majority_vote")
    assert rejected(view) == {"p2": "set_aside"}
    await world.service.providers.restore("p2")
    assert rejected(await world.done("z", 3, "majority_vote")) == {}


async def test_who_was_set_aside_is_not_waited_for(world: JobsWorld) -> None:
    """Where enough providers are there, they may be busy; who takes nothing is not there."""
    workers = MemoryBroker(world.server).bucket(Bucket.WORKERS)
    for number in range(3):
        entry = WorkerRegistration(worker_id=f"p{number}", task_types=[job_task(ECHO), "other"])
        await workers.put(entry.worker_id, entry.model_dump_json().encode())
    providers = world.service.providers
    assert (await providers.serving(ECHO), await providers.serving("oa.other.v1")) == (3, 0)
    await providers.set_aside("p1", "lies", Caller("default", "op", frozenset({Scope.ALL})))
    assert await providers.serving(ECHO) == 2


# --- what cannot be done ---------------------------------------------------------------------------------------


async def test_too_few_workers_is_said_after_a_while_and_nothing_is_decided_by_fewer() -> None:
    world = JobsWorld(wait_seconds=1)
    async with world.working():
        await world.provider("p0")
        await world.provider("p1")
        view = await world.done("x", 3, "majority_vote")
    assert (view.status, view.error and view.error.code) == (JobStatus.FAILED, "too_few_workers")
    assert view.result is None
    assert view.verdict is not None
    assert sum(one.accepted for one in view.verdict.candidates) == 2


async def test_an_execution_that_fails_for_good_is_an_error_and_one_that_may_go_better_is_tried_again(
    world: JobsWorld,
) -> None:
    tries: list[str] = []

    def twice(text: str) -> str:
        tries.append(text)
        return failing("busy", again=True)(text) if len(tries) < 3 else text  # type: ignore[return-value]

    await world.provider("p0", Echo(twice))
    assert (await world.done("x")).status is JobStatus.SUCCEEDED
    assert len(tries) == 3
    other = JobsWorld()
    async with other.working():
        await other.provider("p0", Echo(failing("cannot", again=False)))
        view = await other.done("x")
    assert view.error is not None
    assert view.verdict is not None
    assert view.error.code == "too_few_answers"
    (one,) = view.verdict.candidates
    assert one.error is not None
    assert one.error.code == "cannot"


async def test_without_a_judge_there_is_no_verdict() -> None:
    world = JobsWorld(wait_seconds=1)
    async with world.working():
        await world.provider("p0")
        await world.provider("p1")
        view = await world.done("x", 2, "judge_model")
    assert (view.status, view.error and view.error.code) == (JobStatus.FAILED, "judge_failed")


async def test_without_a_list_of_keys_no_job_is_taken() -> None:
    world = JobsWorld()
    with pytest.raises(NoKeyListError, match="receipts init"):
        await world.submit("x")


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"mode": "subjective", "redundancy": 2, "adjudication": "none"}, "several subjective answers need"),
        ({"mode": "objective", "redundancy": 10, "adjudication": "none"}, "redundancy"),
        ({"mode": "objective", "redundancy": 0, "adjudication": "none"}, "redundancy"),
        ({"mode": "objective", "redundancy": 1, "adjudication": "dice"}, "adjudication"),
    ],
)
async def test_what_nobody_could_decide_is_not_begun(world: JobsWorld, wanted: Any, sentence: str) -> None:
    asked = SubmitJobRequest(job_type=ECHO, payload={"text": "x", "verification": wanted})
    with pytest.raises(InvalidRequestError, match=sentence):
        await world.service.jobs.submit(Submission(asked), Caller("default", "a", frozenset()))


async def test_an_unknown_type_and_a_wrong_payload_are_named(world: JobsWorld) -> None:
    caller = Caller("default", "a", frozenset())
    with pytest.raises(NotFoundError, match=ECHO):
        await world.service.jobs.submit(Submission(SubmitJobRequest(job_type="oa.x_y.v1", payload={})), caller)
    with pytest.raises(InvalidRequestError, match="text"):
        await world.service.jobs.submit(Submission(SubmitJobRequest(job_type=ECHO, payload={})), caller)


# --- one job, seen by its own ------------------------------------------------------------------------------------


async def test_the_same_key_is_the_same_job_and_another_body_a_conflict(world: JobsWorld) -> None:
    first = await world.submit("x", key="k")
    assert await world.submit("x", key="k") == first
    with pytest.raises(ConflictError):
        await world.submit("y", key="k")
    assert await world.submit("x") != first


async def test_a_bundle_is_for_whoever_brought_it() -> None:
    """Whoever only knows its hash names nothing."""
    server = MemoryServer()
    service = Service(MemoryBroker(server))
    root = SigningKey.generate()
    await service.receipt_keys.publish(published(KeyList(version=1, issued_at=receipt.now()), root))

    async def body() -> AsyncIterator[bytes]:
        yield b"a repository"

    mine, theirs = (Caller(tenant, "a", frozenset({Scope.ALL})) for tenant in ("acme", "globex"))
    source = (await service.bundles.take(mine.tenant, body())).source
    payload = {
        "sandbox": {"image_digest": "sha256:" + "a" * 64},
        "repo": {"source": source},
        "commands": [{"cmd": "ls"}],
    }
    asked = Submission(SubmitJobRequest(job_type="oa.sandbox_run.v1", payload=payload))
    with pytest.raises(InvalidRequestError, match="bundle"):
        await service.jobs.submit(asked, theirs)
    await service.jobs.submit(asked, mine)


async def test_a_job_is_its_tenants_alone(world: JobsWorld) -> None:
    job_id = await world.submit("x")
    caller = Caller("other", "b", frozenset({Scope.ALL}))
    with pytest.raises(NotFoundError):
        await world.service.jobs.get(job_id, caller)
    with pytest.raises(NotFoundError):
        await world.service.jobs.cancel(job_id, caller)


async def test_a_job_that_is_cancelled_ends_and_its_handler_is_stopped(world: JobsWorld) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def long(text: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return text

    await world.provider("p0", Echo(long))
    job_id = await world.submit("x")
    async with asyncio.timeout(60):
        await begun.wait()
        assert await world.service.jobs.cancel(job_id, Caller("default", "a", frozenset()))
        await ended.wait()
    assert (await world.ended(job_id)).status is JobStatus.CANCELLED


async def _keys(world: JobsWorld) -> Any:
    return await world.service.receipt_keys.current()
