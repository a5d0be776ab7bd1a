"""The server's own worker: makes verdicts. Any server may take such a task, and any other again should it die.

What it decides on is read from the run's journal, not from the task: nobody who can write to the queue can change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from fumehood.broker import values
from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Broker
from fumehood.control import loading
from fumehood.control.jobs import answers as said_by
from fumehood.control.jobs.answers import Answer, Checker
from fumehood.control.jobs.definition import COMPARE, JUDGE, JUDGE_TYPE, VERDICT_SECONDS, execution
from fumehood.control.jobs.standing import Standings
from fumehood.control.receipt_keys import ReceiptKeyStore
from fumehood.engine.state import RunState
from fumehood.errors import BrokerError, FumehoodError, InvalidRequestError, LeaseLostError, UnverifiedError
from fumehood.jobs.registry import Registry
from fumehood.jobs.types.candidate_judge import JudgeRequest, JudgeResponse
from fumehood.verify import adjudication
from fumehood.verify.adjudication import Candidate, Decision
from fumehood.wire.jobs import JobTask
from fumehood.wire.sealed import ADJUDICATE_TASK

PULL_SECONDS = 2.0
LEASE_SECONDS = 15
RENEW_SECONDS = 4.0
RETRY_SECONDS = 1.0
AT_ONCE = 8
ORDER = "order of candidates"
_log = structlog.get_logger()


class Adjudicator:
    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        keys: ReceiptKeyStore,
        standings: Standings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._keys = keys
        self._standings = standings
        self._handouts = Handouts(broker, now_ms=now_ms)
        self._name = f"server-{secrets.token_hex(6)}"
        self._tasks: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    await self._take()
                except Exception as error:  # noqa: BLE001 - verdicts wait for nobody else
                    _log.warning("adjudicator.not_taken", code=_code(error))
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self) -> None:
        while len(self._tasks) >= AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        taken = await self._handouts.take(
            [ADJUDICATE_TASK],
            max_tasks=AT_ONCE - len(self._tasks),
            timeout=PULL_SECONDS,
            worker_id=self._name,
            lease_seconds=LEASE_SECONDS,
        )
        for leased in taken:
            task = asyncio.create_task(self._serve(leased), name=f"verdict-{leased.lease.task_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, leased: Leased) -> None:
        """What stands in the way of a verdict may pass, and is tried again; a fault of ours would come again."""
        try:
            async with asyncio.timeout(VERDICT_SECONDS), self._kept(leased.lease):
                said = await self._said(leased.task.run_id, leased.task.step_id)
                await self._handouts.complete(leased.lease, said)
        except LeaseLostError:
            return
        except Exception as error:  # noqa: BLE001 - see above
            _log.warning("adjudicator.failed", run_id=leased.task.run_id, code=_code(error))
            failure = {
                "code": "no_verdict",
                "message": f"the verdict could not be made: {_code(error)}",
                "retryable": isinstance(error, FumehoodError | TimeoutError | OSError),
            }
            with contextlib.suppress(BrokerError, LeaseLostError):
                await self._handouts.fail(leased.lease, failure)

    @contextlib.asynccontextmanager
    async def _kept(self, lease: Lease) -> AsyncIterator[None]:
        """The lease is short, so that another server soon goes on where this one dies; large answers take longer."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                with contextlib.suppress(BrokerError):
                    await self._handouts.heartbeat(lease)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _said(self, run_id: str, step: str) -> dict[str, Any]:
        state, _ = await loading.load(self._broker, run_id)
        if state is None:
            raise InvalidRequestError("there is no such run")
        case = await self._case(state)
        if step != COMPARE:
            return await self._verdict(case)
        asked = await asyncio.to_thread(self._question, case) if case.decision.needs_judge else None
        return {"judge_task": None if asked is None else asked.task.model_dump(mode="json")}

    async def _case(self, state: RunState) -> _Case:
        task = JobTask.model_validate(await values.inline(state.input, self._broker.blobs()))
        request = await asyncio.to_thread(
            self._registry.request, task.job_type, task.payload, version=task.schema_version
        )
        keys = await self._keys.current()
        if keys is None:
            raise UnverifiedError("no_key_list", "no list of keys is published")
        wanted, checker = request.verification, Checker(self._registry, keys, state, task, request)
        outputs = [await self._read(state, execution(number)) for number in range(wanted.redundancy)]
        answers = await self._but_set_aside(await asyncio.to_thread(checker.executions, outputs))
        decision = adjudication.decide(wanted.adjudication, wanted.redundancy, [one.candidate for one in answers])
        return _Case(checker, decision, answers)

    async def _read(self, state: RunState, step: str) -> Any:
        return await said_by.read(state.steps[step].output, self._broker.blobs())

    async def _but_set_aside(self, answers: Sequence[Answer]) -> list[Answer]:
        workers = {one.candidate.worker for one in answers if one.candidate.counts}
        return said_by.set_aside(answers, await self._standings.set_aside_of(workers))

    # --- a judge -------------------------------------------------------------------------------------------

    def _question(self, case: _Case) -> _Question:
        """What a judge is asked: the answers without names, in an order that says nothing."""
        task, order = case.checker.task, self._order(case)
        outputs = [found.outputs() for at in order if (found := case.answers[at].response) is not None]
        model = case.checker.request.verification.judge_model
        asked = JudgeRequest.model_validate(
            {
                "job_type": task.job_type,
                "request": task.payload,
                "candidates": outputs,
                **({"judge_model": model} if model is not None else {}),
            }
        )
        wanted = JobTask(
            job_type=JUDGE_TYPE,
            schema_version=str(self._registry.type(JUDGE_TYPE).version),
            payload=asked.typed(),
            request_sha256=asked.compute_hash(),
            tenant=task.tenant,
            asked_by=task.asked_by,
        )
        return _Question(wanted, asked, order)

    def _order(self, case: _Case) -> list[int]:
        """The same for the same run on every server, and nobody else's to know beforehand."""
        run_id = case.checker.state.run_id
        seed = hmac.new(self._broker.derived_key(ORDER), run_id.encode(), hashlib.sha256).hexdigest()
        return adjudication.shuffled(case.decision, seed)

    async def _judged(self, case: _Case) -> tuple[Decision, dict[str, Any]]:
        asked = await asyncio.to_thread(self._question, case)
        checker = replace(case.checker, task=asked.task, request=asked.request)
        output = await self._read(checker.state, JUDGE)
        (answer,) = await self._but_set_aside([await asyncio.to_thread(checker.answer, 0, JUDGE, output)])
        judge, response = answer.candidate, answer.response
        if any(judge.worker == one.worker for one in case.decision.candidates):
            return adjudication.judge_failed(case.decision), {"trouble": "not_distinct", "message": _OWN_JUDGE}
        if not judge.counts or not isinstance(response, JudgeResponse) or response.index >= len(asked.order):
            return adjudication.judge_failed(case.decision), _judge_trouble(answer)
        said = {
            "index": response.index,
            "order": asked.order,
            "request_sha256": asked.task.request_sha256,
            "worker": judge.worker,
            "key_id": judge.key_id,
        }
        return adjudication.judged(case.decision, asked.order[response.index]), said

    # --- the verdict ---------------------------------------------------------------------------------------

    async def _verdict(self, case: _Case) -> dict[str, Any]:
        decision, judge, merged = case.decision, None, None
        if decision.needs_judge:
            decision, judge = await self._judged(case)
        if decision.needs_merge:
            decision, merged = await self._merged(case)
        await self._count(case.checker, decision)
        return {
            "outcome": decision.outcome.value,
            "chosen": decision.chosen,
            "agreed": decision.agreed,
            "reason": decision.reason,
            "candidates": [_plain(one, answer) for one, answer in zip(decision.candidates, case.answers, strict=True)],
            "judge": judge,
            "merged": merged,
        }

    async def _count(self, checker: Checker, decision: Decision) -> None:
        """For workers that have a key: names that somebody thinks up would fill the store."""
        listed = {key.worker for key in checker.keys.keys}
        said = adjudication.standing_of(decision)
        await self._standings.count(
            checker.state.run_id, {worker: word for worker, word in said.items() if worker in listed}
        )

    async def _merged(self, case: _Case) -> tuple[Decision, dict[str, Any] | None]:
        """A merge that fails would fail again: the rule is the type's own, and so are the answers."""
        kind = self._registry.type(case.checker.task.job_type)
        assert kind.merge is not None, "refused when it was submitted"
        try:
            found = await asyncio.to_thread(kind.merge, case.checker.request, [one.response for one in case.answers])
            return case.decision, found.typed()
        except Exception as error:  # noqa: BLE001 - a type may be anybody's
            _log.warning("adjudicator.not_merged", run_id=case.checker.state.run_id, error=type(error).__name__)
            return adjudication.merge_failed(case.decision), None


@dataclass(frozen=True, slots=True)
class _Case:
    """A job whose executions have ended, and what follows from that."""

    checker: Checker
    decision: Decision
    answers: Sequence[Answer]


@dataclass(frozen=True, slots=True)
class _Question:
    """What a judge is asked, and which executions it sees in which order."""

    task: JobTask
    request: JudgeRequest
    order: list[int]


_OWN_JUDGE = "the judge is one of those that it judged"


def _judge_trouble(answer: Answer) -> dict[str, Any]:
    return {"trouble": answer.candidate.rejected or answer.candidate.failed or "index", "message": answer.message}


def _plain(candidate: Candidate, answer: Answer) -> dict[str, Any]:
    said = {
        "execution": candidate.execution,
        "worker": candidate.worker or None,
        "key_id": candidate.key_id or None,
        "declared": candidate.declared,
        "rejected": candidate.rejected,
        "failed": candidate.failed,
        "message": answer.message or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _code(error: Exception) -> str:
    return error.code if isinstance(error, FumehoodError) else type(error).__name__
