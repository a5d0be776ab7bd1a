"""The routes themselves: a request in, the node's answer out."""

from __future__ import annotations

import asyncio
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from fumehood.door.bodies import check_media_type
from fumehood.door.schema import NOT_ALLOWED, text_response
from fumehood.door.telemetry import METRICS_MEDIA_TYPE
from fumehood.errors import NotFoundError
from fumehood.node.http import schema
from fumehood.node.service import JobAnswer, JobService
from fumehood.node.telemetry import Telemetry
from fumehood.wire.base import canonical_sha256
from fumehood.wire.receipts import RECEIPT_KEY_HEADER
from fumehood.wire.worker_api import (
    EFFECTIVE_TIMEOUT_HEADER,
    EXIT_REASON_HEADER,
    RECEIPT_PATH,
    RUN_JOB_PATH,
    RunJobRequest,
    parse_run_job_request,
)

HEALTH_PATH, READY_PATH, METRICS_PATH = "/healthz", "/readyz", "/metrics"
PATHS = (RUN_JOB_PATH, RECEIPT_PATH, HEALTH_PATH, READY_PATH, METRICS_PATH)


def worker_router(service: JobService) -> APIRouter:
    """Contract 1."""
    router = APIRouter(tags=["worker"])
    detached = _Detached(service)

    @router.post(
        RUN_JOB_PATH,
        summary="Run a job in a sandbox and answer with how it ended",
        operation_id="run_job",
        response_class=Response,
        responses=schema.RUN_JOB_RESPONSES,
        openapi_extra=schema.RUN_JOB_EXTRA,
    )
    async def run_job(request: Request) -> Response:
        check_media_type(request)
        job = parse_run_job_request(await request.body())
        return _to_response(await detached.run(job))

    @router.get(
        RECEIPT_PATH,
        summary="The signed claim of how a job ended",
        operation_id="get_job_receipt",
        response_class=Response,
        responses=schema.RECEIPT_RESPONSES,
        openapi_extra=schema.RECEIPT_EXTRA,
    )
    async def receipt(request: Request) -> Response:
        return Response(await service.receipt(_job_id(request)), media_type="application/json")

    return router


def health_router(service: JobService, telemetry: Telemetry) -> APIRouter:
    """For probes and collectors."""
    router = APIRouter(tags=["health"], default_response_class=PlainTextResponse)
    alive = text_response("The process answers", "ok")
    ready = text_response("A container can be run", "ready")
    not_ready = text_response("Why no container can be run")

    @router.get(HEALTH_PATH, operation_id="healthz", responses={200: alive, **NOT_ALLOWED})
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok")

    @router.get(READY_PATH, operation_id="readyz", responses={200: ready, 503: not_ready, **NOT_ALLOWED})
    async def readyz() -> PlainTextResponse:
        state = service.readiness()
        if not state.ready:
            return PlainTextResponse(state.reason, 503)
        return PlainTextResponse("ready" if state.reason in ("", "ready") else f"ready\n{state.reason}\n")

    @router.get(
        METRICS_PATH,
        operation_id="metrics",
        responses=schema.METRICS_RESPONSES,
        openapi_extra={"security": [{}, {schema.TOKEN_SCHEME: []}]},
    )
    async def metrics() -> Response:
        return Response(telemetry.exposition(), headers={"content-type": METRICS_MEDIA_TYPE})

    return router


class _Detached:
    """Runs jobs so that nothing which ends a request, not even its cancellation, reaches the job."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._running: set[asyncio.Task[JobAnswer]] = set()

    async def run(self, request: RunJobRequest) -> JobAnswer:
        task = asyncio.create_task(self._service.run_job(request, canonical_sha256(request)))
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[JobAnswer]) -> None:
        """Look at the outcome: where the request is gone nobody else will."""
        self._running.discard(task)
        if not task.cancelled():
            task.exception()


def _job_id(request: Request) -> str:
    """In any case, as in requests."""
    try:
        return str(UUID(request.path_params["job_id"]))
    except ValueError:
        raise NotFoundError("there is no such job here: a job_id is a UUID") from None


def _to_response(answer: JobAnswer) -> Response:
    headers = {EFFECTIVE_TIMEOUT_HEADER: str(answer.effective_timeout_seconds)}
    if answer.exit_reason is not None:
        headers[EXIT_REASON_HEADER] = answer.exit_reason
    if answer.receipt_key is not None:
        headers[RECEIPT_KEY_HEADER] = answer.receipt_key
    return Response(answer.response.model_dump_json(), headers=headers, media_type="application/json")
