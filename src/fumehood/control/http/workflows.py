"""Workflows over HTTP: applied, listed, shown."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema, views
from fumehood.control.http.answers import json_answer
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.queries import Query
from fumehood.control.workflows import Workflows
from fumehood.door.bodies import JSON, check_media_type
from fumehood.door.schema import Responses, problem_response, ref
from fumehood.wire import run_api

PATHS = (run_api.WORKFLOWS_PATH, run_api.WORKFLOW_PATH)
MOST = 1000

_NAME = schema.path("name", schema.NAME_PATTERN)
_APPLY = schema.guarded(
    {
        200: schema.answer("WorkflowSummary", "The name had another definition before, or this very one"),
        201: schema.answer("WorkflowSummary", "The name is new"),
        400: problem_response("invalid-definition", "invalid-request", model="DefinitionProblem"),
        409: problem_response("conflict"),
    },
    body=True,
)
_LIST: Responses = {200: schema.answer("WorkflowList", "Workflows by name")}
_SHOW: Responses = {
    200: schema.answer("WorkflowView", "The workflow with its definition"),
    404: problem_response("not-found"),
}
_DIGEST = schema.query(
    "digest", "Another definition than the current one", {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
)


def workflows_router(workflows: Workflows) -> APIRouter:
    router = APIRouter(tags=["workflows"])

    @router.put(
        run_api.WORKFLOW_PATH,
        summary="Make a definition the current one of its name",
        operation_id="apply_workflow",
        response_class=Response,
        responses=_APPLY,
        openapi_extra=schema.extra(
            _NAME, body={JSON: ref("Definition")} | {kind: {"type": "string"} for kind in schema.YAML}
        ),
    )
    async def apply(request: Request) -> Response:
        kind = check_media_type(request, schema.DEFINITION_TYPES)
        Query(request)
        name, tenant = request.path_params["name"], caller_of(request).tenant
        pointer, changed = await workflows.apply(name, await request.body(), is_json=kind == JSON, tenant=tenant)
        note(request, digest=pointer.digest, version=str(pointer.version))
        if not changed:
            note_unchanged(request)
        return json_answer(views.summary(pointer), 201 if changed and pointer.version == 1 else 200)

    @router.get(
        run_api.WORKFLOWS_PATH,
        **schema.operation("list_workflows", "List workflows by name", _LIST, *schema.paged(MOST)),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        found, following = await workflows.list(
            tenant=caller_of(request).tenant,
            after=query.text("after", 128) or "",
            limit=query.number("limit", 100, 1, MOST),
        )
        return json_answer(run_api.WorkflowList(workflows=[views.summary(one) for one in found], next=following))

    @router.get(
        run_api.WORKFLOW_PATH,
        **schema.operation("show_workflow", "Show a workflow and a definition of its", _SHOW, _NAME, _DIGEST),
    )
    async def show(request: Request) -> Response:
        digest = Query(request, ("digest",)).text("digest", 71)
        stored, pointer = await workflows.show(request.path_params["name"], digest, tenant=caller_of(request).tenant)
        return json_answer(views.workflow(stored, pointer))

    return router
