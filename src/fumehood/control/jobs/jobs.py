"""Jobs over durable runs: submitted, seen, cancelled.

What was asked for is the run's input, in its typed form and by its hash. All that is shown is read from the run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fumehood.broker import names, values
from fumehood.broker.ports import Broker
from fumehood.control import loading
from fumehood.control.bundles import Bundles
from fumehood.control.callers import DEFAULT_TENANT, Caller
from fumehood.control.claims import claim_key, claimed
from fumehood.control.jobs import answers, view
from fumehood.control.jobs.definition import COMPARE, VERDICT, definition_of
from fumehood.control.jobs.providers import Providers
from fumehood.control.orders import Orders
from fumehood.control.quotas import Quotas
from fumehood.control.receipt_keys import ReceiptKeyStore
from fumehood.control.runs import Runs
from fumehood.control.starting import ensure_started, send_start
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus
from fumehood.errors import InvalidRequestError, NoKeyListError, NotFoundError
from fumehood.jobs.base import JobRequest
from fumehood.jobs.registry import AnyType, Registry
from fumehood.wire import blobref, strict_json
from fumehood.wire.job_api import JOB_WORKFLOW, JobStatus, JobView, SubmitJobRequest
from fumehood.wire.jobs import Adjudication, JobTask, Mode

MAX_PAYLOAD = 4 * 1024 * 1024
_OURS = (COMPARE, VERDICT)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long an execution waits for somebody to begin it."""

    absent_seconds: int = 30
    """Where fewer providers are there than the job wants."""
    busy_seconds: int = 600
    """Where they are there: they may all be busy."""


@dataclass(frozen=True, slots=True)
class Submission:
    request: SubmitJobRequest
    idempotency_key: str | None = None
    traceparent: str | None = None


