"""The output of sandboxes over HTTP, as it is kept and as it appears: of runs of single images (the Runner API, with a
stream beyond its contract) and of sandbox steps in runs of workflows."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.events import Events
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.callers import caller_of
from fumehood.control.http.following import (
    AFTER,
    AGAIN,
    DRAINING,
    IsStillAllowed,
    after_in,
    always,
    answer,
    described,
)
from fumehood.control.http.queries import Query
from fumehood.control.run_logs import RunLogReader
from fumehood.control.runner import Runner
from fumehood.door.schema import REQUEST_ID, Responses, problem_response, ref
from fumehood.engine.state import RunState
from fumehood.wire import event_api, log_api, run_api, runner_api
from fumehood.wire.log_api import LogPosition
from fumehood.wire.sandbox import RUN_STEP

PATHS = (runner_api.LOGS_PATH, runner_api.LOG_STREAM_PATH, run_api.LOGS_PATH, run_api.LOG_STREAM_PATH)
_EVENTS = dict.fromkeys(log_api.EVENTS.values())
MODELS: schema.Models = [
    (runner_api.GetLogsResponse, "serialization"),
    *((model, "serialization") for model in _EVENTS),
]

_RUN = schema.path("run_id", schema.RUN_PATTERN)
_STEP = schema.path("step", schema.RUN_PATTERN)
_TAIL = schema.query(
    "tail_lines",
    "So many lines of each stream, from its end",
    {"type": "integer", "minimum": 1, "maximum": runner_api.MOST_TAIL_LINES, "default": runner_api.TAIL_LINES},
)
_KEPT: Responses = {200: schema.answer("GetLogsResponse", "Log payload"), 404: problem_response("not-found")}
_KEPT_DESCRIPTION = (
    "The last lines of each stream, in the newest attempt. At most 1 MiB of each is kept, its head and its tail, with "
    "the cut marked. While the command runs, what it has printed so far."
)
_POSITION = {
    "type": "string",
    "pattern": f"^{log_api.POSITION_PATTERN}$",
    "maxLength": log_api.LONGEST_POSITION,
    "examples": ["1.2048.0"],
}
_FOLLOWING = (
    schema.query("after", AFTER, _POSITION),
    schema.in_header(event_api.LAST_EVENT_ID, AGAIN, _POSITION),
)
_FOLLOWED: Responses = {
    200: described(
        "Server-Sent Events: `start` for each attempt, `stdout` and `stderr` as they come, `cut` where something is "
        "missing, and `end` when the command has ended for good, after which the stream closes",
        {"oneOf": [ref(model.__name__) for model in _EVENTS]},
    ),
    204: {"description": "It has ended, and all of it was seen", "headers": REQUEST_ID},
    404: problem_response("not-found"),
    503: DRAINING,
}
_FOLLOWED_DESCRIPTION = (
    "From the beginning, or behind an event that was seen: nothing is missed or told twice, at whichever server. Of a "
    "stream that prints very much, the middle is left out, and `cut` says so."
)


def run_logs_router(
    runner: Runner, reader: RunLogReader, events: Events, *, is_still_allowed: IsStillAllowed = always
) -> APIRouter:
    router = APIRouter()

    async def kept(run_id: str, step_id: str, state: RunState | None, lines: int) -> Response:
        shown = await reader.kept(run_id, state, step_id=step_id, tail_lines=lines)
        cut = shown.truncated.stdout or shown.truncated.stderr
        said = runner_api.GetLogsResponse(run_id=run_id, stdout=shown.stdout, stderr=shown.stderr, truncated=cut)
        return json_answer(said)

    async def followed(request: Request, step_id: str, after: LogPosition | None) -> Response:
        run_id, caller = request.path_params["run_id"], caller_of(request)
        return answer(await events.of_logs(run_id, caller, after, lambda: is_still_allowed(request), step_id=step_id))

    @router.get(
        runner_api.LOGS_PATH,
        tags=["runner"],
        **schema.operation(
            "getRunLogs", "Fetch bounded stdout/stderr logs", _KEPT, _RUN, _TAIL, description=_KEPT_DESCRIPTION
        ),
    )
    async def of_run(request: Request) -> Response:
        run_id, lines = request.path_params["run_id"], _lines(request)
        _, state = await runner.find(run_id, caller_of(request))
        return await kept(run_id, RUN_STEP, state, lines)

    @router.get(
        runner_api.LOG_STREAM_PATH,
        tags=["runner"],
        **schema.operation(
            "followRunLogs", "Follow what a run prints", _FOLLOWED, _RUN, *_FOLLOWING, description=_FOLLOWED_DESCRIPTION
        ),
    )
    async def follow_run(request: Request) -> Response:
        after = _after(request)
        await runner.find(request.path_params["run_id"], caller_of(request))
        return await followed(request, RUN_STEP, after)

    @router.get(
        run_api.LOGS_PATH,
        tags=["runs"],
        **schema.operation(
            "get_step_logs",
            "Read what a sandbox step printed",
            _KEPT,
            _RUN,
            _STEP,
            _TAIL,
            description=_KEPT_DESCRIPTION,
        ),
    )
    async def of_step(request: Request) -> Response:
        run_id, step, lines = request.path_params["run_id"], request.path_params["step"], _lines(request)
        return await kept(run_id, step, await reader.sandbox_run(run_id, step, caller_of(request)), lines)

    @router.get(
        run_api.LOG_STREAM_PATH,
        tags=["runs"],
        **schema.operation(
            "follow_step_logs",
            "Follow what a sandbox step prints",
            _FOLLOWED,
            _RUN,
            _STEP,
            *_FOLLOWING,
            description=_FOLLOWED_DESCRIPTION,
        ),
    )
    async def follow_step(request: Request) -> Response:
        step, after = request.path_params["step"], _after(request)
        await reader.sandbox_run(request.path_params["run_id"], step, caller_of(request))
        return await followed(request, step, after)

    return router


def _lines(request: Request) -> int:
    query = Query(request, ("tail_lines",))
    return query.number("tail_lines", runner_api.TAIL_LINES, 1, runner_api.MOST_TAIL_LINES)


def _after(request: Request) -> LogPosition | None:
    return after_in(request, Query(request, ("after",)), LogPosition.parse, log_api.LONGEST_POSITION)
