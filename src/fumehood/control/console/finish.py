"""Records of commands in the broker: made once, ended once. Whoever ends one that has ended finds how."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket
from fumehood.control.console import record as records
from fumehood.control.console.record import INLINE_BYTES, Record
from fumehood.errors import BrokerUnavailableError, KeyConflictError
from fumehood.wire.console.console_pb2 import Result

UNDER_WAY_SECONDS = 86_400
"""That a command may take."""
ENDED_SECONDS = 3_600
"""That one which has ended can be asked about: a caller has its answer, or comes for it soon."""
TRIES = 8


class Finisher:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.COMMANDS)
        self._blobs = broker.blobs(names.NODES_TENANT)
        self._now_ms = now_ms

    async def create(self, record: Record) -> int:
        """Its revision. `KeyConflictError` where there is one already."""
        return await self._bucket.create(record.command_id, _bytes(record), ttl=_ttl(record))

    async def get(self, command_id: str) -> tuple[Record, int] | None:
        entry = await self._bucket.get(command_id) if names.is_token(command_id) else None
        read = records.read(entry.value) if entry is not None else None
        return (read, entry.revision) if entry is not None and read is not None else None

    async def change(
        self, record: Record, revision: int, changed: Callable[[Record], Record | None]
    ) -> tuple[Record, int]:
        """Apply a change to what is stored, whoever else changes it meanwhile. One that has ended stays as it is; so
        does one of which `changed` says None."""
        for _ in range(TRIES):
            new = None if record.status.ended else changed(record)
            if new is None:
                return record, revision
            try:
                stored = await self._bucket.update(record.command_id, _bytes(new), revision=revision, ttl=_ttl(new))
                return new, stored
            except KeyConflictError:
                found = await self.get(record.command_id)
            if found is None:
                return new, 0  # a day has passed, or somebody emptied the bucket: there is nothing to keep true
            record, revision = found
        raise BrokerUnavailableError("a command's record changes too quickly to be written")

    async def finish(self, record: Record, revision: int, result: Result) -> Record:
        """Store an end; without a revision it is all that is ever stored."""
        ref = await self._beside(result)
        if not revision:
            done = records.ended(record, result, self._now_ms(), ref=ref)
            try:
                await self.create(done)
            except KeyConflictError:  # somebody else was quicker
                record, revision = await self.get(record.command_id) or (record, 0)
            else:
                return done
        done, _ = await self.change(record, revision, lambda one: records.ended(one, result, self._now_ms(), ref=ref))
        return done

    async def fail(self, record: Record, revision: int, reason: str, message: str) -> Record:
        done, _ = await self.change(record, revision, lambda one: records.failed(one, reason, message, self._now_ms()))
        return done

    async def finish_unclaimed(self, result: Result, worker_id: str, began: bytes) -> None:
        """Store an end that nobody else did: of a command that this worker was given, and no other. `began` is what its
        asker would have stored; without that and without a record, nobody knows of it."""
        found = await self.get(result.command_id)
        if found is None and (record := records.read(began)) is not None:
            await self.finish(record.model_copy(update={"worker": worker_id}), 0, result)
        elif found is not None and found[0].worker in ("", worker_id):
            await self.finish(found[0].model_copy(update={"worker": worker_id}), found[1], result)

    async def unnamed(self, record: Record) -> None:
        """Of a command that nobody took: its key is free, as if it had never been used."""
        entry = await self._bucket.get(record.key) if record.key else None
        if entry is not None and entry.value.decode() == record.command_id:
            with contextlib.suppress(KeyConflictError):
                await self._bucket.delete(record.key, revision=entry.revision)

    async def named(self, key: str, command_id: str) -> str:
        """The command that bears this key: this one from now on, or the one that had it before."""
        try:
            await self._bucket.create(key, command_id.encode(), ttl=UNDER_WAY_SECONDS)
        except KeyConflictError:
            entry = await self._bucket.get(key)
            if entry is None:
                raise BrokerUnavailableError("the idempotency key is being forgotten at this moment") from None
            return entry.value.decode()
        return command_id

    async def content(self, record: Record, *, limit: int) -> bytes | None:
        """The result of one that succeeded, wherever it lies."""
        if record.result_ref is not None:
            return await self._blobs.get(record.result_ref, limit=limit)
        return record.result_json.encode() if record.result_json is not None else None

    async def _beside(self, result: Result) -> str | None:
        if len(result.payload_json) <= INLINE_BYTES:
            return None
        return await self._blobs.put(result.payload_json)


def _ttl(record: Record) -> int:
    """One that has a key is known as long as that."""
    return ENDED_SECONDS if record.status.ended and not record.key else UNDER_WAY_SECONDS


def _bytes(record: Record) -> bytes:
    return record.model_dump_json(exclude_defaults=True).encode()