class Jobs:
    def __init__(
        self,
        broker: Broker,
        runs: Runs,
        orders: Orders,
        registry: Registry,
        keys: ReceiptKeyStore,
        *,
        providers: Providers,
        now_ms: Callable[[], int],
        quotas: Quotas | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.registry = registry
        self._broker = broker
        self._runs = runs
        self._orders = orders
        self._keys = keys
        self._bundles = Bundles(broker)
        self._now_ms = now_ms
        self._quotas = quotas
        self._providers = providers
        self._waits = waits or Waits()

    async def submit(self, wish: Submission, caller: Caller) -> tuple[str, bool]:
        """The job's id, and whether it is a new one. Once this returns, the job will be done, or say why not."""
        kind = self.registry.type(wish.request.job_type)
        _check_plain(wish.request.payload)
        request = await asyncio.to_thread(self.registry.request, kind.name, wish.request.payload)
        _check_verification(request)
        for source in kind.uploads(request):
            if not await self._bundles.owned(caller.tenant, source):
                raise InvalidRequestError("payload: it names a bundle that was not uploaded, or not lately")
        if await self._keys.current() is None:
            raise NoKeyListError(
                "this cell publishes no list of keys, so that no receipt could be checked; its operator makes one with "
                "`fumehood receipts init`"
            )
        sha256 = await asyncio.to_thread(request.compute_hash)
        if wish.idempotency_key is None:
            run_id, created = await self._new(caller), True
        else:
            place = claim_key(JOB_WORKFLOW, wish.idempotency_key, caller.tenant)
            run_id, created = await claimed(
                self._broker,
                place,
                f"{kind.name} {sha256}",
                lambda: self._new(caller),
                lambda lost: self._drop(caller, lost),
            )
        send = send_start if created else ensure_started
        await send(self._broker, run_id, await self._body(kind, request, sha256, wish, caller), wish.traceparent)
        return run_id, created

    async def _new(self, caller: Caller) -> str:
        run_id = f"job-{self._now_ms():012x}{secrets.token_hex(10)}"
        if self._quotas is not None:
            await self._quotas.admit(caller.tenant, run_id)
        return run_id

    def _drop(self, caller: Caller, run_id: str) -> None:
        if self._quotas is not None:
            self._quotas.release(caller.tenant, run_id)

    async def _body(
        self, kind: AnyType, request: JobRequest, sha256: str, wish: Submission, caller: Caller
    ) -> dict[str, Any]:
        """The start of the run: the same for the same job, whoever sends it."""
        enough = await self._providers.serving(kind.name) >= request.verification.redundancy
        wait = self._waits.busy_seconds if enough else self._waits.absent_seconds
        definition = definition_of(kind.name, request.verification, seconds=kind.seconds(request), wait_seconds=wait)
        task = JobTask(
            job_type=kind.name,
            schema_version=str(kind.version),
            payload=request.typed(),
            request_sha256=sha256,
            tenant=caller.tenant,
            asked_by=caller.name,
        )
        meta = {
            "traceparent": wish.traceparent,
            "idempotency_key": wish.idempotency_key,
            "by": caller.name,
            "tenant": caller.tenant if caller.tenant != DEFAULT_TENANT else None,
            view.META: {
                "job_type": kind.name,
                "schema_version": str(kind.version),
                "request_sha256": task.request_sha256,
                "verification": request.verification.model_dump(mode="json", exclude_none=True),
            },
        }
        return {
            "definition": json.loads(definition.canonical()),
            "digest": definition.digest,
            "input": await values.outline(task.model_dump(mode="json"), self._broker.blobs()),
            "meta": {name: value for name, value in meta.items() if value},
        }

    # --- seeing and ending ---------------------------------------------------------------------------------

    async def get(self, job_id: str, caller: Caller) -> JobView:
        """`NotFoundError` for another tenant's job, and for a run that is none."""
        await self._check(job_id, caller)
        state, _ = await loading.load(self._broker, job_id)
        if state is None:
            return view.waiting(job_id, await self._told(job_id))
        if view.META not in state.meta:
            raise no_such_job()
        shown = view.of(state, await self._outputs(state) if state.status is RunStatus.SUCCEEDED else {})
        if shown.status is JobStatus.SUCCEEDED and shown.result is None:
            raise NotFoundError("the job succeeded, and its result is not kept any more")
        return shown

    async def _outputs(self, state: RunState) -> dict[str, Any]:
        """What its steps gave: of strangers as far as it can be read, of servers as it is."""
        blobs = self._broker.blobs()
        found = {
            name: await answers.read(step.output, blobs) for name, step in state.steps.items() if name not in _OURS
        }
        return found | {VERDICT: await values.inline(state.steps[VERDICT].output, blobs)}

    async def _told(self, job_id: str) -> dict[str, Any]:
        """By its start, which waits for a decider."""
        told = await self._broker.mailboxes.first(job_id)
        message = json.loads(told) if told is not None else {}
        meta: dict[str, Any] = message.get("meta") or {}
        if message.get("type") != MessageType.START or view.META not in meta:
            raise no_such_job()
        return meta

    async def cancel(self, job_id: str, caller: Caller) -> bool:
        """Whether there was anybody to tell: one that has ended stays as it is."""
        await self._check(job_id, caller)
        state, _ = await loading.load(self._broker, job_id)
        if view.META not in (state.meta if state is not None else await self._told(job_id)):
            raise no_such_job()
        return await self._orders.cancel(job_id, caller, reason="cancelled by its caller")

    async def _check(self, job_id: str, caller: Caller) -> None:
        if not names.is_token(job_id):
            raise no_such_job()
        try:
            await self._runs.check(job_id, caller)
        except NotFoundError:
            raise no_such_job() from None


def no_such_job() -> NotFoundError:
    return NotFoundError("there is no such job")


def _check_plain(payload: dict[str, Any]) -> None:
    """It becomes part of a run."""
    if not strict_json.is_flat(payload):
        raise InvalidRequestError("payload: it is nested too deeply")
    if blobref.mentions_blob(payload):
        raise InvalidRequestError(f"payload: the key {blobref.KEY} is not for callers")
    if len(blobref.encode(payload)) > MAX_PAYLOAD:
        raise InvalidRequestError(f"payload: it has more than {MAX_PAYLOAD} bytes")


def _check_verification(request: JobRequest) -> None:
    """What nobody could decide is not begun."""
    wanted = request.verification
    if wanted.redundancy > 1 and wanted.adjudication is Adjudication.NONE and wanted.mode is not Mode.OBJECTIVE:
        raise InvalidRequestError(
            "verification.adjudication: several subjective answers need majority_vote, judge_model or merge"
        )
