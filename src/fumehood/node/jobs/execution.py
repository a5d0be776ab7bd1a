"""One execution of a job: from what was asked to a response, and the receipt that binds its provider to that."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from fumehood.errors import InvalidRequestError, JobFailedError
from fumehood.jobs.base import Handler, JobRequest, JobResponse
from fumehood.jobs.registry import AnyType, Registry
from fumehood.verify import receipt
from fumehood.verify.dsse import SigningKey
from fumehood.wire.canonical import canonical_json, json_sha256
from fumehood.wire.jobs import JobAnswer, JobTask
from fumehood.wire.protocol import TaskPayload

MOST_PROVEN = 256
"""Subjects that a handler may add to the response's own."""
LONGEST_NAME = 512
"""Of a subject. So a receipt has its bound, and what is beyond it is bound by the response's own hash."""
LARGEST_RESPONSE = 4 * 1024 * 1024
LARGEST_FACTS = 128 * 1024
"""Of what a handler observed: a receipt travels with every answer."""
ANSWERED = "answered"
"""How a response ended that says nothing about that itself."""


@dataclass(slots=True)
class Observing:
    """What a handler is given, and what it said there: a `jobs.base.Context`."""

    worker_id: str
    task_id: str
    tenant: str
    proven: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def prove(self, name: str, sha256: str) -> None:
        if len(self.proven) < MOST_PROVEN and len(name) <= LONGEST_NAME:
            self.proven[name] = sha256

    def observe(self, **facts: Any) -> None:
        self.facts.update(facts)


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as it was read from its task: nothing of it is run that is not what its hash says."""

    type: AnyType
    task: JobTask
    request: JobRequest

    @classmethod
    def read(cls, registry: Registry, payload: TaskPayload) -> Asked:
        """`JobFailedError`, which another provider may not have: it may be of another version than this one."""
        try:
            task = JobTask.model_validate(payload.input)
        except ValidationError:
            raise JobFailedError(
                "unreadable_task", "the task is no execution of a job that this provider reads", again=True
            ) from None
        try:
            request = registry.request(task.job_type, task.payload, version=task.schema_version)
            hashed = request.compute_hash()
        except InvalidRequestError as error:
            raise JobFailedError(
                "unreadable_task", f"this provider does not take the request: {error.detail}", again=True
            ) from None
        if hashed != task.request_sha256:
            detail = "this provider reads another request than the one that was asked: it may be of another version"
            raise JobFailedError("request_mismatch", detail, again=True)
        return cls(registry.type(task.job_type), task, request)


async def perform(
    asked: Asked, handler: Handler[Any, Any], payload: TaskPayload, worker_id: str, key: Callable[[], SigningKey]
) -> JobAnswer:
    """Run it, hold it to what was asked, and sign with the key of that moment: the one from before may be retired by
    then. Whatever a handler raises goes through."""
    context = Observing(worker_id, payload.task_id, asked.task.tenant)
    began, at = receipt.now(), time.monotonic()
    found = await handler.run(asked.request, context)
    took_ms = int((time.monotonic() - at) * 1000)

    def signed() -> JobAnswer:
        signing = key()
        response = _signed_off(asked, found, began, took_ms, signing)
        claim = _claim(asked, response, context, payload, began, signing)
        return JobAnswer(response=response.typed(), receipt=receipt.issue(claim, _subjects(response, context), signing))

    return await asyncio.to_thread(signed)  # a large response is hashed for seconds, and leases want to be renewed


def _signed_off(asked: Asked, found: Any, began: dt.datetime, duration_ms: int, key: SigningKey) -> JobResponse:
    """The response as it goes out: within what the request allows, with whatever a handler leaves to its worker."""
    if not isinstance(found, asked.type.response):
        raise TypeError(f"a handler of {asked.type.name} gave a {type(found).__name__}")
    kept: JobResponse = asked.type.enforce(asked.request, found) if asked.type.enforce is not None else found
    outputs = kept.outputs()
    provenance = kept.provenance.model_copy(
        update={
            "input_sha256": asked.task.request_sha256,
            "output_sha256": json_sha256(outputs),
            "provider_pubkey": key.public_key.hex(),
            "executed_at": began,
            "duration_ms": duration_ms,
        }
    )
    typed = {**outputs, "provenance": provenance.model_dump(mode="json", exclude_none=True)}
    if len(canonical_json(typed)) > LARGEST_RESPONSE:
        raise JobFailedError("response_too_large", f"the response has more than {LARGEST_RESPONSE} bytes")
    checked: JobResponse = asked.type.response.model_validate(
        typed
    )  # a handler may have built it without being checked
    return checked


def _subjects(response: JobResponse, context: Observing) -> dict[str, str]:
    return {
        "response": json_sha256(response.typed()),
        "outputs": json_sha256(response.outputs()),
        "declared": json_sha256(response.declared()),
        **{name: sha256 for name, sha256 in context.proven.items() if name not in _OWN},
    }


_OWN = frozenset({"response", "outputs", "declared"})


def _claim(
    asked: Asked, response: JobResponse, context: Observing, payload: TaskPayload, began: dt.datetime, key: SigningKey
) -> receipt.Claim:
    image, facts = context.facts.get("image"), {name: fact for name, fact in context.facts.items() if name != "image"}
    return receipt.Claim(
        kind=receipt.Kind.JOB,
        worker=receipt.Worker(id=context.worker_id, key_id=key.key_id),
        task=_hand_out(payload),
        request=receipt.Asked(
            sha256=asked.task.request_sha256, type=asked.type.name, tenant=asked.task.tenant, by=asked.task.asked_by
        ),
        outcome=receipt.Outcome(status=_status(response)),
        image=None if image is None else receipt.Image.model_validate(image),
        observed=_bounded(facts),
        started_at=began,
        finished_at=receipt.now(),
        software=f"fumehood/{version('fumehood')}",
    )


def _hand_out(payload: TaskPayload) -> dict[str, str | int]:
    named: dict[str, str | int] = {"run_id": payload.run_id, "step_id": payload.step_id}
    named |= {"attempt": payload.attempt, "iteration": payload.iteration}
    return {**named, "lease_id": payload.lease_id} if payload.lease_id is not None else named


def _status(response: JobResponse) -> str:
    said = getattr(response, "status", None)
    return str(said.value if isinstance(said, Enum) else said) if said else ANSWERED


def _bounded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is too large, or no JSON, is told to be missing rather than left out in silence."""
    kept: dict[str, Any] = {}
    left = LARGEST_FACTS
    for name, value in facts.items():
        size = _size(value)
        kept[name] = value if size <= left else {"left_out": "too large, or no JSON"}
        left -= size if size <= left else 0
    return kept


def _size(value: Any) -> int:
    try:
        return len(canonical_json(value))
    except InvalidRequestError:
        return LARGEST_FACTS + 1
