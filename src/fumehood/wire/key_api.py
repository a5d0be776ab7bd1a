"""API keys, tenants and the audit list.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, WHOLE, UtcTime, WireModel

KEYS_PATH = "/v1/keys"
KEY_PATH = "/v1/keys/{key_id}"
TENANTS_PATH = "/v1/tenants"
TENANT_PATH = "/v1/tenants/{tenant}"
AUDIT_PATH = "/v1/audit"
CALLER_PATH = "/v1/caller"

NAME_PATTERN = r"^[A-Za-z0-9_]([-.]?[A-Za-z0-9_])*$"
TENANT_PATTERN = r"^[A-Za-z0-9_](-?[A-Za-z0-9_])*$"
"""Without dots, since it becomes a part of keys in buckets."""
LONGEST_NAME = 64
LONGEST_LIFE = 10 * 365 * 86_400
"""Seconds. Who wants a key for longer wants one for good."""
MOST_RUNS = 10_000_000


class Scope(StrEnum):
    """What a key may do. `ALL` is the administrator's."""

    WORKFLOWS_READ = "workflows:read"
    WORKFLOWS_WRITE = "workflows:write"
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    """Start, cancel, signal."""
    RUNS_APPROVE = "runs:approve"
    RUNS_REPAIR = "runs:repair"
    """Retry, skip a step, complete one by hand."""
    SCHEDULES_READ = "schedules:read"
    SCHEDULES_WRITE = "schedules:write"
    SANDBOXES_READ = "sandboxes:read"
    """See sandboxes, commands, their output and files."""
    SANDBOXES_WRITE = "sandboxes:write"
    """Submit commands; make sandboxes, work in them, remove them."""
    WORKERS = "workers"
    """Take tasks, and see who else does. Tasks are those of all tenants."""
    KEYS = "keys"
    """Make and revoke keys of one's own tenant that may no more than one's own, and read its audit list."""
    ALL = "*"
    """Everything, tenants and limits of task types included; for keys of the default tenant only."""


KeyName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=LONGEST_NAME)]
TenantName = Annotated[str, Field(pattern=TENANT_PATTERN, max_length=LONGEST_NAME)]
Scopes = Annotated[list[Annotated[Scope, Field(strict=False)]], Field(min_length=1, max_length=len(Scope))]


class CreateKeyRequest(WireModel):
    """A key to make."""

    name: Annotated[KeyName, Field(description="What people know it by; it stands beside all that is done with it")]
    tenant: Annotated[
        TenantName | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="Whose key it is: the caller's own tenant, or for the administrator any"),
    ] = None
    scopes: Annotated[Scopes, Field(description="What it may do: nothing that the caller may not")]
    expires_in_seconds: Annotated[
        Annotated[int, Field(ge=1, le=LONGEST_LIFE), WHOLE] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description="After which it opens nothing; absent: until it is revoked. A key that is made with a key is "
            "over when that is, at the latest"
        ),
    ] = None


class KeyView(WireModel):
    """A key, without what opens anything."""

    id: Annotated[str, Field(description="By which it is revoked, and known in histories")]
    name: Annotated[str, Field(description="What people know it by")]
    tenant: Annotated[str, Field(description="Whose it is")]
    scopes: Annotated[list[str], Field(description="What it may do, sorted")]
    created_at: Annotated[UtcTime, Field(description="When it was made")]
    created_by: Annotated[str, Field(description="Who made it")]
    expires_at: Annotated[UtcTime | None, Field(description="From when on it opens nothing; null: never by itself")] = (
        None
    )


class CreateKeyResponse(KeyView):
    """A new key, with its token."""

    key: Annotated[str, Field(description="The token, for `Authorization: Bearer …`; it is shown here and never again")]


class KeyList(WireModel):
    """A part of a list of keys."""

    keys: Annotated[list[KeyView], Field(description="Oldest first")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None


class CallerView(WireModel):
    """Whose token a request came with, and what that may do."""

    name: Annotated[str, Field(description="As histories and the audit list have it: `admin`, or a key's id and name")]
    tenant: Annotated[str, Field(description="Whose it is")]
    scopes: Annotated[list[str], Field(description="What it may do, sorted")]
    expires_at: Annotated[UtcTime | None, Field(description="From when on it opens nothing; null: never by itself")] = (
        None
    )


class TenantRequest(WireModel):
    """What a tenant may use."""

    max_runs: Annotated[
        Annotated[int, Field(ge=0, le=MOST_RUNS), WHOLE] | None,
        Field(description="Runs in flight at once; null: as many as there are"),
    ]


class TenantView(WireModel):
    """A tenant, and what it may use."""

    tenant: Annotated[str, Field(description="Its name")]
    max_runs: Annotated[int | None, Field(description="Runs in flight at once; null: as many as there are")] = None


class TenantList(WireModel):
    """Every tenant that has keys or a quota, and the default one."""

    tenants: Annotated[list[TenantView], Field(description="By name")]


class AuditEntry(WireModel):
    """Something that somebody did, or tried to."""

    id: Annotated[str, Field(description="The entry's own")]
    at: Annotated[UtcTime, Field(description="When")]
    tenant: Annotated[str, Field(description="In whose list it stands")]
    by: Annotated[str, Field(description="Who: `admin`, or a key's id and name")]
    action: Annotated[str, Field(description="What, like `run.started`; for a refused reading, its method and path")]
    target: Annotated[str, Field(description="To what: a run, a workflow, a key …")]
    outcome: Annotated[
        str, Field(description="`done`; `refused`: not allowed; `uncertain`: an error came instead of an answer")
    ]
    request_id: Annotated[str, Field(description="The request's id, as logs have it")]
    detail: Annotated[dict[str, str], Field(description="More, by action")]


class AuditPage(WireModel):
    """A part of the audit list."""

    entries: Annotated[list[AuditEntry], Field(description="Newest first")]
    next: Annotated[str | None, Field(description="`cursor` for the next page; null where this is the last")] = None
