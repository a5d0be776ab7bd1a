"""Who asks, as the door found out, and what the audit list shall say beyond what the path says."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Scope

from fumehood.control.callers import Caller
from fumehood.door.keepers import ENTRANT
from fumehood.errors import UnauthenticatedError

_NOTED = "fumehood.noted"


@dataclass(slots=True)
class Noted:
    """What a route adds to its line in the audit list."""

    tenant: str | None = None
    target: str | None = None
    detail: dict[str, str] = field(default_factory=dict)
    unchanged: bool = False
    """Everything was so already: that is no line."""


def caller_of(request: Request) -> Caller:
    caller = request.scope.get(ENTRANT)
    if not isinstance(caller, Caller):
        raise UnauthenticatedError("a bearer token is needed")
    return caller


def known_as(request: Request, caller: Caller) -> None:
    """For a path that is open to all, whose body tells who it is."""
    request.scope[ENTRANT] = caller


def note(request: Request, *, tenant: str | None = None, target: str | None = None, **detail: str) -> None:
    """For the audit list: no secrets, no payloads."""
    noted = noted_in(request.scope)
    noted.tenant, noted.target = tenant or noted.tenant, target or noted.target
    noted.detail.update(detail)


def note_unchanged(request: Request) -> None:
    noted_in(request.scope).unchanged = True


def noted_in(scope: Scope) -> Noted:
    found: Noted = scope.setdefault(_NOTED, Noted())
    return found
