"""The audit log of the in-memory broker."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from fumehood.broker import names
from fumehood.broker.clock import Clock
from fumehood.broker.memory_faults import Faults, Port
from fumehood.broker.ports import Entry
from fumehood.broker.topology import AUDIT_AGE, AUDIT_BYTES, AUDIT_WINDOW
from fumehood.errors import PayloadTooLargeError


@dataclass(frozen=True, slots=True)
class _Line:
    entry: Entry
    at: float


class AuditLines:
    """The stream: outlives every connection."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 1
        self._lines: dict[int, _Line] = {}

    def add(self, entry_id: str, data: bytes) -> int:
        now = self._clock.now()
        for line in reversed(self._lines.values()):
            if line.at <= now - AUDIT_WINDOW:
                break
            if line.entry.record_id == entry_id:
                return line.entry.seq
        seq, self._next = self._next, self._next + 1
        self._lines[seq] = _Line(Entry(seq, entry_id, data), now)
        return seq

    def tail(self, after: int, limit: int) -> list[Entry]:
        oldest = self._clock.now() - AUDIT_AGE
        for seq in [seq for seq, line in self._lines.items() if line.at <= oldest]:
            del self._lines[seq]
        past = (line.entry for seq, line in self._lines.items() if seq > after)
        return list(islice(past, limit))


class MemoryAuditLog(Port):
    name = "audit"

    def __init__(self, lines: AuditLines, faults: Faults) -> None:
        super().__init__(faults)
        self._lines = lines

    async def add(self, entry_id: str, data: bytes) -> int:
        names.message_id(entry_id)
        if len(data) > AUDIT_BYTES:
            raise PayloadTooLargeError(f"a line of the audit log has at most {AUDIT_BYTES} bytes")
        done = await self._begin("add", entry_id)
        seq = self._lines.add(entry_id, bytes(data))
        done()
        return seq

    async def tail(self, *, after: int, limit: int) -> list[Entry]:
        done = await self._begin("tail", str(after))
        found = self._lines.tail(after, limit)
        done()
        return found
