"""Receipts over HTTP: what a worker signed about a run, a step or a command, as it signed it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.callers import caller_of
from fumehood.control.http.queries import Query
from fumehood.control.run_receipts import RunReceipts
from fumehood.control.runner import Runner
from fumehood.door.bodies import JSON
from fumehood.door.schema import Responses, problem_response
from fumehood.wire import run_api, runner_api
from fumehood.wire.receipts import ReceiptEnvelope, encoded

PATHS = (runner_api.RECEIPT_PATH, run_api.RECEIPT_PATH)
MODELS: schema.Models = [(ReceiptEnvelope, "serialization")]
DESCRIPTION = (
    "A DSSE envelope, always the same: which request, by which image and why it was let in, what came of it by its "
    "SHA-256, and how it ended. `fumehood verify` checks it."
)
RECEIPT = schema.answer("ReceiptEnvelope", "As the worker signed it")
_GET: Responses = {200: RECEIPT, 404: problem_response("not-found")}
_RUN = schema.path("run_id", schema.RUN_PATTERN)
_STEP = schema.path("step", schema.RUN_PATTERN)


def receipts_router(runner: Runner, receipts: RunReceipts) -> APIRouter:
    router = APIRouter(tags=["receipts"])

    @router.get(
        runner_api.RECEIPT_PATH,
        **schema.operation("getRunReceipt", "Get what the node signed", _GET, _RUN, description=DESCRIPTION),
    )
    async def of_run(request: Request) -> Response:
        Query(request)
        return answered(await runner.receipt(request.path_params["run_id"], caller_of(request)))

    @router.get(
        run_api.RECEIPT_PATH,
        **schema.operation(
            "get_step_receipt",
            "Read what the node signed that ran a sandbox step",
            _GET,
            _RUN,
            _STEP,
            description=f"{DESCRIPTION} It is that of the step's last attempt.",
        ),
    )
    async def of_step(request: Request) -> Response:
        Query(request)
        run_id, step = request.path_params["run_id"], request.path_params["step"]
        return answered(await receipts.of_step(run_id, step, caller_of(request)))

    return router


def answered(receipt: dict[str, Any]) -> Response:
    """In the only form that it has as bytes."""
    return Response(encoded(receipt), media_type=JSON)
