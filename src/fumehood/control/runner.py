"""The Runner API's use cases: a run is a durable run of the engine with one step, whose image was admitted here.

Nothing is kept here. An idempotency key is one atomic create, as with other runs, and what it creates holds all that
was decided: whoever comes again with the key sends the same start and gives the same answer, without asking a registry
a second time.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from fumehood.broker.ports import Broker, Bucket
from fumehood.control import loading
from fumehood.control.callers import DEFAULT_TENANT, Caller
from fumehood.control.orders import Orders
from fumehood.control.owners import no_such_run
from fumehood.control.quotas import Quotas
from fumehood.control.run_receipts import NOT_ENDED, RunReceipts
from fumehood.control.runner_traces import NodeTraces
from fumehood.control.runner_view import META, Asked, Traces, end_of, ended, is_stopping, stopping, under_way, waiting
from fumehood.control.runs import Runs
from fumehood.control.starting import ensure_started, send_start
from fumehood.engine.definition import MAX_BYTES, Definition
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, StepState
from fumehood.errors import (
    ConflictError,
    DigestResolutionError,
    ImageError,
    InvalidRequestError,
    KeyConflictError,
    NotFoundError,
    PolicyDeniedError,
    RegistryUnavailableError,
    RunDeniedError,
)
from fumehood.images import Admission, AdmittedImage, DenialReason, RunWish
from fumehood.images.reference import is_loopback_registry
from fumehood.wire.base import canonical_sha256
from fumehood.wire.runner_api import (
    CreatedStatus,
    CreateRunRequest,
    CreateRunResponse,
    DenialEvidence,
    GetRunResponse,
    RunnerStatus,
    evidence_of,
    pod_name,
)
from fumehood.wire.sandbox import RUN_STEP, RUN_WORKFLOW

NO_POLICY = "this server has no admission policy, so that no image may run; its operator sets one"
NOT_HERE = (
    "no registry on the server's own machine gave it this image; its log says why, and so does `fumehood image check` "
    "on that machine"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Creation:
    """What somebody wants to be run."""

    request: CreateRunRequest
    idempotency_key: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    """What was decided about a creation: all that its answer, and its start, are made from."""

    run_id: str
    body: str
    """A hash of the request."""
    image: str
    """Pinned."""
    evidence: Mapping[str, Any]
    by: str

    def encode(self) -> bytes:
        said = {"run_id": self.run_id, "body": self.body, "image": self.image, "by": self.by}
        return json.dumps(said | {"evidence": dict(self.evidence)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Claim:
        return cls(**json.loads(data))

    @property
    def response(self) -> CreateRunResponse:
        evidence = evidence_of(self.evidence)
        return CreateRunResponse(
            run_id=self.run_id,
            pod_name=pod_name(self.run_id),
            status=CreatedStatus.QUEUED,
            image_digest=evidence.resolved_digest,
            policy_evidence=evidence,
        )


class Runner:
    def __init__(
        self,
        broker: Broker,
        runs: Runs,
        orders: Orders,
        *,
        now_ms: Callable[[], int],
        admission: Admission | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """Without `admission` every creation is denied."""
        self._broker = broker
        self._runs = runs
        self._orders = orders
        self._now_ms = now_ms
        self._admission = admission
        self._quotas = quotas
        self._traces = NodeTraces(broker)
        self._receipts = RunReceipts(broker, runs)

    # --- creating ------------------------------------------------------------------------------------------

    async def create(self, wish: Creation, caller: Caller) -> tuple[CreateRunResponse, bool]:
        """The answer, and whether the run is a new one. Once this returns, the run will be run."""
        _check_size(wish.request)
        if wish.idempotency_key is None:
            claim, created = await self._decided(wish.request, caller), True
        else:
            claim, created = await self._claimed(wish, wish.idempotency_key, caller)
        send = send_start if created else ensure_started
        await send(self._broker, claim.run_id, _body(wish, claim, caller), wish.traceparent)
        return claim.response, created

    async def _claimed(self, wish: Creation, key: str, caller: Caller) -> tuple[_Claim, bool]:
        """One atomic create decides what a key means, and all that was decided about it."""
        bucket, place = self._broker.bucket(Bucket.IDEMPOTENCY), _claim_key(key, caller.tenant)
        entry = await bucket.get(place)
        if entry is None:
            claim = await self._decided(wish.request, caller)
            try:
                await bucket.create(place, claim.encode())
            except KeyConflictError:
                if self._quotas is not None:
                    self._quotas.release(caller.tenant, claim.run_id)
                entry = await bucket.get(place)
            else:
                return claim, True
        if entry is None:
            raise ConflictError("this idempotency key ran out just now; use another one")
        found = _Claim.decode(entry.value)
        if found.body != canonical_sha256(wish.request):
            raise ConflictError("this idempotency key was used before, with another body")
        return found, False

    async def _decided(self, request: CreateRunRequest, caller: Caller) -> _Claim:
        """That it may be run, and counts from now on. Registries are asked for nobody who has too many runs already."""
        if self._quotas is not None:
            await self._quotas.check(caller.tenant)
        admitted = await self._admitted(request)
        run_id, evidence = self._new_id(), admitted.evidence.to_dict()
        if self._quotas is not None:
            await self._quotas.admit(caller.tenant, run_id)
        return _Claim(run_id, canonical_sha256(request), admitted.pinned, evidence, caller.name)

    async def _admitted(self, request: CreateRunRequest) -> AdmittedImage:
        """The image first, so that a denial over anything else can tell what was found out about it; and both by one
        policy, whatever becomes of its file meanwhile."""
        if self._admission is None:
            reason = DenialReason.TRUST_NOT_CONFIGURED.value
            raise _denied(NO_POLICY, reason, {"registry_allowed": False, "signature_verified": False})
        policy = self._admission.policy
        try:
            admitted = await self._admission.admit(request.image_ref, policy)
        except DigestResolutionError as error:
            raise _undecided(error) from error
        except ImageError as error:
            known = error.evidence or {}
            raise _denied(error.detail, str(known.get("denial_reason") or error.code), known) from error
        try:
            policy.permits(_wish(request))
        except PolicyDeniedError as error:
            raise _denied(error.detail, error.reason, admitted.evidence.to_dict()) from error
        return admitted

    def _new_id(self) -> str:
        """As the ids of other runs, without their `run-`, which is part of the container's name."""
        return f"{self._now_ms():012x}{secrets.token_hex(10)}"

    # --- seeing and stopping -------------------------------------------------------------------------------

    async def get(self, run_id: str, caller: Caller) -> GetRunResponse:
        """The run as it is now. `NotFoundError` for a run of another tenant, or of another kind."""
        asked, state = await self.find(run_id, caller)
        if state is None:
            return waiting(run_id, asked)
        step = state.steps.get(RUN_STEP, StepState())
        if not state.status.ended:
            return under_way(state, asked, await self._traces.of(run_id))
        end = end_of(state, await self._runs.shown(step.output))
        known = end.report is not None and end.report.started_at is not None
        traces = Traces() if known else await self._traces.left_by(run_id, step.attempt)
        if end.status is RunnerStatus.STOPPED and is_stopping(state.ended_at, traces, self._now_ms()):
            return stopping(state, asked, traces)
        return ended(state, asked, end, traces)

    async def find(self, run_id: str, caller: Caller) -> tuple[Asked, RunState | None]:
        """What a run was created with, and its state once somebody has looked at it."""
        await self._runs.check(run_id, caller)
        state, _ = await loading.load(self._broker, run_id)
        asked = Asked.of(state.definition.name, state.meta) if state is not None else await self._told(run_id)
        if asked is None:
            raise no_such_run()
        return asked, state

    async def _told(self, run_id: str) -> Asked | None:
        """By its start, which waits for a decider."""
        told = await self._broker.mailboxes.first(run_id)
        message = json.loads(told) if told is not None else {}
        if message.get("type") != MessageType.START:
            return None
        return Asked.of(message["definition"].get("name"), message.get("meta") or {})

    async def receipt(self, run_id: str, caller: Caller) -> dict[str, Any]:
        """What its node signed. `NotFoundError` where nobody signed anything, or not yet."""
        _, state = await self.find(run_id, caller)
        if state is None:
            raise NotFoundError(NOT_ENDED)
        return await self._receipts.of(state, RUN_STEP)

    async def stop(self, run_id: str, caller: Caller) -> bool:
        """Ask a run to end. One that has ended stays as it is. Whether there was anybody to tell."""
        await self.find(run_id, caller)
        return await self._orders.cancel(run_id, caller, reason="stopped by its caller")


