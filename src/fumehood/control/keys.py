"""API keys and tenants: who may come in, for whom, and how much of it.

A key is shown once, when it is made: `fhk_<id>_<secret>`. Only the hash of its secret is stored. Keys of a tenant are
managed by those of its callers who have the scope for it, and nobody gives or takes away a scope that it does not have,
nor gives it for longer than it has it; the administrator, who has all, manages those of every tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fumehood.control.callers import DEFAULT_TENANT, Caller, Scope
from fumehood.control.key_store import Key, KeyStore, Tenant
from fumehood.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError

MOST_OF_TENANT = 200
"""Keys of one tenant: no tenant can use up what all of them share."""
MOST_KEYS = 10_000
"""Of all tenants: every server holds all of them in memory, half a kilobyte each. The administrator may make more, so
that nobody can keep it from making one."""
_OF_THE_CELL = {
    Scope.WORKERS: "workers take tasks of all tenants",
    Scope.ALL: "it allows everything in all tenants",
}
"""Scopes that reach beyond a tenant, and why."""
_TOKEN = re.compile(r"fhk_([A-Za-z0-9-]{12,64})_([A-Za-z0-9_-]{20,128})")
_ID = re.compile(r"[A-Za-z0-9-]{12,64}")
_NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that somebody wants."""

    name: str
    scopes: frozenset[Scope]
    tenant: str | None = None
    """None: the caller's own."""
    expires_in_seconds: int | None = None


class Keys:
    def __init__(self, store: KeyStore, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms

    async def caller(self, token: str) -> Caller | None:
        """Whose key it is; None where it is nobody's (any more). A wrong secret and an unknown id are the same work."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        key = await self._store.key(parts[1])
        presented = hashlib.sha256(parts[2].encode()).digest()
        fits = hmac.compare_digest(presented, key.hash if key is not None else _NO_HASH)
        if key is None or not fits or self._is_over(key):
            return None
        return key.caller

    def _is_over(self, key: Key) -> bool:
        return key.expires_at is not None and key.expires_at <= self._now_ms()

    async def create(self, wish: NewKey, caller: Caller) -> tuple[Key, str]:
        """A new key, and the one time that its token is seen."""
        tenant = wish.tenant or caller.tenant
        _check(wish, tenant, caller)
        await self._make_room(tenant, caller)
        secret, now = secrets.token_urlsafe(32), self._now_ms()
        key = Key(
            id=f"{now:011x}{secrets.token_hex(5)}",
            name=wish.name,
            tenant=tenant,
            scopes=wish.scopes,
            hash=hashlib.sha256(secret.encode()).digest(),
            created_at=now,
            by=caller.name,
            expires_at=_end(wish, caller, now),
        )
        await self._store.add(key)
        return key, f"fhk_{key.id}_{secret}"

    async def _make_room(self, tenant: str, caller: Caller) -> None:
        """Keys that are over make room for others, and only then are they forgotten."""
        keys = await self._store.keys()
        if _has_room(keys, tenant, caller):
            return
        if not _has_room([key for key in keys if not self._is_over(key)], tenant, caller):
            raise ConflictError("there are too many keys already: revoke some of them first")
        await self._store.remove(*(key.id for key in keys if self._is_over(key)))

    async def revoke(self, key_id: str, caller: Caller) -> Key:
        """From now on it opens nothing: here at once, elsewhere as soon as that is told."""
        key = await self._store.stored(key_id) if _ID.fullmatch(key_id) is not None else None
        if key is None or not _may_revoke(caller, key):
            await self._store.changed()  # whoever revoked it before may have died before it could say so
            raise NotFoundError("there is no such key")
        await self._store.remove(key_id)
        return key

    async def list(self, tenant: str, *, after: str = "", limit: int) -> tuple[Sequence[Key], str | None]:
        """Keys of a tenant, oldest first, from behind `after`; and where to go on."""
        found = [key for key in await self._store.keys() if key.id > after and key.tenant == tenant]
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def tenant(self, name: str) -> Tenant:
        return await self._store.tenant(name)

    async def max_runs(self, tenant: str) -> int | None:
        return (await self._store.tenant(tenant)).max_runs

    async def set_tenant(self, tenant: Tenant) -> None:
        await self._store.set_tenant(tenant)

    async def tenants(self) -> Sequence[Tenant]:
        """Those that something was said about, and those that have keys, by name."""
        tenants = {DEFAULT_TENANT, *(key.tenant for key in await self._store.keys())}
        said = {one.name: one for one in await self._store.tenants()}
        return [said.get(name, Tenant(name)) for name in sorted(tenants | said.keys())]


def _may_manage(caller: Caller, tenant: str) -> bool:
    return caller.may(Scope.ALL) or (caller.may(Scope.KEYS) and caller.tenant == tenant)


def _may_revoke(caller: Caller, key: Key) -> bool:
    return _may_manage(caller, key.tenant) and all(caller.may(scope) for scope in key.scopes)


def _has_room(keys: Sequence[Key], tenant: str, caller: Caller) -> bool:
    own = sum(key.tenant == tenant for key in keys)
    return own < MOST_OF_TENANT and (len(keys) < MOST_KEYS or caller.may(Scope.ALL))


def _end(wish: NewKey, caller: Caller, now: int) -> int | None:
    """No later than its maker's: a key that expires must not live on in another."""
    asked = now + wish.expires_in_seconds * 1000 if wish.expires_in_seconds is not None else None
    return min((end for end in (asked, caller.expires_at) if end is not None), default=None)


def _check(wish: NewKey, tenant: str, caller: Caller) -> None:
    """Nobody gives what it does not have; and what reaches beyond a tenant is for keys of the cell's own."""
    if not _may_manage(caller, tenant):
        raise ForbiddenError("this token does not allow keys of that tenant")
    missing = sorted(scope.value for scope in wish.scopes if not caller.may(scope))
    if missing:
        raise ForbiddenError(f"nobody gives a scope that it does not have: {', '.join(missing)}")
    for scope, why in _OF_THE_CELL.items():
        if scope in wish.scopes and tenant != DEFAULT_TENANT:
            raise InvalidRequestError(f"scopes: {scope} is for keys of the tenant {DEFAULT_TENANT} only: {why}")
