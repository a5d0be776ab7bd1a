"""Orders over HTTP: to stop and to go on, signals, approvals, and repairs by hand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.callers import Caller
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_if_any
from fumehood.control.http.callers import caller_of, known_as, note, note_unchanged
from fumehood.control.orders import Orders
from fumehood.door.schema import Responses, problem_response
from fumehood.engine.fold import COMPLETE, SKIP
from fumehood.wire import order_api, run_api
from fumehood.wire.order_api import OrderResponse, Verdict
from fumehood.wire.times import moment

PATHS = (
    run_api.CANCEL_PATH,
    order_api.RETRY_PATH,
    order_api.SIGNAL_PATH,
    order_api.APPROVE_PATH,
    order_api.REJECT_PATH,
    order_api.TOKEN_PATH,
    order_api.SKIP_PATH,
    order_api.COMPLETE_PATH,
    order_api.APPROVALS_PATH,
)
OPEN_PATHS = (order_api.APPROVALS_PATH,)
"""What comes here brings its key in its body."""
MODELS: schema.Models = [
    (order_api.SignalRequest, "validation"),
    (order_api.ApprovalRequest, "validation"),
    (order_api.TokenRequest, "validation"),
    (order_api.TokenResponse, "serialization"),
    (order_api.TokenDecision, "validation"),
    (order_api.RetryRequest, "validation"),
    (order_api.SkipRequest, "validation"),
    (order_api.CompleteRequest, "validation"),
    (OrderResponse, "serialization"),
]

_RUN = schema.path("run_id", schema.RUN_PATTERN)
_STEP = schema.path("step", schema.RUN_PATTERN)
_SIGNAL = schema.path("signal", schema.RUN_PATTERN)
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_REFUSED: Responses = {**_NOT_FOUND, 409: problem_response("conflict", "archived")}
_ANSWERS: Responses = {
    200: schema.answer("OrderResponse", "It has had its effect"),
    202: schema.answer("OrderResponse", "It is accepted, and will have its effect"),
    **_REFUSED,
}
_CANCELLED: Responses = {
    202: schema.answer("StartRunResponse", "The run will end, unless it has ended before"),
    **_NOT_FOUND,
}
_MADE: Responses = {201: schema.answer("TokenResponse", "The token, which is shown nowhere else"), **_REFUSED}


def orders_router(orders: Orders) -> APIRouter:
    router = APIRouter(tags=["runs"])
    _of_runs(router, orders)
    _of_steps(router, orders)
    _of_tokens(router, orders)
    return router


def _of_runs(router: APIRouter, orders: Orders) -> None:
    @router.post(
        run_api.CANCEL_PATH,
        **schema.operation("cancel_run", "Ask a run to end", _CANCELLED, _RUN, body="CancelRunRequest", required=False),
    )
    async def cancel(request: Request) -> Response:
        asked, run_id = await body_if_any(run_api.CancelRunRequest, request), request.path_params["run_id"]
        if not await orders.cancel(run_id, caller_of(request), reason=asked.reason, force=asked.force):
            note_unchanged(request)
        return json_answer(run_api.StartRunResponse(run_id=run_id), 202)

    @router.post(order_api.RETRY_PATH, **_described("retry_run", "Take up a run again where it failed", "RetryRequest"))
    async def retry(request: Request) -> Response:
        asked, run_id = await body_if_any(order_api.RetryRequest, request), request.path_params["run_id"]
        return _answer(run_id, await orders.retry(run_id, caller_of(request), reason=asked.reason))

    @router.post(
        order_api.SIGNAL_PATH, **_described("signal_run", "Tell a run something", "SignalRequest", parameter=_SIGNAL)
    )
    async def signal(request: Request) -> Response:
        asked, run_id = await body_if_any(order_api.SignalRequest, request), request.path_params["run_id"]
        name = request.path_params["signal"]
        return _answer(run_id, await orders.signal(run_id, caller_of(request), name, asked.data, asked.id))


def _of_steps(router: APIRouter, orders: Orders) -> None:
    @router.post(order_api.APPROVE_PATH, **_described("approve_step", "Say yes", "ApprovalRequest", parameter=_STEP))
    async def approve(request: Request) -> Response:
        return await decided(request, approved=True)

    @router.post(order_api.REJECT_PATH, **_described("reject_step", "Say no", "ApprovalRequest", parameter=_STEP))
    async def reject(request: Request) -> Response:
        return await decided(request, approved=False)

    async def decided(request: Request, *, approved: bool) -> Response:
        asked, run_id = await body_if_any(order_api.ApprovalRequest, request), request.path_params["run_id"]
        step, caller = request.path_params["step"], caller_of(request)
        done = await orders.approve(run_id, step, caller, approved=approved, comment=asked.comment)
        return _answer(run_id, done)

    @router.post(
        order_api.SKIP_PATH,
        **_described("skip_step", "Go on without a step", "SkipRequest", parameter=_STEP, required=True),
    )
    async def skip(request: Request) -> Response:
        asked, run_id = await body_if_any(order_api.SkipRequest, request), request.path_params["run_id"]
        step, caller = request.path_params["step"], caller_of(request)
        return _answer(run_id, await orders.override(run_id, step, caller, action=SKIP, reason=asked.reason))

    @router.post(
        order_api.COMPLETE_PATH,
        **_described("complete_step", "Say what a step gave", "CompleteRequest", parameter=_STEP, required=True),
    )
    async def complete(request: Request) -> Response:
        asked, run_id = await body_if_any(order_api.CompleteRequest, request), request.path_params["run_id"]
        step, caller = request.path_params["step"], caller_of(request)
        done = await orders.override(run_id, step, caller, action=COMPLETE, reason=asked.reason, output=asked.output)
        return _answer(run_id, done)


def _of_tokens(router: APIRouter, orders: Orders) -> None:
    @router.post(
        order_api.TOKEN_PATH,
        **schema.operation(
            "make_approval_token",
            "Make a token by which somebody without a key can decide about a step",
            _MADE,
            _RUN,
            _STEP,
            body="TokenRequest",
        ),
    )
    async def token(request: Request) -> Response:
        asked = await body_if_any(order_api.TokenRequest, request)
        run_id, step = request.path_params["run_id"], request.path_params["step"]
        made, expires_ms = await orders.mint(
            run_id, step, caller_of(request), who=asked.for_, seconds=asked.expires_in_seconds
        )
        return json_answer(order_api.TokenResponse(token=made, expires_at=moment(expires_ms)), 201)

    @router.post(
        order_api.APPROVALS_PATH,
        **schema.operation(
            "decide_with_token", "Decide about a step with a token", _ANSWERS, body="TokenDecision", token=None
        ),
    )
    async def decide(request: Request) -> Response:
        asked = await body_if_any(order_api.TokenDecision, request)
        approved, claim = asked.decision is Verdict.APPROVE, orders.claim(asked.token)
        known_as(request, Caller(claim.tenant, f"token/{claim.who}", frozenset()))
        note(request, target=claim.run_id, step=claim.step, decision=asked.decision.value, made_by=claim.via)
        run_id, done = await orders.approve_with(asked.token, approved=approved, comment=asked.comment)
        return _answer(run_id, done)


def _described(
    operation: str, summary: str, model: str, *, parameter: dict[str, Any] | None = None, required: bool = False
) -> dict[str, Any]:
    parameters = [_RUN] if parameter is None else [_RUN, parameter]
    return schema.operation(operation, summary, _ANSWERS, *parameters, body=model, required=required)


def _answer(run_id: str, done: bool) -> Response:
    return json_answer(OrderResponse(run_id=run_id, done=done), 200 if done else 202)
