"""The Runner API over HTTP, contract 2: its paths, bodies and answers to the letter, and ours beside them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of, idempotency_key
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.queries import Query
from fumehood.control.runner import Creation, Runner
from fumehood.control.runner_list import ListWish, RunnerList
from fumehood.control.telemetry import Telemetry
from fumehood.door.schema import REQUEST_ID, RETRY, Responses, header, problem_response
from fumehood.door.telemetry import current_traceparent
from fumehood.errors import InvalidRequestError, RunDeniedError
from fumehood.images.reference import is_digest
from fumehood.wire import run_api, runner_api
from fumehood.wire.runner_api import CreateRunRequest, RunnerStatus

PATHS = (
    runner_api.RUNS_PATH,
    runner_api.RUN_PATH,
    runner_api.STOP_PATH,
)
MODELS: schema.Models = [
    (CreateRunRequest, "validation"),
    (runner_api.CreateRunResponse, "serialization"),
    (runner_api.GetRunResponse, "serialization"),
    (runner_api.ListRunsResponse, "serialization"),
    (runner_api.DeniedProblem, "serialization"),
]
MOST = 200
LONGEST_CURSOR = 256
_STATUSES = [status.value for status in RunnerStatus]
_DIGEST = "^sha256:[a-f0-9]{64}$"

_RUN = schema.path("run_id", schema.RUN_PATTERN)
_KEY = schema.in_header(
    run_api.IDEMPOTENCY_HEADER,
    "The same key and body again, within 7 days, is the same run, and the same answer with status 200",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_MOMENT = {"type": "string", "format": "date-time"}
_FILTERS = ("status", "image_digest", "created_after", "created_before", "limit", "cursor")
_QUERY = (
    schema.query("status", "Only runs that stand so", {"type": "string", "enum": _STATUSES}),
    schema.query("image_digest", "Only runs of this image", {"type": "string", "pattern": _DIGEST}),
    schema.query("created_after", "Only runs that were created at this moment or later", _MOMENT),
    schema.query("created_before", "Only runs that were created earlier than this", _MOMENT),
    schema.query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}),
    schema.query("cursor", "`next` of the page before", {"type": "string", "maxLength": LONGEST_CURSOR}),
)
_LATER = {
    "Retry-After": header(
        "Seconds, where the registry could not be asked and the same may be allowed later",
        {"type": "integer", "minimum": 1},
        required=False,
    )
}
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_CREATED: Responses = {
    200: schema.answer("CreateRunResponse", "The key was used before, for this run; as it was answered then"),
    201: schema.answer("CreateRunResponse", "Run created"),
    403: problem_response("policy-denied", "forbidden", extra_headers=_LATER, model="DeniedProblem"),
    409: problem_response("conflict"),
    429: problem_response("quota-exceeded", extra_headers=RETRY),
}
_GET: Responses = {200: schema.answer("GetRunResponse", "Run state"), **_NOT_FOUND}
_LIST: Responses = {
    200: schema.answer("ListRunsResponse", "Runs, newest first"),
    503: problem_response("index-unavailable", "broker-unavailable", "broker-full", extra_headers=RETRY),
}
_STOPPED: Responses = {202: {"description": "Stop initiated", "headers": REQUEST_ID}, **_NOT_FOUND}


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """What lies behind the routes."""

    runner: Runner
    lists: RunnerList
    telemetry: Telemetry


def runner_router(parts: RunnerParts) -> APIRouter:
    router = APIRouter(tags=["runner"])
    _of_runs(router, parts)
    _of_one(router, parts)
    return router


def _of_runs(router: APIRouter, parts: RunnerParts) -> None:
    @router.post(
        runner_api.RUNS_PATH,
        **schema.operation(
            "createRun",
            "Create sandboxed run",
            _CREATED,
            _KEY,
            body="CreateRunRequest",
            description="The image is admitted first, by this server's policy: its registry, then what its tag means, "
            "then who signed that. Only the digest is ever run.",
        ),
    )
    async def create(request: Request) -> Response:
        asked = await body_of(CreateRunRequest, request)
        wish = Creation(asked, idempotency_key(request), current_traceparent())
        try:
            made, created = await parts.runner.create(wish, caller_of(request))
        except RunDeniedError as error:
            note(request, denied=error.reason, image=str(error.evidence.get("image") or ""))
            raise
        replayed = str(not created).lower()
        note(request, target=made.run_id, image_digest=made.image_digest, replayed=replayed)
        parts.telemetry.metrics.starts.labels(replayed).inc()
        return json_answer(made, 201 if created else 200)

    @router.get(
        runner_api.RUNS_PATH,
        **schema.operation(
            "listRuns",
            "List runs of single images",
            _LIST,
            *_QUERY,
            description="Newest first. A run is in the list moments after it was first looked at. A page of runs that "
            "are `queued`, `starting` or `running` may hold fewer than `limit`, and have others behind it.",
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, _FILTERS)
        cursor, limit = query.text("cursor", LONGEST_CURSOR), query.number("limit", 50, 1, MOST)
        page = await parts.lists.page(caller_of(request).tenant, _wish(query), cursor=cursor, limit=limit)
        return json_answer(page)


def _of_one(router: APIRouter, parts: RunnerParts) -> None:
    @router.get(runner_api.RUN_PATH, **schema.operation("getRun", "Get run status and policy evidence", _GET, _RUN))
    async def get(request: Request) -> Response:
        Query(request)
        return json_answer(await parts.runner.get(request.path_params["run_id"], caller_of(request)))

    @router.post(
        runner_api.STOP_PATH,
        **schema.operation(
            "stopRun",
            "Stop a run and cleanup pod",
            _STOPPED,
            _RUN,
            description="The command gets SIGTERM, and SIGKILL ten seconds later. A run that has ended stays as it is.",
        ),
    )
    async def stop(request: Request) -> Response:
        Query(request)
        if not await parts.runner.stop(request.path_params["run_id"], caller_of(request)):
            note_unchanged(request)
        return Response(status_code=202)


def _wish(query: Query) -> ListWish:
    status, digest = query.choice("status", _STATUSES), query.text("image_digest", 128)
    if digest is not None and not is_digest(digest):
        raise InvalidRequestError("image_digest: must be sha256: and 64 hexadecimal digits")
    return ListWish(
        status=RunnerStatus(status) if status is not None else None,
        image_digest=digest,
        created_after=query.moment("created_after"),
        created_before=query.moment("created_before"),
    )
