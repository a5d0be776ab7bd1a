"""Jobs among enemies: providers that break the reader, operators that decide by hand, and what must come out all the
same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from fumehood.broker.distinct import take_place
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control.callers import ADMIN, Caller, Scope
from fumehood.control.jobs.answers import Checker
from fumehood.control.jobs.definition import VERDICT, execution
from fumehood.engine.state import RunState
from fumehood.errors import ConflictError, FumehoodError, NotFoundError
from fumehood.jobs.base import JobRequest
from fumehood.jobs.registry import Registry
from fumehood.verify import receipt
from fumehood.verify.dsse import SigningKey
from fumehood.wire.canonical import json_sha256
from fumehood.wire.job_api import JobStatus, VerdictOutcome
from fumehood.wire.jobs import JobTask
from fumehood.wire.protocol import EventType, TaskPayload
from fumehood.wire.sealed import job_task
from tests.jobs_world import ECHO, REGISTRY, Echo, JobsWorld, Judge, now_ms
from tests.waiting import until

OPERATOR = Caller("default", "op", frozenset({Scope.ALL}))


@pytest.fixture
async def world() -> AsyncIterator[JobsWorld]:
    made = JobsWorld()
    async with made.working():
        yield made


def signed(leased: Leased, name: str, key: SigningKey, said: dict[str, Any], /, **hashes: str) -> dict[str, Any]:
    """An answer with a receipt that holds, whatever the response is."""
    task = leased.task
    claim = receipt.Claim(
        kind=receipt.Kind.JOB,
        worker=receipt.Worker(id=name, key_id=key.key_id),
        task={
            "run_id": task.run_id,
            "step_id": task.step_id,
            "attempt": task.attempt,
            "iteration": task.iteration,
        },
        request=receipt.Asked(sha256=task.input["request_sha256"], type=task.input["job_type"]),
        outcome=receipt.Outcome(status="answered"),
        finished_at=receipt.now(),
    )
    subjects = {"response": "0" * 64, "outputs": "0" * 64, "declared": "0" * 64} | hashes
    return {"response": said, "receipt": receipt.issue(claim, subjects, key)}


def honest(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "exit_code": 0, "took_ms": 1, "provenance": {"model_id": "e"}, **more}


def bound(response: dict[str, Any]) -> dict[str, str]:
    outputs = {name: value for name, value in response.items() if name != "provenance"}
    declared = {"text": response["text"], "exit_code": response["exit_code"]}
    return {
        "response": json_sha256(response),
        "outputs": json_sha256(outputs),
        "declared": json_sha256(declared),
    }


def rejected(view: Any) -> dict[str, str]:
    return {one.worker: one.rejected for one in view.verdict.candidates if one.rejected is not None}


async def majority_beside(world: JobsWorld, hostile: Callable[[Leased, SigningKey], Any]) -> Any:
    """A vote of three where one says what it likes."""
    key = await world.enroll("evil")
    await world.forger("evil", lambda leased: hostile(leased, key))
    await world.provider("p1")
    await world.provider("p2")
    view = await world.ended(await world.submit("x", 3, "majority_vote"), seconds=8)
    assert view.verdict is not None
    assert (view.verdict.outcome, view.verdict.agreed) == (VerdictOutcome.MAJORITY, 2)
    assert view.result is not None
    assert view.result["text"] == "x"
    return view


# --- one answer never keeps the others from being counted ------------------------------------------------------


@pytest.mark.parametrize("value", [2**60, -(2**70), {"a": 2**53}])
async def test_a_number_without_canonical_form_is_that_answers_fault_alone(world: JobsWorld, value: Any) -> None:
    view = await majority_beside(world, lambda leased, key: signed(leased, "evil", key, honest("x", junk=value)))
    assert rejected(view) == {"evil": "not_an_answer"}


async def test_a_reference_to_nothing_is_that_answers_fault_alone(world: JobsWorld) -> None:
    nothing = {"$blob": "sha256:" + "0" * 64, "size": 10}
    view = await majority_beside(world, lambda leased, key: nothing)
    assert rejected(view) == {"evil": "not_an_answer"}


@pytest.mark.parametrize(
    "content",
    [
        b"no json",
        b'{"response":{"text":NaN},"receipt":{}}',
        b'{"response":{"text":"\\ud800"},"receipt":{}}',
        b'{"response":{"\\u0024blob":"x"},"receipt":{}}',
        b'{"response":{"a":' + b"[" * 300 + b"]" * 300 + b'},"receipt":{}}',
        b"[" * 5000 + b"]" * 5000,
    ],
    ids=["text", "nan", "surrogate", "reference", "deep", "deeper"],
)
async def test_a_reference_to_rubbish_is_that_answers_fault_alone(world: JobsWorld, content: bytes) -> None:
    ref = await MemoryBroker(world.server).blobs().put(content)
    view = await majority_beside(world, lambda leased, key: {"$blob": ref, "size": len(content)})
    assert rejected(view) == {"evil": "not_an_answer"}
    assert view.model_dump_json(), "and it can be said"


async def test_an_answer_beyond_all_bounds_is_that_answers_fault_alone(world: JobsWorld) -> None:
    view = await majority_beside(world, lambda leased, key: signed(leased, "evil", key, honest("x" * 12_000_000)))
    assert rejected(view) == {"evil": "not_an_answer"}


# --- who is who ------------------------------------------------------------------------------------------------


class Unruly(Handouts):
    """A hand-out of its own making: it keeps to no rule of places, and says what name it likes."""

    def __init__(self, world: JobsWorld, name: str) -> None:
        super().__init__(MemoryBroker(world.server))
        self._as = name

    async def _has_place(self, delivery: Any, task: Any, taker: Any) -> bool:
        return True

    async def _say(self, lease: Lease, kind: EventType, payload: Any, **more: Any) -> None:
        await super()._say(replace(lease, worker_id=self._as), kind, payload, **more)

    async def forever(self, kind: str, answer: Callable[[Leased], Any]) -> None:
        while True:
            for leased in await self.take([job_task(kind)], max_tasks=1, timeout=1, worker_id="x", lease_seconds=15):
                await self.complete(leased.lease, answer(leased))


@contextlib.asynccontextmanager
async def unruly(world: JobsWorld, name: str, kind: str, answer: Callable[[Leased], Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(Unruly(world, name).forever(kind, answer))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_name_that_nobody_may_have_keeps_no_verdict_back(world: JobsWorld) -> None:
    async with unruly(world, "a.b:c@d", ECHO, lambda _: None):
        view = await world.ended(await world.submit("x"), seconds=8)
    assert (view.status, view.error and view.error.code) == (JobStatus.FAILED, "no_valid_answer")
    assert await world.service.providers.all() == [], "nor is it remembered: the store is not for names made up"


async def test_one_who_takes_all_counts_for_nothing(world: JobsWorld) -> None:
    key = await world.enroll("evil")
    async with unruly(world, "evil", ECHO, lambda leased: _honest(leased, "evil", key, "mine")):
        view = await world.ended(await world.submit("x", 3, "majority_vote"), seconds=8)
    assert (view.status, view.result) == (JobStatus.FAILED, None)
    assert view.verdict is not None
    assert {one.rejected for one in view.verdict.candidates} == {"not_distinct"}


async def test_nobody_is_blamed_for_what_others_say_in_its_name(world: JobsWorld) -> None:
    await world.enroll("innocent")
    await world.forger("innocent", lambda _: {"response": {}, "receipt": {}})
    await world.done("x")
    counts = {one.worker: one.counts for one in await world.service.providers.all()}
    assert not counts.get("innocent", {}).get("rejected")


async def test_who_answered_does_not_judge(world: JobsWorld) -> None:
    """A provider that does not go through our hand-out takes the judging as well."""
    key = await world.enroll("evil")
    await world.forger("evil", lambda leased: _honest(leased, "evil", key, "mine"))
    await world.provider("p1")

    def judge(leased: Leased) -> dict[str, Any]:
        texts = [one["text"] for one in leased.task.input["payload"]["candidates"]]
        outputs = {"index": texts.index("mine"), "reason": "mine"}
        said = {**outputs, "provenance": {"model_id": "j"}}
        hashes = dict.fromkeys(("outputs", "declared"), json_sha256(outputs))
        return signed(leased, "evil", key, said, response=json_sha256(said), **hashes)

    async with unruly(world, "evil", "oa.candidate_judge.v1", judge):
        view = await world.done("x", 2, "judge_model")
    assert (view.status, view.error and view.error.code) == (JobStatus.FAILED, "judge_failed")
    assert view.error is not None
    assert "one of those" in view.error.message


def _honest(leased: Leased, name: str, key: SigningKey, text: str) -> dict[str, Any]:
    response = honest(text)
    return signed(leased, name, key, response, **bound(response))


# --- orders of people ------------------------------------------------------------------------------------------


async def _under_way(world: JobsWorld) -> str:
    job_id = await world.submit("x")

    async def has_steps() -> bool:
        try:
            return hasattr(await world.service.runs.get(job_id, ADMIN), "steps")
        except FumehoodError:
            return False

    await until(has_steps)
    return job_id


async def test_a_verdict_is_nobodys_to_give_by_hand(world: JobsWorld) -> None:
    job_id = await _under_way(world)
    forged = {"outcome": "majority", "chosen": 0, "agreed": 3, "reason": None, "judge": None, "merged": None}
    forged["candidates"] = [{"execution": 0, "worker": "p0", "key_id": "0" * 64, "declared": "0" * 64}]
    answer = {"response": honest("forged"), "receipt": {"signed": "by nobody"}}
    override = world.service.orders.override
    for step, output in ((VERDICT, forged), (execution(0), answer)):
        for action in ("complete", "skip"):
            with pytest.raises(ConflictError, match="this run is a job"):
                await override(job_id, step, OPERATOR, action=action, reason="because", output=output)
    await world.provider("p0")
    view = await world.ended(job_id)
    assert view.result is not None
    assert view.result["text"] == "x"


async def test_a_job_that_was_cancelled_may_be_taken_up_again(world: JobsWorld) -> None:
    job_id = await _under_way(world)
    await world.service.jobs.cancel(job_id, ADMIN)
    assert (await world.ended(job_id)).status is JobStatus.CANCELLED
    await world.provider("p0")
    assert await world.service.orders.retry(job_id, OPERATOR)
    view = await world.ended(job_id)
    assert (view.status, rejected(view)) == (JobStatus.SUCCEEDED, {})


# --- providers that leave --------------------------------------------------------------------------------------


async def test_an_execution_that_was_given_back_is_done_by_another_and_counts(world: JobsWorld) -> None:
    begun = asyncio.Event()

    async def never(text: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return text

    leaving = await world.provider("p0", Echo(never))
    job_id = await world.submit("x")
    async with asyncio.timeout(60):
        await begun.wait()
    await world.provider("p1")
    await leaving.drain(0)
    view = await world.ended(job_id)
    assert (view.status, rejected(view)) == (JobStatus.SUCCEEDED, {})


# --- large ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [200_000, 1_200_000])
async def test_large_answers_are_judged(world: JobsWorld, size: int) -> None:
    for number in range(3):
        await world.provider(f"p{number}", Echo(lambda text, n=number: text + str(n) * (1 + n)))  # type: ignore[misc]
    await world.provider("judge", judge=Judge())
    view = await world.done("x" * size, 3, "judge_model")
    assert view.status is JobStatus.SUCCEEDED, view.error
    assert view.result is not None
    assert view.result["text"].endswith("222")


async def test_nine_large_answers_are_compared(world: JobsWorld) -> None:
    for number in range(9):
        await world.provider(f"p{number}")
    view = await world.ended(await world.submit("x" * 1_000_000, 9, "majority_vote"), 120)
    assert view.status is JobStatus.SUCCEEDED, view.error


# --- later -----------------------------------------------------------------------------------------------------


async def test_a_job_is_shown_whole_when_it_was_archived(world: JobsWorld) -> None:
    for number in range(3):
        await world.provider(f"p{number}")
    before = await world.done("x" * 200_000, 3, "majority_vote")
    assert await world.service.archiver.archive(before.job_id)
    assert await world.service.jobs.get(before.job_id, ADMIN) == before


async def test_a_result_that_is_gone_is_not_shown_as_none(world: JobsWorld) -> None:
    await world.provider("p0")
    job_id = (await world.done("x" * 200_000)).job_id
    state = await world.service.runs.get(job_id, ADMIN)
    assert isinstance(state, RunState)
    await MemoryBroker(world.server).blobs().delete(state.steps[execution(0)].output["$blob"])
    with pytest.raises(NotFoundError, match="not kept any more"):
        await world.service.jobs.get(job_id, ADMIN)


async def test_what_the_request_does_not_allow_does_not_count(world: JobsWorld) -> None:
    """A provider that leaves out what honest ones do, to have a longer answer than was asked for."""
    await world.provider("p0")
    job_id = (await world.done("long")).job_id
    state, keys = await world.service.runs.get(job_id, ADMIN), await world.service.receipt_keys.current()
    assert isinstance(state, RunState)
    assert keys is not None
    task = JobTask.model_validate(state.input)

    def three(request: JobRequest, response: Any) -> Any:
        return response.model_copy(update={"text": response.text[:3]})

    registry = Registry([replace(REGISTRY[ECHO], enforce=three)])
    request = registry.request(ECHO, task.payload)
    (answer,) = Checker(registry, keys, state, task, request).executions([state.steps[execution(0)].output])
    assert answer.candidate.rejected == "not_an_answer"
    (answer,) = Checker(REGISTRY, keys, state, task, request).executions([state.steps[execution(0)].output])
    assert answer.candidate.counts


async def test_a_worker_with_two_hands_does_not_take_a_second_one_where_it_is_about_to_try_again() -> None:
    """The lease of its last attempt says that it failed; that it is being given the next one stands nowhere yet."""
    broker = MemoryBroker(MemoryServer())
    handouts, places = Handouts(broker), broker.bucket(Bucket.LEASES)

    def task(step: str, attempt: int) -> TaskPayload:
        return TaskPayload(task_id=f"run.{step}", run_id="run", step_id=step, attempt=attempt, distinct="many")

    await broker.tasks.publish("t", "run", "run.a.1", task("a", 1).encode())
    (first,) = await handouts.take(["t"], max_tasks=1, timeout=0, worker_id="w", lease_seconds=20)
    await handouts.fail(first.lease, {"code": "x", "message": "x"})
    assert await take_place(places, task("a", 2), "w", now_ms())
    assert not await take_place(places, task("b", 1), "w", now_ms())
    assert await take_place(places, task("a", 2), "w", now_ms()), "it was not told, and asks again"
    assert await take_place(places, task("a", 3), "w", now_ms()), "others failed at it meanwhile"
