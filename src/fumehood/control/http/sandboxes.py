"""Sandboxes that live on, over HTTP: made, listed, shown, extended, removed."""

from __future__ import annotations

import hashlib
import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.console.ports_http import SandboxesPort
from fumehood.control.http import sandbox_views, schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of, idempotency_key
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.console_problems import FROM_A_WORKER, SANDBOX, session_id_of, told
from fumehood.control.http.queries import Query
from fumehood.door.app import PlainRoute
from fumehood.door.schema import REQUEST_ID, Responses
from fumehood.errors import CommandFailedError
from fumehood.wire import run_api, sandbox_api
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Reason
from fumehood.wire.sandbox_api import CreateSandboxRequest, ExtendSandboxRequest

PATHS = (sandbox_api.SANDBOXES_PATH, sandbox_api.SANDBOX_PATH, sandbox_api.EXTEND_PATH)
MODELS: schema.Models = [
    (CreateSandboxRequest, "validation"),
    (ExtendSandboxRequest, "validation"),
    (sandbox_api.SandboxView, "serialization"),
    (sandbox_api.CreatedSandboxView, "serialization"),
    (sandbox_api.SandboxList, "serialization"),
]
MOST = 1000

_MISSING: Responses = {404: told("session-not-found")}
_KEY = schema.in_header(
    run_api.IDEMPOTENCY_HEADER,
    "The same key with the same body is the same request: sent again, it still says whether it made the sandbox",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_MADE_WITH = schema.query(
    "idempotency_key",
    "Remove it only if the request with this `Idempotency-Key` made it",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_CREATED: Responses = {
    200: schema.answer("CreatedSandboxView", "Another request made it before"),
    201: schema.answer("CreatedSandboxView", "This request made it"),
    **FROM_A_WORKER,
}
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
            _KEY,
            body="CreateSandboxRequest",
            description="On any worker that has room. With a `sandbox_id` it can be asked for again, and is the same.",
        ),
    )
    async def create(request: Request) -> Response:
        asked = await body_of(CreateSandboxRequest, request)
        key = _hashed(idempotency_key(request) or secrets.token_hex(16))
        note(request, target=asked.sandbox_id)
        try:
            view = await sandboxes.create(caller_of(request), _session(asked, key))
        except CommandFailedError as error:
            if error.reason in _NOT_MADE:
                note_unchanged(request)
            raise _in_our_words(error) from error
        created = view.made_by == key if view.made_by else None
        note(request, target=view.session_id, image=view.image, replayed=str(not created).lower())
        shown = sandbox_views.sandbox(view).model_dump()
        return json_answer(sandbox_api.CreatedSandboxView(**shown, created=created), 201 if created else 200)

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


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _in_our_words(error: CommandFailedError) -> CommandFailedError:
    """Workers call the lease by the name that it has in their contract."""
    return CommandFailedError(error.reason, error.detail.replace("lease_ttl_sec:", "lease_seconds:", 1))


def _session(asked: CreateSandboxRequest, key: str) -> wire.CreateSession:
    return wire.CreateSession(
        session_id=asked.sandbox_id or f"sbx-{key[:32]}",
        made_by=key,
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
            _MADE_WITH,
            description="With everything that runs in it and all of its files.",
        ),
    )
    async def remove(request: Request) -> Response:
        key = Query(request, ("idempotency_key",)).text("idempotency_key", run_api.LONGEST_KEY)
        made_by = None if key is None else _hashed(key)
        await sandboxes.remove(
            caller_of(request), wire.RemoveSession(session_id=session_id_of(request), made_by=made_by)
        )
        return Response(status_code=204)
