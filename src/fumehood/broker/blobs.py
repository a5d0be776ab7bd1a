"""Blobs on JetStream: pieces under the hash of the whole.

Not the client's object store: its `get` is quadratic in memory, and its names can be written over. Here each piece has
a subject of its own (`blob.{tenant}.{sha256}.{n}`) that is written once (compare-and-set with 0; "there already" is
success), and `meta` comes last, so that a blob is whole or absent, two writers of the same content help each other, and
an interrupted writer is continued by the next. Pieces are read by subject, so that permissions can keep tenants apart.
The hash is checked at the end of every read.

What sandboxes printed lies in a stream of its own, in the same form: it may be forgotten, the oldest first, so that it
never keeps anything else from being stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO

from fumehood.broker import names
from fumehood.broker.connection import Connection
from fumehood.broker.reading import Record, direct_last, from_leader
from fumehood.broker.runs import purge, store_once
from fumehood.broker.topology import BLOB_CHUNK, BLOB_STREAM, KEPT_STREAM
from fumehood.errors import BlobCorruptError, BlobNotFoundError, PayloadTooLargeError

IN_FLIGHT = 8
"""Pieces on their way at once: hides the round trip, and bounds memory to 1 MiB for each transfer."""
_LAG = 20
_LAG_PAUSE = 0.1
"""How often, and how long, a reader waits for a replica that does not have a blob, or a piece of it, yet."""
LARGEST = 1 << 40
"""Bytes that a blob can say to have: any worker writes blobs, and numbers have no end."""


@dataclass(frozen=True, slots=True)
class _Meta:
    size: int

    @property
    def pieces(self) -> int:
        return -(-self.size // BLOB_CHUNK)

    def length(self, index: int) -> int:
        return min(BLOB_CHUNK, self.size - index * BLOB_CHUNK)


class NatsBlobs:
    """`direct`: ask any replica whether a blob is there, which is all that a worker may do."""

    def __init__(self, connection: Connection, tenant: str = names.DEFAULT_TENANT, *, direct: bool = False) -> None:
        self._connection = connection
        self._direct = direct
        self._stream, root = (KEPT_STREAM, "kept") if tenant == names.NODES_TENANT else (BLOB_STREAM, "blob")
        self._prefix = f"{root}.{names.token(tenant, 'a tenant')}"

    # --- writing ---------------------------------------------------------------------------------------

    async def put(self, data: bytes) -> str:
        return await self.put_file(io.BytesIO(data))

    async def put_file(self, source: BinaryIO) -> str:
        digest, size = await asyncio.to_thread(_hashed, source)
        ref = f"sha256:{digest}"
        if await self._meta(digest) is None:
            await self._upload(digest, _Meta(size), source)
        return ref

    async def _upload(self, digest: str, meta: _Meta, source: BinaryIO) -> None:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send(index: int, piece: bytes) -> None:
            try:
                await self._write(f"{self._prefix}.{digest}.{index}", piece)
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(meta.pieces):
                    await room.acquire()
                    piece = await asyncio.to_thread(_piece, source, index)
                    group.create_task(send(index, piece))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        await self._write(f"{self._prefix}.{digest}.meta", json.dumps({"size": meta.size}).encode())

    async def _write(self, subject: str, data: bytes) -> None:
        await store_once(self._connection, subject, data, {})

    # --- reading ---------------------------------------------------------------------------------------

    async def _meta(self, digest: str) -> _Meta | None:
        subject = f"{self._prefix}.{digest}.meta"
        if self._direct:
            record = await direct_last(self._connection, self._stream, subject)
        else:
            record = await from_leader(self._connection, self._stream, {"last_by_subj": subject})
        return None if record is None else _meta_of(record)

    async def _wanted_meta(self, digest: str) -> _Meta:
        """Of a blob that somebody named: where a replica does not know it, it may only be late."""
        for pause in (*[_LAG_PAUSE] * (_LAG if self._direct else 0), None):
            meta = await self._meta(digest)
            if meta is not None:
                return meta
            if pause is not None:
                await asyncio.sleep(pause)
        raise BlobNotFoundError("no such blob")

    async def size(self, ref: str) -> int | None:
        meta = await self._meta(names.blob_hash(ref))
        return None if meta is None else meta.size

    async def get(self, ref: str, *, limit: int) -> bytes:
        target = io.BytesIO()
        await self.get_into(ref, target, limit=limit)
        return target.getvalue()

    async def get_into(self, ref: str, target: BinaryIO, *, limit: int) -> int:
        digest = names.blob_hash(ref)
        meta = await self._wanted_meta(digest)
        if meta.size > limit:
            raise PayloadTooLargeError(f"the blob has {meta.size} bytes, {limit} are allowed")
        checked = hashlib.sha256()
        async for piece in self._pieces(digest, meta):
            checked.update(piece)
            await asyncio.to_thread(target.write, piece)
        if checked.hexdigest() != digest:
            raise BlobCorruptError("the blob's content does not have its hash")
        return meta.size

    async def _pieces(self, digest: str, meta: _Meta) -> AsyncIterator[bytes]:
        """In order, some of them fetched ahead."""
        ahead: list[asyncio.Task[bytes]] = []
        try:
            for index in range(meta.pieces):
                ahead.append(asyncio.create_task(self._piece(digest, index, meta.length(index))))
                if len(ahead) >= IN_FLIGHT:
                    yield await ahead.pop(0)
            while ahead:
                yield await ahead.pop(0)
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _piece(self, digest: str, index: int, length: int) -> bytes:
        for _ in range(_LAG):
            record = await direct_last(self._connection, self._stream, f"{self._prefix}.{digest}.{index}")
            if record is not None:
                if len(record.data) != length:
                    raise BlobCorruptError("a piece of the blob has another length")
                return record.data
            await asyncio.sleep(_LAG_PAUSE)
        raise BlobNotFoundError("a piece of the blob is missing")

    async def delete(self, ref: str) -> None:
        await purge(self._connection, self._stream, f"{self._prefix}.{names.blob_hash(ref)}.*")


def _meta_of(record: Record) -> _Meta:
    """Any worker may have written it."""
    try:
        size = json.loads(record.data)["size"]
    except (ValueError, KeyError, TypeError, RecursionError):
        size = None
    if type(size) is not int or not 0 <= size <= LARGEST:
        raise BlobCorruptError("the blob's size cannot be read")
    return _Meta(size)


def _hashed(source: BinaryIO) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    source.seek(0)
    while piece := source.read(BLOB_CHUNK):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _piece(source: BinaryIO, index: int) -> bytes:
    source.seek(index * BLOB_CHUNK)
    return source.read(BLOB_CHUNK)