# --- what is sent ------------------------------------------------------------------------------------------


def _body(wish: Creation, claim: _Claim, caller: Caller) -> dict[str, Any]:
    """The start of the run: the same for the same claim, whoever sends it."""
    definition = definition_of(wish.request, claim.image)
    asked = Asked(wish.request.image_ref, claim.evidence, wish.request.workflow_context)
    meta = {
        "traceparent": wish.traceparent,
        "idempotency_key": wish.idempotency_key,
        "by": claim.by,
        "tenant": caller.tenant if caller.tenant != DEFAULT_TENANT else None,
        META: asked.plain(),
    }
    return {
        "definition": json.loads(definition.canonical()),
        "digest": definition.digest,
        "input": None,
        "meta": {name: value for name, value in meta.items() if value},
    }


def definition_of(request: CreateRunRequest, image: str) -> Definition:
    """One step that runs a pinned image. An empty command is the image's own, as in Kubernetes."""
    limits = request.resources
    sandbox = {
        "image": image,
        "command": request.command or None,
        "args": request.args or None,
        "env": request.env_allowlist,
        "timeout": limits.timeout_seconds * 1000,
        "cpu_millis": limits.cpu_millis,
        "memory_mib": limits.memory_mb,
        "network": request.network_policy_profile,
        "must_succeed": True,
    }
    step = {"id": RUN_STEP, "sandbox": sandbox, "retry": {"attempts": request.max_attempts}}
    return Definition.model_validate({"name": RUN_WORKFLOW, "steps": [step]})


