"""Who may dial in as a worker, over HTTP: for administrators, since commands of all tenants go to every worker."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.console.credentials import Credentials, WorkerCredential
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.door.schema import Responses, problem_response
from fumehood.wire import credential_api as wire
from fumehood.wire.times import moment

PATHS = (wire.CREDENTIALS_PATH, wire.CREDENTIAL_PATH)
MODELS: schema.Models = [
    (wire.CreateWorkerRequest, "validation"),
    (wire.CreateWorkerResponse, "serialization"),
    (wire.WorkerCredentialView, "serialization"),
    (wire.WorkerCredentialList, "serialization"),
]
MOST = 1000

_MADE: Responses = {
    201: schema.answer("CreateWorkerResponse", "The worker, with its secret, which is shown nowhere else"),
    409: problem_response("conflict"),
}
_REVOKED: Responses = {
    200: schema.answer("WorkerCredentialView", "The worker that was revoked"),
    404: problem_response("not-found"),
}


def worker_credentials_router(credentials: Credentials) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.post(
        wire.CREDENTIALS_PATH,
        **schema.operation("create_worker", "Let a worker dial in", _MADE, body="CreateWorkerRequest"),
    )
    async def create(request: Request) -> Response:
        asked = await body_of(wire.CreateWorkerRequest, request)
        note(request, target=asked.worker_id)
        made, secret = await credentials.create(asked.worker_id, asked.labels, caller_of(request))
        answer = json_answer(wire.CreateWorkerResponse(**_view(made).model_dump(), worker_secret=secret), 201)
        answer.headers["cache-control"] = "no-store"
        return answer

    @router.get(
        wire.CREDENTIALS_PATH,
        **schema.operation(
            "list_worker_credentials",
            "List workers that may dial in, whether they are there or not",
            {200: schema.answer("WorkerCredentialList", "Workers by name")},
            *schema.paged(MOST, longest=wire.LONGEST_WORKER, after="Only workers behind this one"),
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        found, following = await credentials.list(
            after=query.text("after", wire.LONGEST_WORKER) or "", limit=query.number("limit", 100, 1, MOST)
        )
        return json_answer(wire.WorkerCredentialList(workers=[_view(one) for one in found], next=following))

    @router.delete(
        wire.CREDENTIAL_PATH,
        **schema.operation(
            "revoke_worker",
            "Let a worker dial in no more",
            _REVOKED,
            schema.path("worker_id", wire.WORKER_PATTERN, wire.LONGEST_WORKER),
            description="Where it is connected, that ends within moments.",
        ),
    )
    async def revoke(request: Request) -> Response:
        Query(request)
        return json_answer(_view(await credentials.revoke(request.path_params["worker_id"])))

    return router


def _view(one: WorkerCredential) -> wire.WorkerCredentialView:
    return wire.WorkerCredentialView(
        worker_id=one.worker_id, labels=dict(one.labels), created_at=moment(one.created_at), created_by=one.by
    )
