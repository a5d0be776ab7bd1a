"""The audit log on JetStream: one subject, sealed as journals are, so that a line proves that a server wrote it."""

from __future__ import annotations

import hashlib
import hmac

from fumehood.broker import names
from fumehood.broker.connection import Connection
from fumehood.broker.ports import Entry
from fumehood.broker.runs import MESSAGE_ID
from fumehood.broker.sealed import ID, SEAL, SealedTail, seal
from fumehood.broker.topology import AUDIT_BYTES, AUDIT_STREAM, AUDIT_SUBJECT
from fumehood.errors import PayloadTooLargeError


class NatsAuditLog:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._secret = b""
        self._tail = SealedTail(connection)

    def unlock(self, secret: bytes) -> None:
        """Learn the cell's secret. What is used is made from it, so that no line could pass for a run's record."""
        self._secret = hmac.new(secret, AUDIT_SUBJECT.encode(), hashlib.sha256).digest()

    async def add(self, entry_id: str, data: bytes) -> int:
        if len(data) > AUDIT_BYTES:
            raise PayloadTooLargeError(f"a line of the audit log has at most {AUDIT_BYTES} bytes")
        headers = {
            ID: names.message_id(entry_id),
            SEAL: seal(self._secret, entry_id, data),
            MESSAGE_ID: entry_id,
        }
        stored = await self._connection.retrying(lambda: self._connection.store(AUDIT_SUBJECT, data, headers))
        return stored.seq

    async def tail(self, *, after: int, limit: int) -> list[Entry]:
        records = await self._tail.page(AUDIT_STREAM, AUDIT_SUBJECT, after=after, limit=limit, secret=self._secret)
        return [Entry(record.seq, record.headers[ID], record.data) for record in records]
