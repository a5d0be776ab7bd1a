"""The audit list: who did what, to what, and how that went. Never a secret, never a payload.

A line is written once the outcome is known and before it is answered, so that whoever reads the answer finds the line.
The thing itself has happened by then: where the line cannot be written, the answer is still the truth, and the log and
the counter `lost` tell that the list has a gap. Refusals are lines too; the same one of the same caller is written once
a minute, since whoever is refused can ask as often as it likes.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog

from fumehood.broker.ports import Broker
from fumehood.control.callers import Caller
from fumehood.errors import BrokerError, FumehoodError

NOTE_SECONDS = 3.0
"""For one line: longer than a healthy broker needs, shorter than a caller's patience with an answer that is there."""
REFUSAL_MS = 60_000
"""In which the same refusal of the same caller is not written again."""
_REFUSALS = 10_000
"""Callers and actions whose last refusal is remembered."""
LONGEST = 512
"""Characters of what a line names. Names have 128; a path that was refused may hold anything."""


_TOKEN = re.compile(r"fh[a-z]_[A-Za-z0-9_.-]+")
"""A key, or a token for an approval."""


class Outcome(StrEnum):
    """How it went; `outcome` in a line's detail."""

    DONE = "done"
    REFUSED = "refused"
    """The caller's key does not allow it."""
    UNCERTAIN = "uncertain"
    """It ended in an error of ours or of the broker's: it may have happened."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One thing that somebody did, or tried to."""

    id: str
    """Sorts by time."""
    at: int
    """Milliseconds since the epoch."""
    tenant: str
    """In whose list it stands."""
    by: str
    action: str
    target: str
    request_id: str
    detail: Mapping[str, str]

    def encode(self) -> bytes:
        said = {
            "at": self.at,
            "tenant": self.tenant,
            "by": self.by,
            "action": self.action,
            "target": self.target,
            "request_id": self.request_id,
            "detail": dict(self.detail),
        }
        return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()


class Audit:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._refusals: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self.counts: Counter[str] = Counter()
        """`written`, `lost`, `spared`."""

    async def note(
        self,
        caller: Caller,
        action: str,
        target: str,
        detail: Mapping[str, str] | None = None,
        *,
        outcome: Outcome = Outcome.DONE,
        tenant: str | None = None,
        request_id: str = "",
    ) -> None:
        """Write a line; `tenant` where it concerns another one than the caller's. Never raises: what it tells of has
        happened."""
        now = self._now_ms()
        if outcome is Outcome.REFUSED and self._is_repeated(caller, action, now):
            self.counts["spared"] += 1
            return
        line = AuditLine(
            id=f"{now:012x}{secrets.token_hex(10)}",
            at=now,
            tenant=tenant or caller.tenant,
            by=caller.name,
            action=action,
            target=_harmless(target),
            request_id=request_id,
            detail={"outcome": outcome.value} | {name: _harmless(text) for name, text in (detail or {}).items()},
        )
        try:
            async with asyncio.timeout(NOTE_SECONDS):
                await self._broker.audit.add(line.id, line.encode())
        except (FumehoodError, TimeoutError) as error:
            self._lost(line, error)
        else:
            self.counts["written"] += 1

    def _lost(self, line: AuditLine, error: Exception) -> None:
        self.counts["lost"] += 1
        code = error.code if isinstance(error, FumehoodError) else BrokerError.code
        said = {"audit_id": line.id, "tenant": line.tenant, "by": line.by, "target": line.target}
        structlog.get_logger().error("audit.lost", code=code, action=line.action, **said)

    def _is_repeated(self, caller: Caller, action: str, now: int) -> bool:
        asked = (caller.tenant, caller.name, action)
        if now - self._refusals.get(asked, -REFUSAL_MS) < REFUSAL_MS:
            return True
        self._refusals[asked] = now
        self._refusals.move_to_end(asked)
        while len(self._refusals) > _REFUSALS:
            self._refusals.popitem(last=False)
        return False


def _harmless(text: str) -> str:
    """Part of a path is whatever a caller wrote there; a token is not for a list that others read."""
    return _TOKEN.sub("(a token)", text)[:LONGEST]
