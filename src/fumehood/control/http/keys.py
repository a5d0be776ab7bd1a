"""Keys, tenants and the audit list over HTTP."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.callers import Caller, Scope
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.control.index import Index
from fumehood.control.index_query import AuditFilter
from fumehood.control.index_rows import AuditRow
from fumehood.control.key_store import Key, Tenant
from fumehood.control.keys import Keys, NewKey
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.errors import ForbiddenError, InvalidRequestError, NotFoundError
from fumehood.wire import key_api
from fumehood.wire.times import moment

PATHS = (
    key_api.KEYS_PATH,
    key_api.KEY_PATH,
    key_api.TENANTS_PATH,
    key_api.TENANT_PATH,
    key_api.AUDIT_PATH,
    key_api.CALLER_PATH,
)
MODELS: schema.Models = [
    (key_api.CreateKeyRequest, "validation"),
    (key_api.CreateKeyResponse, "serialization"),
    (key_api.KeyView, "serialization"),
    (key_api.KeyList, "serialization"),
    (key_api.TenantRequest, "validation"),
    (key_api.TenantView, "serialization"),
    (key_api.TenantList, "serialization"),
    (key_api.AuditPage, "serialization"),
    (key_api.CallerView, "serialization"),
]
MOST = 1000
MOST_ENTRIES = 200
LONGEST_CURSOR = 256
LONGEST_FILTER = 256

_TENANT = schema.path("tenant", key_api.TENANT_PATTERN, key_api.LONGEST_NAME)
_OF_TENANT = schema.query(
    "tenant",
    "Another tenant's, for the administrator",
    {"type": "string", "pattern": key_api.TENANT_PATTERN, "maxLength": key_api.LONGEST_NAME},
)
_TEXT = {"type": "string", "maxLength": LONGEST_FILTER}
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_MADE: Responses = {
    201: schema.answer("CreateKeyResponse", "The key, with its token, which is shown nowhere else"),
    409: problem_response("conflict"),
}
_AUDIT: Responses = {
    200: schema.answer("AuditPage", "Entries, newest first"),
    503: problem_response("index-unavailable", "broker-unavailable", "broker-full", extra_headers=RETRY),
}


def keys_router(keys: Keys, index: Index) -> APIRouter:
    router = APIRouter(tags=["keys"])
    _add_key_routes(router, keys)
    _add_caller_route(router)
    _add_tenant_routes(router, keys)
    _add_audit_route(router, index)
    return router


# --- keys --------------------------------------------------------------------------------------------------


def _add_key_routes(router: APIRouter, keys: Keys) -> None:
    @router.post(key_api.KEYS_PATH, **schema.operation("create_key", "Make a key", _MADE, body="CreateKeyRequest"))
    async def create(request: Request) -> Response:
        asked = await body_of(key_api.CreateKeyRequest, request)
        wish = NewKey(asked.name, frozenset(asked.scopes), asked.tenant, asked.expires_in_seconds)
        note(request, name=asked.name, scopes=" ".join(sorted(wish.scopes)))
        key, token = await keys.create(wish, caller_of(request))
        note(request, tenant=key.tenant, target=key.id)
        answer = json_answer(key_api.CreateKeyResponse(**_view(key).model_dump(), key=token), 201)
        answer.headers["cache-control"] = "no-store"
        return answer

    @router.get(
        key_api.KEYS_PATH,
        **schema.operation(
            "list_keys",
            "List keys",
            {200: schema.answer("KeyList", "Keys of a tenant")},
            _OF_TENANT,
            *schema.paged(MOST, longest=key_api.LONGEST_NAME, after="Only keys behind this one"),
        ),
    )
    async def listed(request: Request) -> Response:
        query = Query(request, ("tenant", "after", "limit"))
        found, following = await keys.list(
            _tenant_asked(query, caller_of(request)),
            after=query.text("after", key_api.LONGEST_NAME) or "",
            limit=query.number("limit", 100, 1, MOST),
        )
        return json_answer(key_api.KeyList(keys=[_view(key) for key in found], next=following))

    @router.delete(
        key_api.KEY_PATH,
        **schema.operation(
            "revoke_key",
            "Revoke a key",
            {200: schema.answer("KeyView", "The key that was revoked"), **_NOT_FOUND},
            schema.path("key_id", "^[A-Za-z0-9-]+$", key_api.LONGEST_NAME),
            description="It opens nothing any more, at any server, within moments.",
        ),
    )
    async def revoke(request: Request) -> Response:
        Query(request)
        key = await keys.revoke(request.path_params["key_id"], caller_of(request))
        note(request, tenant=key.tenant, name=key.name)
        return json_answer(_view(key))


def _view(key: Key) -> key_api.KeyView:
    return key_api.KeyView(
        id=key.id,
        name=key.name,
        tenant=key.tenant,
        scopes=sorted(key.scopes),
        created_at=moment(key.created_at),
        created_by=key.by,
        expires_at=moment(key.expires_at) if key.expires_at is not None else None,
    )


def _tenant_asked(query: Query, caller: Caller) -> str:
    """The caller's own, unless it is the administrator and names another."""
    tenant = query.text("tenant", key_api.LONGEST_NAME)
    if tenant is None or tenant == caller.tenant:
        return caller.tenant
    if not caller.may(Scope.ALL):
        raise ForbiddenError("this token does not allow another tenant's")
    if not _is_tenant(tenant):
        raise InvalidRequestError("tenant: cannot be a tenant's name")
    return tenant


