"""Workers over HTTP, for whoever looks after them; what they themselves say and are told is the bridge's."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.console.dialled import DIALLED
from fumehood.control.directory import Directory
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.queries import Query
from fumehood.door.schema import Responses
from fumehood.wire import directory_api
from fumehood.wire.protocol import WorkerRegistration

PATHS = (directory_api.WORKERS_PATH,)
MODELS: schema.Models = [(directory_api.WorkerList, "serialization")]
MOST = 200
"""Of which each may say 64 KiB about itself."""

_LIST: Responses = {200: schema.answer("WorkerList", "Workers by name")}


def workers_router(directory: Directory) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get(
        directory_api.WORKERS_PATH,
        **schema.operation(
            "list_workers",
            "List workers that are there, however they came, and what waits for them",
            _LIST,
            *schema.paged(MOST),
            token=schema.BRIDGE,
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        found, following = await directory.workers(
            after=query.text("after", 128) or "", limit=query.number("limit", 50, 1, MOST)
        )
        waiting = await directory.waiting()
        types = sorted({name for one in found if one.transport != DIALLED for name in one.task_types})
        return json_answer(
            directory_api.WorkerList(
                workers=[_view(one) for one in found],
                waiting={name: waiting.get(name, 0) for name in types},
                next=following,
            )
        )

    return router


def _view(worker: WorkerRegistration) -> directory_api.WorkerView:
    return directory_api.WorkerView(
        worker_id=worker.worker_id,
        task_types=worker.task_types,
        max_tasks=worker.max_tasks,
        language=worker.language,
        transport=worker.transport,
        metadata=worker.metadata,
    )
