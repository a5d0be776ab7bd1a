"""Workers that dialled in, for whoever looks after workers of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fumehood.control.callers import Caller, Scope
from fumehood.control.console.exchange import Exchange
from fumehood.control.console.presence import Entry, Presence
from fumehood.errors import ForbiddenError
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sandbox import RECEIPT_KEY, RECEIPT_KEY_LABEL

DIALLED: Final = "grpc"
"""How such a worker comes, in the directory."""
_MOST_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Dialled:
    presence: Presence
    exchange: Exchange

    def drain(self, worker_id: str, caller: Caller) -> bool:
        """Send a worker home, wherever it is connected: it gets no more commands, finishes what it has, and goes.
        False: there is none of that name. Workers that came another way have no say here."""
        if self.presence.of(worker_id) is None:
            return False
        if not caller.may(Scope.ALL):
            raise ForbiddenError("only an administrator sends a worker home that dialled in")
        self.exchange.drain(worker_id)
        return True


def registrations(presence: Presence) -> Sequence[WorkerRegistration]:
    """As all workers are listed."""
    return [_registration(entry) for entry in presence.workers.values()]


def _registration(entry: Entry) -> WorkerRegistration:
    leaves = {"draining": "true"} if entry.draining else {}
    labels = dict(entry.labels)
    key = {RECEIPT_KEY: labels.pop(RECEIPT_KEY_LABEL)} if RECEIPT_KEY_LABEL in labels else {}
    return WorkerRegistration(
        worker_id=entry.worker_id,
        task_types=sorted(entry.capabilities),
        transport=DIALLED,
        max_tasks=min(max(1, sum(entry.capabilities.values())), _MOST_AT_ONCE),
        metadata={**labels, "software": entry.software, **key, **leaves},
    )
