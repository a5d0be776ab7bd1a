"""Whose a run is: the tenant that it was started for, which never changes.

The run's summary says it, also when the run was archived; before a decider has looked at the run, its journal or the
message that waits in its inbox does.
"""

from __future__ import annotations

import json
from collections import OrderedDict

from fumehood.broker import names
from fumehood.broker.ports import Broker
from fumehood.control import loading, summaries
from fumehood.control.callers import DEFAULT_TENANT, Caller
from fumehood.engine.messages import MessageType
from fumehood.errors import NotFoundError

_KNOWN = 20_000
"""Runs whose tenant is kept in memory: who follows one asks again and again."""


class Owners:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: OrderedDict[str, str] = OrderedDict()

    async def check(self, run_id: str, caller: Caller) -> None:
        """`NotFoundError` unless it is a run of the caller's tenant: another's is told apart from none by nobody."""
        if not names.is_token(run_id) or await self._tenant(run_id) != caller.tenant:
            raise no_such_run()

    async def _tenant(self, run_id: str) -> str | None:
        tenant = self._known.get(run_id) or await self._find(run_id)
        if tenant is not None:
            self._known[run_id] = tenant
            self._known.move_to_end(run_id)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return tenant

    async def _find(self, run_id: str) -> str | None:
        line, _ = await summaries.read(self._broker, run_id)
        if line.get("status"):  # one that cannot be read says nothing, not even that it is the default one's
            return str(line.get("tenant") or DEFAULT_TENANT)
        tenant = await self._by_journal(run_id)
        told = await self._broker.mailboxes.last(run_id) if tenant is None else None
        if told is None:
            return tenant
        # What the engine itself says names no tenant, and is said about runs that have a journal by now.
        return tenant_of(json.loads(told)) or await self._by_journal(run_id)

    async def _by_journal(self, run_id: str) -> str | None:
        state, _ = await loading.load(self._broker, run_id)
        return str(state.meta.get("tenant") or DEFAULT_TENANT) if state is not None else None


def tenant_of(message: dict[str, object]) -> str | None:
    """By a message in the run's inbox: its start, or an order that names the tenant. Others do not tell."""
    if message.get("type") == MessageType.START:
        meta = message.get("meta")
        return str(meta.get("tenant") or DEFAULT_TENANT) if isinstance(meta, dict) else DEFAULT_TENANT
    return str(message["tenant"]) if message.get("tenant") else None


def no_such_run() -> NotFoundError:
    return NotFoundError("there is no such run")
