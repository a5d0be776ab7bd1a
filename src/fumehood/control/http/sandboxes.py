"""Sandboxes that live on, over HTTP: made, listed, shown, extended, removed."""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.console.ports_http import SandboxesPort
from fumehood.control.http import sandbox_views, schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.console_problems import FROM_A_WORKER, SANDBOX, session_id_of, told
from fumehood.control.http.queries import Query
from fumehood.door.app import PlainRoute
from fumehood.door.schema import REQUEST_ID, Responses
from fumehood.errors import CommandFailedError
from fumehood.wire import sandbox_api
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Reason
from fumehood.wire.sandbox_api import CreateSandboxRequest, ExtendSandboxRequest

PATHS = (sandbox_api.SANDBOXES_PATH, sandbox_api.SANDBOX_PATH, sandbox_api.EXTEND_PATH)
MODELS: schema.Models = [
    (CreateSandboxRequest, "validation"),
    (ExtendSandboxRequest, "validation"),
    (sandbox_api.SandboxView, "serialization"),
    (sandbox_api.SandboxList, "serialization"),
]
MOST = 1000

_MISSING: Responses = {404: told("session-not-found")}
_CREATED: Responses = {201: schema.answer("SandboxView", "It is there"), **FROM_A_WORKER}
_SHOWN: Responses = {200: schema.answer("SandboxView", "The sandbox"), **FROM_A_WORKER, **_MISSING}
_REMOVED: Responses = {
    204: {"description": "Nothing of it is left", "headers": REQUEST_ID},
    **FROM_A_WORKER,
    **_MISSING,
}
_NOT_MADE = frozenset({Reason.NO_WORKER, Reason.NO_CAPACITY})


def sandboxes_router(sandboxes: SandboxesPort) -> APIRouter:
    router = APIRouter(tags=["sandboxes"], route_class=PlainRoute)
    _of_all(router, sandboxes)
    _of_one(router, sandboxes)
    return router


def _of_all(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.post(
        sandbox_api.SANDBOXES_PATH,
        **schema.operation(
            "create_sandbox",
            "Make a sandbox",
            _CREATED,
            body="CreateSandboxRequest",
            description="On any worker that has room. With a `sandbox_id` it can be asked for again, and is the same.",
        ),
    )
    async def create(request: Request) -> Response:
        asked = await body_of(CreateSandboxRequest, request)
        note(request, target=asked.sandbox_id)
        try:
            view = await sandboxes.create(caller_of(request), _session(asked))
        except CommandFailedError as error:
            if error.reason in _NOT_MADE:
                note_unchanged(request)
            raise _in_our_words(error) from error
        note(request, target=view.session_id, image=view.image)
        return json_answer(sandbox_views.sandbox(view), 201)

    @router.get(
        sandbox_api.SANDBOXES_PATH,
        **schema.operation(
            "list_sandboxes",
            "List sandboxes",
            {200: schema.answer("SandboxList", "Those of the caller's tenant")},
            *schema.paged(MOST),
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        after, limit = query.text("after", 128) or "", query.number("limit", 100, 1, MOST)
        found = sorted(await sandboxes.list(caller_of(request)), key=lambda one: one.session_id)
        behind = [view for view in found if view.session_id > after]
        page = [sandbox_views.listed(view) for view in behind[:limit]]
        following = page[-1].sandbox_id if len(behind) > limit else None
        return json_answer(sandbox_api.SandboxList(sandboxes=page, next=following))


def _in_our_words(error: CommandFailedError) -> CommandFailedError:
    """Workers call the lease by the name that it has in their contract."""
    return CommandFailedError(error.reason, error.detail.replace("lease_ttl_sec:", "lease_seconds:", 1))


def _session(asked: CreateSandboxRequest) -> wire.CreateSession:
    return wire.CreateSession(
        session_id=asked.sandbox_id or f"sbx-{secrets.token_hex(16)}",
        image=asked.image,
        lease_ttl_sec=asked.lease_seconds,
        network=asked.network,
        memory_mib=asked.memory_mib,
        cpu_millis=asked.cpu_millis,
        env=asked.env,
    )


def _of_one(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.post(
        sandbox_api.EXTEND_PATH,
        **schema.operation("extend_sandbox", "Let a sandbox live longer", _SHOWN, SANDBOX, body="ExtendSandboxRequest"),
    )
    async def extend(request: Request) -> Response:
        session_id, asked = session_id_of(request), await body_of(ExtendSandboxRequest, request)
        wish = wire.ExtendSession(session_id=session_id, lease_ttl_sec=asked.lease_seconds)
        try:
            view = await sandboxes.extend(caller_of(request), wish)
        except CommandFailedError as error:
            raise _in_our_words(error) from error
        return json_answer(sandbox_views.sandbox(view))

    @router.get(sandbox_api.SANDBOX_PATH, **schema.operation("get_sandbox", "Show a sandbox", _SHOWN, SANDBOX))
    async def show(request: Request) -> Response:
        Query(request)
        ref = wire.SessionRef(session_id=session_id_of(request))
        return json_answer(sandbox_views.sandbox(await sandboxes.get(caller_of(request), ref)))

    @router.delete(
        sandbox_api.SANDBOX_PATH,
        **schema.operation(
            "remove_sandbox",
            "Remove a sandbox",
            _REMOVED,
            SANDBOX,
            description="With everything that runs in it and all of its files.",
        ),
    )
    async def remove(request: Request) -> Response:
        Query(request)
        await sandboxes.remove(caller_of(request), wire.SessionRef(session_id=session_id_of(request)))
        return Response(status_code=204)
