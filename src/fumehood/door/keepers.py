"""Who decides at a door: a doorkeeper, who knows tokens and what each may do. Each kind of process has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from fumehood.door.tokens import Posture, TokenSource

ENTRANT = "fumehood.entrant"
"""Where whoever was let in, or known and refused, stands in the ASGI scope."""
DECIDED = "fumehood.decided"
"""Where the template stands that was decided about; None for a path that is no door's."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Somebody who is known."""

    who: object
    keyless: bool = False
    """Whether no token was asked for."""


class Doorkeeper(Protocol):
    async def knows(self, authorization: str | None) -> Entrant | None:
        """Whom the value of an `Authorization` header proves; None: nobody. Where that cannot be found out now, an
        error of ours, which is answered as such."""
        ...

    def allows(self, who: object, method: str, route: str | None) -> bool:
        """Whether somebody who is known may do it. `route` is a path's template, None where there is none."""
        ...

    def wanted(self, method: str, route: str | None) -> str:
        """What it takes, for whoever is known and lacks it."""
        ...

    async def saw(self, scope: Scope, status: int) -> None:
        """Told of every answer, before its first byte goes out."""
        ...


class TokenKeeper:
    """One token, which allows everything."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    async def knows(self, authorization: str | None) -> Entrant | None:
        if not self._tokens.accepts(authorization):
            return None
        return Entrant("token", keyless=self._tokens.posture is Posture.INSECURE)

    def wanted(self, method: str, route: str | None) -> str:
        return "the token"

    def allows(self, who: object, method: str, route: str | None) -> bool:
        return True

    async def saw(self, scope: Scope, status: int) -> None:
        return None