def _is_tenant(name: str) -> bool:
    return len(name) <= key_api.LONGEST_NAME and re.fullmatch(key_api.TENANT_PATTERN, name) is not None


# --- the caller --------------------------------------------------------------------------------------------


def _add_caller_route(router: APIRouter) -> None:
    @router.get(
        key_api.CALLER_PATH,
        **schema.operation(
            "get_caller",
            "Tell whose token this is",
            {200: schema.answer("CallerView", "Who asks, and what the token may do")},
            description="For whoever was given a token and wants to know whether it opens anything. Any token may ask.",
        ),
    )
    async def caller(request: Request) -> Response:
        Query(request)
        who = caller_of(request)
        return json_answer(
            key_api.CallerView(
                name=who.name,
                tenant=who.tenant,
                scopes=sorted(who.scopes),
                expires_at=moment(who.expires_at) if who.expires_at is not None else None,
            )
        )


# --- tenants -----------------------------------------------------------------------------------------------


def _add_tenant_routes(router: APIRouter, keys: Keys) -> None:
    @router.get(
        key_api.TENANTS_PATH,
        **schema.operation("list_tenants", "List tenants", {200: schema.answer("TenantList", "Tenants by name")}),
    )
    async def tenants(request: Request) -> Response:
        Query(request)
        return json_answer(key_api.TenantList(tenants=[_tenant(one) for one in await keys.tenants()]))

    @router.get(
        key_api.TENANT_PATH,
        **schema.operation(
            "get_tenant",
            "Show what a tenant may use",
            {200: schema.answer("TenantView", "What it may use"), **_NOT_FOUND},
            _TENANT,
        ),
    )
    async def get(request: Request) -> Response:
        Query(request)
        return json_answer(_tenant(await keys.tenant(_tenant_named(request))))

    @router.put(
        key_api.TENANT_PATH,
        **schema.operation(
            "put_tenant",
            "Say what a tenant may use",
            {200: schema.answer("TenantView", "What it may use from now on"), **_NOT_FOUND},
            _TENANT,
            body="TenantRequest",
        ),
    )
    async def put(request: Request) -> Response:
        asked = await body_of(key_api.TenantRequest, request)
        tenant = Tenant(_tenant_named(request), asked.max_runs)
        await keys.set_tenant(tenant)
        note(request, tenant=tenant.name, max_runs="none" if tenant.max_runs is None else str(tenant.max_runs))
        return json_answer(_tenant(tenant))


def _tenant_named(request: Request) -> str:
    name: str = request.path_params["tenant"]
    if not _is_tenant(name):
        raise NotFoundError("there is no such tenant")
    return name


def _tenant(tenant: Tenant) -> key_api.TenantView:
    return key_api.TenantView(tenant=tenant.name, max_runs=tenant.max_runs)


# --- audit -------------------------------------------------------------------------------------------------


def _add_audit_route(router: APIRouter, index: Index) -> None:
    @router.get(
        key_api.AUDIT_PATH,
        **schema.operation(
            "list_audit",
            "Read who did what",
            _AUDIT,
            _OF_TENANT,
            schema.query("action", "Only what is called so", _TEXT),
            schema.query("by", "Only what was done by this one", _TEXT),
            schema.query("target", "Only what was done to this", _TEXT),
            schema.query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES}),
            schema.query("cursor", "`next` of the page before", {"type": "string", "maxLength": LONGEST_CURSOR}),
            description="Newest first. An entry is in the list moments after what it tells of.",
        ),
    )
    async def audit(request: Request) -> Response:
        query = Query(request, ("tenant", "action", "by", "target", "limit", "cursor"))
        action, by, target = (query.text(name, LONGEST_FILTER) for name in ("action", "by", "target"))
        page = await index.audit(
            _tenant_asked(query, caller_of(request)),
            AuditFilter(by=by, action=action, target=target),
            cursor=query.text("cursor", LONGEST_CURSOR),
            limit=query.number("limit", 50, 1, MOST_ENTRIES),
        )
        return json_answer(key_api.AuditPage(entries=[_entry(row) for row in page.lines], next=page.next))


def _entry(row: AuditRow) -> key_api.AuditEntry:
    """Lines of other versions may lack what is said here."""
    given = row.detail if isinstance(row.detail, dict) else {}
    detail = {str(name): str(text) for name, text in given.items()}
    return key_api.AuditEntry(
        id=row.line_id,
        at=moment(row.at),
        tenant=row.tenant,
        by=row.by,
        action=row.action,
        target=row.target,
        outcome=detail.pop("outcome", ""),
        request_id=row.request_id,
        detail=detail,
    )
