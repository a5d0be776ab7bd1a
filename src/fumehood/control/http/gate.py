"""The server's doorkeeper: whose token it is, what that may do, and who did what."""

from __future__ import annotations

import re

from starlette.types import Scope as AsgiScope

from fumehood.control.audit import Audit, Outcome
from fumehood.control.callers import ADMIN, BRIDGE, Caller, Scope
from fumehood.control.http.callers import noted_in
from fumehood.control.http.rules import Rule, Rules
from fumehood.control.keys import Keys
from fumehood.door.keepers import DECIDED, ENTRANT, Entrant
from fumehood.door.paths import OTHER
from fumehood.door.problems import request_id_of
from fumehood.door.tokens import Posture, TokenSource, bearer

_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_FORBIDDEN = 403
_NOTHING = Rule(None)


class Gate:
    def __init__(
        self, *, tokens: TokenSource, bridge_tokens: TokenSource, keys: Keys, audit: Audit, rules: Rules
    ) -> None:
        self._tokens = ((tokens, ADMIN), (bridge_tokens, BRIDGE))
        self._keys = keys
        self._audit = audit
        self._rules = rules
        self._methods = {method for method, _ in rules}

    async def knows(self, authorization: str | None) -> Entrant | None:
        for tokens, caller in self._tokens:
            if tokens.accepts(authorization):
                return Entrant(caller, keyless=tokens.posture is Posture.INSECURE)
        owner = await self._keys.caller(bearer(authorization))
        return Entrant(owner) if owner is not None else None

    def allows(self, who: object, method: str, route: str | None) -> bool:
        """A route without a rule is the administrator's alone. Where there is none, whoever is known may learn that."""
        rule = self._rules.get((method, route)) if route is not None else _NOTHING
        scope = Scope.ALL if rule is None else rule.scope
        return isinstance(who, Caller) and (scope is None or who.may(scope))

    def wanted(self, method: str, route: str | None) -> str:
        rule = self._rules.get((method, route)) if route is not None else None
        return f"the scope {(rule.scope if rule is not None else None) or Scope.ALL}"

    async def saw(self, scope: AsgiScope, status: int) -> None:
        """Write a line for whatever changed something, may have, or was refused."""
        caller, method, route = scope.get(ENTRANT), scope["method"], scope[DECIDED]
        rule = self._rules.get((method, route))
        action = rule.action if rule is not None else None
        outcome = _outcome(status, changes=action is not None)
        if outcome is None or not isinstance(caller, Caller):
            return
        noted, given = noted_in(scope), _parameters(route, scope["path"])
        if noted.unchanged and outcome is not Outcome.REFUSED:
            return
        called = method if method in self._methods else OTHER  # whatever a caller makes up is one action
        target = noted.target or next(iter(given.values()), "")
        await self._audit.note(
            caller,
            action or f"{called} {route or OTHER}",
            target,
            dict(list(given.items())[1:]) | noted.detail,
            outcome=outcome,
            tenant=noted.tenant,
            request_id=request_id_of(scope),
        )


def _outcome(status: int, *, changes: bool) -> Outcome | None:
    """What was asked in vain (no such thing, not now, not so) is nobody's deed."""
    if status == _FORBIDDEN:
        return Outcome.REFUSED
    if not changes or 300 <= status < 500:
        return None
    return Outcome.DONE if status < 300 else Outcome.UNCERTAIN


def _parameters(route: str | None, path: str) -> dict[str, str]:
    """What stands in a path in the place of its template's names; the first is what the request is about."""
    if route is None or "{" not in route:
        return {}
    pattern = "([^/]+)".join(re.escape(part) for part in _PARAMETER.split(route)[::2])
    found = re.fullmatch(pattern, path, re.DOTALL)
    return dict(zip(_PARAMETER.findall(route), found.groups() if found is not None else (), strict=False))
