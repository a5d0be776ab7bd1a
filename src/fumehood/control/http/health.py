"""For probes and collectors."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from fumehood.control.http import schema
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.schema import CHALLENGE, NOT_ALLOWED, Responses, problem_response, text_response
from fumehood.door.telemetry import METRICS_MEDIA_TYPE

HEALTH_PATH, READY_PATH, METRICS_PATH = "/healthz", "/readyz", "/metrics"
PATHS = (HEALTH_PATH, READY_PATH, METRICS_PATH)

_ALIVE: Responses = {200: text_response("The process answers", "ok"), **NOT_ALLOWED}
_READY: Responses = {
    200: text_response("A write reached the broker within the last second", "ready"),
    503: text_response("Why nothing can be promised now"),
    **NOT_ALLOWED,
}
_METRICS: Responses = {
    200: text_response("Metrics in Prometheus' text format"),
    401: problem_response("unauthenticated", extra_headers=CHALLENGE),
    403: problem_response("forbidden"),
    **NOT_ALLOWED,
}


def health_router(service: Service, telemetry: Telemetry) -> APIRouter:
    router = APIRouter(tags=["health"], default_response_class=PlainTextResponse)

    @router.get(HEALTH_PATH, operation_id="healthz", responses=_ALIVE)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok")

    @router.get(READY_PATH, operation_id="readyz", responses=_READY)
    async def readyz() -> PlainTextResponse:
        state = await service.readiness()
        if not state.ready:
            return PlainTextResponse(state.reason, 503)
        return PlainTextResponse(f"ready\n{state.reason}\n" if state.reason else "ready")

    security: dict[str, Any] = {"security": [{}, {schema.ADMIN: []}]}

    @router.get(METRICS_PATH, operation_id="metrics", responses=_METRICS, openapi_extra=security)
    async def metrics() -> Response:
        return Response(telemetry.exposition(), headers={"content-type": METRICS_MEDIA_TYPE})

    return router
