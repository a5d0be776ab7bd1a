"""Task types over HTTP: listed, limited, and let go again."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.directory import Directory
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.queries import Query
from fumehood.control.rates import Limit, Rates, parse
from fumehood.door.schema import REQUEST_ID, Responses, problem_response
from fumehood.wire import task_type_api
from fumehood.wire.base import TASK_TYPE_FORM

PATHS = (task_type_api.TASK_TYPES_PATH, task_type_api.LIMIT_PATH)
MODELS: schema.Models = [
    (task_type_api.SetLimitRequest, "validation"),
    (task_type_api.TaskTypeLimit, "serialization"),
    (task_type_api.TaskTypeList, "serialization"),
]
MOST = 1000

_TYPE = schema.path("task_type", TASK_TYPE_FORM)
_LIST: Responses = {200: schema.answer("TaskTypeList", "Task types by name")}
_SET: Responses = {200: schema.answer("TaskTypeLimit", "The limit that counts from now on")}
_CLEAR: Responses = {
    204: {"description": "It has no limit any more", "headers": REQUEST_ID},
    404: problem_response("not-found"),
}


def task_types_router(rates: Rates, directory: Directory) -> APIRouter:
    router = APIRouter(tags=["task types"])

    @router.get(
        task_type_api.TASK_TYPES_PATH,
        **schema.operation(
            "list_task_types",
            "List task types that have a limit, or tasks that wait",
            _LIST,
            *schema.paged(MOST),
            token=schema.BRIDGE,
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        after, most = query.text("after", 128) or "", query.number("limit", 100, 1, MOST)
        limits, waiting = dict(await rates.list()), await directory.waiting()
        known = sorted(name for name in {*limits, *waiting} if name > after)
        page = [
            task_type_api.TaskTypeView(
                task_type=name, waiting=waiting.get(name, 0), limit=_view(limits[name]) if name in limits else None
            )
            for name in known[:most]
        ]
        following = page[-1].task_type if len(known) > most else None
        return json_answer(task_type_api.TaskTypeList(task_types=page, next=following))

    @router.put(
        task_type_api.LIMIT_PATH,
        **schema.operation(
            "set_task_type_limit",
            "Limit how quickly tasks of a type go out",
            _SET,
            _TYPE,
            body="SetLimitRequest",
            description="For all servers and runs together, within about a second. What waits for its turn already "
            "keeps its time. The same limit again changes nothing.",
        ),
    )
    async def limited(request: Request) -> Response:
        asked = await body_of(task_type_api.SetLimitRequest, request)
        limit = parse(asked.rate, asked.burst)
        await rates.set(request.path_params["task_type"], limit)
        return json_answer(_view(limit))

    @router.delete(
        task_type_api.LIMIT_PATH,
        **schema.operation(
            "clear_task_type_limit",
            "Let tasks of a type go out at once again",
            _CLEAR,
            _TYPE,
            description="What waits for its turn already keeps its time.",
        ),
    )
    async def cleared(request: Request) -> Response:
        Query(request)
        await rates.clear(request.path_params["task_type"])
        return Response(status_code=204)

    return router


def _view(limit: Limit) -> task_type_api.TaskTypeLimit:
    return task_type_api.TaskTypeLimit(rate=limit.rate, burst=limit.burst)
