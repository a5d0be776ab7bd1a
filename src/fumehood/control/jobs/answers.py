"""What the executions of a job answered, each held to its receipt.

An answer counts if its receipt was signed by a key that is on the list for this very worker, names this very hand-out
of this very request, and binds what was answered. All else is an answer that says why it does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import ValidationError

from fumehood.broker.ports import Blobs
from fumehood.control.jobs.definition import execution
from fumehood.engine.state import RunState, StepState, StepStatus
from fumehood.errors import (
    BlobCorruptError,
    BlobNotFoundError,
    InvalidRequestError,
    PayloadTooLargeError,
    UnverifiedError,
)
from fumehood.jobs.base import JobRequest, JobResponse
from fumehood.jobs.registry import Registry
from fumehood.verify import receipt
from fumehood.verify.adjudication import Candidate
from fumehood.verify.keylist import KeyList
from fumehood.verify.receipt import Statement
from fumehood.wire import blobref, strict_json
from fumehood.wire.canonical import json_sha256
from fumehood.wire.jobs import JobAnswer, JobTask

NOT_AN_ANSWER = "not_an_answer"
MISMATCH = "task_mismatch"
LONGEST_WHY = 2000
LARGEST_ANSWER = 6 * 1024 * 1024
"""Bytes of JSON: what a provider may respond, and its receipt."""
_log = structlog.get_logger()


async def read(output: Any, blobs: Blobs) -> Any:
    """What an execution said, with what stands behind its reference. None where nobody could read that, or say it
    again: it is a stranger's word, and no reason for not hearing the others."""
    ref = blobref.ref_of(output)
    try:
        data = blobref.encode(output) if ref is None else await blobs.get(ref, limit=LARGEST_ANSWER)
        return await asyncio.to_thread(_plain, data)
    except (BlobNotFoundError, BlobCorruptError, PayloadTooLargeError, InvalidRequestError, ValueError):
        return None


def _plain(data: bytes) -> Any:
    """As it is, unless it holds a reference of its own: JSON spells that in several ways."""
    found = strict_json.loads(data, deepest=strict_json.DEEPEST)
    is_suspect = blobref.KEY.encode() in data or b"\\" in data
    return None if is_suspect and blobref.mentions_blob(found) else found


@dataclass(frozen=True, slots=True)
class Answer:
    """One execution, as far as it came."""

    candidate: Candidate
    response: JobResponse | None = None
    """Of one that counts."""
    message: str = ""
    """In words, why it does not count, or failed."""


@dataclass(frozen=True, slots=True)
class Checker:
    """All that the answers to one request are held to."""

    registry: Registry
    keys: KeyList
    state: RunState
    task: JobTask
    request: JobRequest

    def executions(self, outputs: Sequence[Any]) -> list[Answer]:
        """`outputs`: what they gave, as `read` has it."""
        return [self.answer(number, execution(number), output) for number, output in enumerate(outputs)]

    def answer(self, number: int, name: str, output: Any) -> Answer:
        """What one step gave. Whatever that is, it is this answer's fault alone."""
        step = self.state.steps[name]
        candidate = Candidate(number, worker=step.worker_id or "")
        if step.status is not StepStatus.COMPLETED:
            return _failed(candidate, step)
        try:
            said = JobAnswer.model_validate(output)
            statement = receipt.check(said.receipt, self.keys)
            signer = statement.predicate.worker
            candidate = replace(candidate, worker=signer.id, key_id=signer.key_id)
            self._check_task(statement, name, step)
            self._check_request(statement)
            response = self._response(said)
            declared = _bound(statement, said, response)
        except ValidationError:
            return _rejected(candidate, NOT_AN_ANSWER, "what it said is no answer of a provider, or too large for one")
        except UnverifiedError as error:
            return _rejected(candidate, error.reason, error.detail)
        except Exception as error:  # noqa: BLE001 - a type's own code, on a stranger's words
            _log.exception("job.answer_unread", run_id=self.state.run_id, step_id=name)
            return _rejected(candidate, NOT_AN_ANSWER, f"its type cannot read it: {type(error).__name__}")
        return Answer(replace(candidate, declared=declared), response)

    def _check_task(self, statement: Statement, name: str, step: StepState) -> None:
        """That the receipt is of this hand-out: an older one's is somebody's truth about then. Who said to begin does
        not matter: that was said without a signature, and what is given back is done by another."""
        claim = statement.predicate
        if claim.kind is not receipt.Kind.JOB:
            raise UnverifiedError(MISMATCH, "the receipt is no job's")
        wanted = {"run_id": self.state.run_id, "step_id": name, "attempt": step.attempt, "iteration": step.iteration}
        if any(claim.task.get(field) != value for field, value in wanted.items()):
            raise UnverifiedError(MISMATCH, "the receipt is of another hand-out")

    def _check_request(self, statement: Statement) -> None:
        asked = statement.predicate.request
        if asked.sha256 != self.task.request_sha256 or asked.type != self.task.job_type:
            raise UnverifiedError("request_mismatch", "the receipt is of another request")

    def _response(self, said: JobAnswer) -> JobResponse:
        """Within what was asked for: honest providers see to that themselves."""
        try:
            response = self.registry.response(self.task.job_type, said.response)
        except InvalidRequestError as error:
            raise UnverifiedError(NOT_AN_ANSWER, f"the response does not fit its type: {error.detail}") from None
        enforce = self.registry.type(self.task.job_type).enforce
        if enforce is not None and enforce(self.request, response).outputs() != response.outputs():
            raise UnverifiedError(NOT_AN_ANSWER, "the response holds what the request does not allow")
        return response


def set_aside(answers: Sequence[Answer], workers: Collection[str]) -> list[Answer]:
    """The same, without what these workers said."""
    return [
        _rejected(one.candidate, "set_aside", "this provider was set aside")
        if one.candidate.counts and one.candidate.worker in workers
        else one
        for one in answers
    ]


def _bound(statement: Statement, said: JobAnswer, response: JobResponse) -> str:
    """The hash of the declared outputs, once all that was answered is what the receipt binds."""
    outputs = {name: value for name, value in said.response.items() if name != "provenance"}
    try:
        found = {
            "response": json_sha256(said.response),
            "outputs": json_sha256(outputs),
            "declared": json_sha256(response.declared()),
        }
    except InvalidRequestError as error:
        raise UnverifiedError(NOT_AN_ANSWER, error.detail) from None
    for name, digest in found.items():
        if statement.digest_of(name) != digest:
            raise UnverifiedError("output_mismatch", f"the receipt binds another {name}")
    return found["declared"]


def _rejected(candidate: Candidate, reason: str, why: str) -> Answer:
    return Answer(replace(candidate, declared=None, rejected=reason), message=why[:LONGEST_WHY])


def _failed(candidate: Candidate, step: StepState) -> Answer:
    failure = step.failure
    code = failure.code if failure is not None else step.status.value
    why = failure.message if failure is not None else "it gave nothing"
    return Answer(replace(candidate, failed=code), message=why[:LONGEST_WHY])
