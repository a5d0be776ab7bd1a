"""Records that servers seal, so that they know each other's, and reading on behind the last one.

Who may publish on a subject is not enough: a worker in the engine's own account can have the answer to a read delivered
to any subject, with headers of its own making.
"""

from __future__ import annotations

import hashlib
import hmac

from fumehood.broker.connection import Connection
from fumehood.broker.reading import BATCH, Record, direct_page

ID = "Fumehood-Id"
SEAL = "Fumehood-Seal"

FOREIGN_PAGES = 16
"""Pages of what is not ours that one call passes over before it answers with nothing, so that its time is bounded."""
STRETCHES = 1024
"""Readers that stand before such a stretch and whose way through it is remembered."""


def seal(secret: bytes, record_id: str, data: bytes) -> str:
    return hmac.new(secret, record_id.encode(errors="replace") + b"\n" + data, hashlib.sha256).hexdigest()


def is_sealed(secret: bytes, record: Record) -> bool:
    """Written by a server."""
    record_id, found = record.headers.get(ID), record.headers.get(SEAL, "")
    if record_id is None:
        return False
    return hmac.compare_digest(found.encode(errors="replace"), seal(secret, record_id, record.data).encode())


class SealedTail:
    """What servers wrote on some subjects of a stream, page by page. Keeps nothing on the broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._passed: dict[tuple[str, int], int] = {}
        """A subject and a reader's cursor → up to where nothing of ours lies behind it."""

    async def page(self, stream: str, subject: str, *, after: int, limit: int, secret: bytes) -> list[Record]:
        """The next ones past `after`. What is not ours never looks like the end for long: a stretch of it that is more
        than one call should take is gone on with by the next."""
        place = (subject, after)
        begin, size = self._passed.pop(place, after), limit
        for _ in range(FOREIGN_PAGES):
            found, more = await direct_page(self._connection, stream, subject, after=begin, limit=size)
            begin, size = (found[-1].seq if found else begin), BATCH
            ours = [record for record in found if is_sealed(secret, record)]
            if ours:
                return ours[:limit]
            if not more:
                break
        if begin > after:
            self._remember(place, begin)
        return []

    def _remember(self, place: tuple[str, int], begin: int) -> None:
        self._passed[place] = begin
        if len(self._passed) > STRETCHES:
            del self._passed[next(iter(self._passed))]
