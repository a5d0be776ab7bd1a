"""Runs over HTTP: started, shown, read."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema, views
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import agreed_key, body_of
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.control.runs import Queued, Runs, Start
from fumehood.control.telemetry import Telemetry
from fumehood.door.bodies import JSON
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.door.telemetry import current_traceparent
from fumehood.errors import NotFoundError
from fumehood.wire import run_api

PATHS = (run_api.START_PATH, run_api.RUN_PATH, run_api.HISTORY_PATH, run_api.BLOB_PATH)
MOST = 1000

_RUN = schema.path("run_id", schema.RUN_PATTERN)
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_KEY = schema.in_header(
    run_api.IDEMPOTENCY_HEADER,
    "The same as `idempotency_key`",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_START: Responses = {
    200: schema.answer("StartRunResponse", "The key was used before, for this run"),
    201: schema.answer("StartRunResponse", "The run is accepted, and will be run"),
    409: problem_response("conflict"),
    429: problem_response("quota-exceeded", extra_headers=RETRY),
    **_NOT_FOUND,
}
_GET: Responses = {200: schema.answer("RunView", "The run as it is now"), **_NOT_FOUND}
_HISTORY: Responses = {200: schema.answer("HistoryPage", "A part of its history"), **_NOT_FOUND}
_BLOB: Responses = {
    200: schema.raw_answer("The value: any JSON, of at most 32 MiB"),
    413: problem_response("payload-too-large"),
    **_NOT_FOUND,
}
_NAME = schema.path("name", schema.NAME_PATTERN)
_ITEMS = schema.query("items", "Whether the items of maps are among the steps", {"type": "boolean"})
_DIGEST = {
    **schema.path("digest", "^(sha256:)?[0-9a-f]{64}$"),
    "description": "What stands as `$blob` in the run; the hash alone will do",
}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**53}


def runs_router(runs: Runs, telemetry: Telemetry) -> APIRouter:
    router = APIRouter(tags=["runs"])

    @router.post(
        run_api.START_PATH,
        **schema.operation("start_run", "Start a run of a workflow", _START, _NAME, _KEY, body="StartRunRequest"),
    )
    async def start(request: Request) -> Response:
        asked = await body_of(run_api.StartRunRequest, request)
        wish = Start(
            workflow=request.path_params["name"],
            input=asked.input,
            idempotency_key=agreed_key(request, asked.idempotency_key),
            traceparent=current_traceparent(),
            labels=asked.labels,
        )
        run_id, created = await runs.start(wish, caller_of(request))
        note(request, run_id=run_id, replayed=str(not created).lower())
        telemetry.metrics.starts.labels(str(not created).lower()).inc()
        return json_answer(run_api.StartRunResponse(run_id=run_id), 201 if created else 200)

    @router.get(run_api.RUN_PATH, **schema.operation("get_run", "Show a run", _GET, _RUN, _ITEMS))
    async def get(request: Request) -> Response:
        items = Query(request, ("items",)).flag("items")
        found = await runs.get(request.path_params["run_id"], caller_of(request))
        if isinstance(found, Queued):
            return json_answer(views.queued(found))
        return json_answer(await _with_content(runs, views.run(found, items=items)))

    @router.get(
        run_api.HISTORY_PATH,
        **schema.operation(
            "run_history",
            "Read what was decided about a run",
            _HISTORY,
            _RUN,
            schema.query("after", "Only records behind this number", _NUMBER),
            schema.query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": MOST}),
        ),
    )
    async def history(request: Request) -> Response:
        query, run_id = Query(request, ("after", "limit")), request.path_params["run_id"]
        after, limit = query.number("after", 0, 0, 2**53), query.number("limit", 100, 1, MOST)
        found, following = await runs.history(run_id, caller_of(request), after=after, limit=limit)
        page = [views.record(seq, decided) for seq, decided in found]
        return json_answer(run_api.HistoryPage(run_id=run_id, records=page, next=following))

    @router.get(
        run_api.BLOB_PATH,
        **schema.operation(
            "read_run_value",
            "Read a large value of a run, which other answers have by reference",
            _BLOB,
            _RUN,
            _DIGEST,
        ),
    )
    async def value(request: Request) -> Response:
        Query(request)
        ref = _ref(request.path_params["digest"])
        content = await runs.content(request.path_params["run_id"], ref, caller_of(request))
        return Response(content, media_type=JSON)

    return router


def _ref(digest: str) -> str:
    """What cannot be a hash is no value's."""
    found = re.fullmatch(r"(?:sha256:)?([0-9a-f]{64})", digest)
    if found is None:
        raise NotFoundError("this run has no such value")
    return f"sha256:{found[1]}"


async def _with_content(runs: Runs, view: run_api.RunView) -> run_api.RunView:
    """With what stands behind references, as far as one answer may hold it."""
    said = {"input": view.input, "output": view.output, "steps": {name: s.output for name, s in view.steps.items()}}
    shown = await runs.shown(said)
    if shown is said:
        return view
    steps = {name: step.model_copy(update={"output": shown["steps"][name]}) for name, step in view.steps.items()}
    return view.model_copy(update={"input": shown["input"], "output": shown["output"], "steps": steps})
