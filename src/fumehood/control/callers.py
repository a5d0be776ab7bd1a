"""Who asks: the name, the tenant and the scopes that a request's key gave it."""

from __future__ import annotations

from dataclasses import dataclass

from fumehood.wire.key_api import Scope

__all__ = ["ADMIN", "BRIDGE", "DEFAULT_TENANT", "Caller", "Scope"]

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    name: str
    """In histories and in the audit list: `key-id/name`, or what the administrator's token is called."""
    scopes: frozenset[Scope]
    expires_at: int | None = None
    """Milliseconds since the epoch: when the key that it came with is over; None: never by itself."""

    def may(self, scope: Scope) -> bool:
        return Scope.ALL in self.scopes or scope in self.scopes


ADMIN = Caller(DEFAULT_TENANT, "admin", frozenset({Scope.ALL}))
"""Whoever holds the server's own token, or comes in where none is asked for."""
BRIDGE = Caller(DEFAULT_TENANT, "bridge", frozenset({Scope.WORKERS}))
"""Whoever holds the workers' token."""