def _check_size(request: CreateRunRequest) -> None:
    """Before anything is asked or promised: it must fit into the start of a run."""
    if len(definition_of(request, request.image_ref).canonical()) > MAX_BYTES:
        raise InvalidRequestError(f"command and args: the request has more than {MAX_BYTES} bytes")


def _wish(request: CreateRunRequest) -> RunWish:
    limits = request.resources
    return RunWish(
        network=request.network_policy_profile,
        cpu_millis=limits.cpu_millis,
        memory_mib=limits.memory_mb,
        timeout_seconds=limits.timeout_seconds,
    )


def _undecided(error: DigestResolutionError) -> RunDeniedError:
    """Without the registry's word. What a registry on our own machine did is for our operator alone: told to callers,
    it would tell them which of its ports are open, and what speaks there."""
    known = error.evidence or {}
    if is_loopback_registry(str(known.get("registry"))):
        _log.warning("runner.loopback_registry", image=known.get("image"), code=error.code, detail=error.detail)
        return _denied(NOT_HERE, error.reason, known)
    if not isinstance(error, RegistryUnavailableError):
        return _denied(error.detail, error.reason, known)
    detail = f"{error.detail}; the registry could not be asked: the same may be allowed later"
    return _denied(detail, error.reason, known, retry_after_seconds=error.retry_after_seconds)


def _denied(
    detail: str, reason: str, known: Mapping[str, Any], retry_after_seconds: int | None = None
) -> RunDeniedError:
    evidence = DenialEvidence.model_validate({**known, "denial_reason": reason, "detail": detail})
    said = evidence.model_dump(mode="json")
    return RunDeniedError(detail, reason=reason, evidence=said, retry_after_seconds=retry_after_seconds)


def _claim_key(key: str, tenant: str) -> str:
    """A tenant's keys are its own; where those for workflows lie, whose names are others."""
    place = hashlib.sha256(f"{RUN_WORKFLOW}\n{key}".encode()).hexdigest()
    return place if tenant == DEFAULT_TENANT else f"{tenant}.{place}"
