"""Where each session is kept. The truth is with its worker; this is how everybody finds that one.

Entries are written from what workers say (in results, in their hello, with heartbeats) and go by themselves some time
after their lease. One that is missing is told again at the worker's next hello; one that is too many leads to a worker
that says `session_not_found`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import cast

import structlog
from pydantic import ValidationError

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvChange, KvEntry
from fumehood.control.console import places
from fumehood.control.console.places import Found, Kept, Place
from fumehood.control.console.session_table import SessionTable
from fumehood.errors import BrokerError, BrokerUnavailableError, CommandFailedError, KeyConflictError
from fumehood.wire.console.codes import Reason

KEPT_SECONDS = 300
"""That an entry stays after its lease: clocks differ, and the worker has the last word."""
LONGEST_SECONDS = 86_400
"""Of any entry, whatever its worker says; its next heartbeat makes it again."""
PAUSE_SECONDS = 1.0
TRIES = 16


class SessionDirectory:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.SESSIONS)
        self._table = SessionTable()
        self._now_ms = now_ms

    # --- finding -------------------------------------------------------------------------------------------

    async def find(self, tenant: str, session_id: str) -> Found | None:
        """As it is stored now."""
        if not names.is_token(session_id):
            return None
        entry = await self._bucket.get(_key(tenant, session_id))
        return _found(entry) if entry is not None else None

    async def list(self, tenant: str) -> Sequence[Kept]:
        found = [_kept(entry) for entry in await self._bucket.entries(tenant)]
        return [one for one in found if one is not None and not one.place.is_claim]

    async def of_worker(self, worker: str) -> Sequence[Kept]:
        """From memory: it may lag by moments."""
        if not self._table.whole:
            found = [_kept(entry) for entry in await self._bucket.entries()]
            return [one for one in found if one is not None and one.place.worker == worker]
        return [self._remembered(key) for key in self._table.keys_of(worker)]

    def count_of(self, worker: str) -> int:
        """How many it has, or is about to have, as far as is known here."""
        return len(self._table.keys_of(worker))

    def knows(self, tenant: str, session_id: str) -> bool:
        """Whether anything is remembered of it here."""
        return self._table.get(_key(tenant, session_id)) is not None

    def _remembered(self, key: str) -> Kept:
        found, (tenant, _, session_id) = self._table.get(key), key.partition(".")
        assert found is not None
        return Kept(tenant, session_id, found.place)

    # --- claiming ------------------------------------------------------------------------------------------

    async def claim(
        self,
        tenant: str,
        session_id: str,
        worker: str,
        *,
        token: str | None = None,
        is_stale: Callable[[Place], bool] = lambda _: False,
    ) -> Place:
        """The place of a session that is about to be made: at this worker, or where it is, or where others make it.
        What is stale is replaced. Claiming again under the same token is one claim."""
        key, token = _key(tenant, session_id), token or secrets.token_hex(8)
        entry: KvEntry | None = None
        for _ in range(TRIES):
            known = _read(entry.value) if entry is not None else None
            if known is not None and is_stale(known):
                known = None
            place = places.claimed(known, worker, token, self._now_ms())
            if place is None or place == known:
                break
            try:
                await self._write(key, place, entry.revision if entry is not None else None)
                return place
            except KeyConflictError:
                entry = await self._bucket.get(key)
        else:
            place = None
        if place is None:
            raise CommandFailedError(Reason.SESSION_BUSY, "many make a session of this name at this moment: try again")
        return place

    async def release(self, tenant: str, session_id: str, token: str, *, sure: bool = True) -> None:
        """Nothing came of one's own claim. `sure`: nothing can have come of it. Whatever others have there stays."""
        key = _key(tenant, session_id)
        for _ in range(TRIES):
            entry = await self._bucket.get(key)
            known = _read(entry.value) if entry is not None else None
            if entry is None or known is None or not known.is_claim or token not in known.claims:
                return
            left = places.unclaimed(known, token, self._now_ms(), sure=sure)
            try:
                if left is None:
                    await self._delete(key, entry.revision)
                else:
                    await self._write(key, left, entry.revision)
                return
            except KeyConflictError:
                continue

    # --- what workers say ----------------------------------------------------------------------------------

    async def note(self, tenant: str, session_id: str, said: Place) -> Place:
        """What its worker said; and what stands: also where another worker keeps it."""
        key = _key(tenant, session_id)
        said, found = places.bounded(said, self._now_ms()), self._table.get(key)
        known, revision = (found.place, found.revision) if found is not None else (None, None)
        for tried in range(TRIES):
            place = places.agreed(known, said)
            if known == place and (place.worker == said.worker or tried):
                return place
            if known != place:
                with contextlib.suppress(KeyConflictError):
                    await self._write(key, place, revision)
                    return place
            entry = await self._bucket.get(key)
            known, revision = (_read(entry.value), entry.revision) if entry is not None else (None, None)
        raise BrokerUnavailableError("a session's place changes too quickly to be written")

    async def ended(self, tenant: str, session_id: str, worker: str) -> None:
        """Its worker says that it is no more. Somewhere else it may be, or be made again."""
        if not (names.is_token(tenant) and names.is_token(session_id)):
            return
        found = await self.find(tenant, session_id)
        if found is not None and found.place.worker == worker and not found.place.is_claim:
            await self.drop(tenant, session_id, found)

    async def drop(self, tenant: str, session_id: str, seen: Found) -> None:
        """The session that was seen there is no more. One that was made since under its name stays."""
        key, revision = _key(tenant, session_id), seen.revision
        for _ in range(TRIES):
            try:
                await self._delete(key, revision)
                return
            except KeyConflictError:
                now = await self.find(tenant, session_id)
            if now is None or not places.is_same(seen.place, now.place):
                return
            revision = now.revision

    # --- writing -------------------------------------------------------------------------------------------

    async def _write(self, key: str, place: Place, revision: int | None) -> None:
        data, ttl = place.model_dump_json(exclude_defaults=True).encode(), self._ttl(place)
        if revision is None:
            revision = await self._bucket.create(key, data, ttl=ttl)
        else:
            revision = await self._bucket.update(key, data, revision=revision, ttl=ttl)
        self._table.put(key, Found(place, revision))

    async def _delete(self, key: str, revision: int) -> None:
        await self._bucket.delete(key, revision=revision)
        self._table.remove(key, revision)

    def _ttl(self, place: Place) -> int:
        until = max(place.claims.values(), default=0) if place.is_claim else place.lease_expires_ms
        left = max(0, until - self._now_ms()) // 1000
        return min(left + (1 if place.is_claim else KEPT_SECONDS), LONGEST_SECONDS)

    # --- remembering ---------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Remember what is in the bucket, for ever."""
        while True:
            try:
                await self._follow()
            except BrokerError as error:
                structlog.get_logger().warning("sessions.interrupted", code=error.code)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        seen: set[str] | None = set()
        changes = cast(AsyncGenerator[KvChange, None], self._bucket.watch())
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind is ChangeKind.CAUGHT_UP:
                    self._table.caught_up(seen or set())
                    seen = None
                    continue
                if seen is not None:
                    seen.add(change.key)
                self._take(change)

    def _take(self, change: KvChange) -> None:
        place = _read(change.value) if change.kind is ChangeKind.PUT else None
        if place is None:
            self._table.remove(change.key, change.revision)
        else:
            self._table.put(change.key, Found(place, change.revision))


def _key(tenant: str, session_id: str) -> str:
    return f"{names.token(tenant)}.{names.token(session_id)}"


def _read(data: bytes) -> Place | None:
    try:
        return Place.model_validate_json(data)
    except ValidationError:
        return None


def _found(entry: KvEntry) -> Found | None:
    place = _read(entry.value)
    return Found(place, entry.revision) if place is not None else None


def _kept(entry: KvEntry) -> Kept | None:
    tenant, _, session_id = entry.key.partition(".")
    place = _read(entry.value)
    return Kept(tenant, session_id, place) if place is not None else None
