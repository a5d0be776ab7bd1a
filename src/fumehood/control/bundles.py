"""Bundles: repositories that somebody uploads, and names in a job by their hash.

They lie where what sandboxes printed lies, which providers may read and which may be forgotten: a bundle is for a job
that comes soon. A hash says what is in it, not whose it is; so a claim is kept beside it for each tenant that uploaded
it, and a tenant that merely knows a hash gets nothing for it.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import Broker, Bucket
from fumehood.control.claims import claim_key
from fumehood.errors import InvalidRequestError, OverloadedError, PayloadTooLargeError
from fumehood.wire.bundle_api import MAX_BUNDLE_BYTES, SOURCE_FORM, BundleView

AT_ONCE: Final = 8
"""Uploads under way: each takes its size on this machine's disk for a moment."""
OF_A_TENANT: Final = 3
"""Of these: a slow client keeps nobody else from uploading."""
RETRY_SECONDS: Final = 2
HELD_BYTES: Final = 256 * 1024
"""In memory, between two writes to the disk."""
_SCHEME: Final = "bundle:"
_KIND: Final = "bundle"


class Bundles:
    def __init__(self, broker: Broker, *, most_bytes: int = MAX_BUNDLE_BYTES) -> None:
        self._blobs = broker.blobs(NODES_TENANT)
        self._claims = broker.bucket(Bucket.IDEMPOTENCY)
        self._most_bytes = most_bytes
        self._under_way: Counter[str] = Counter()

    async def take(self, tenant: str, body: AsyncIterator[bytes]) -> BundleView:
        """Store it, and remember who brought it. The same one may be brought any number of times."""
        if self._under_way.total() >= AT_ONCE or self._under_way[tenant] >= OF_A_TENANT:
            raise OverloadedError("too many bundles are being uploaded: come again", retry_after_seconds=RETRY_SECONDS)
        self._under_way[tenant] += 1
        try:
            with tempfile.TemporaryFile() as file:
                size = await self._received(body, file)
                ref = await self._blobs.put_file(file)
        finally:
            self._under_way[tenant] -= 1
        await self._claims.put(claim_key(_KIND, ref, tenant), b"")
        return BundleView(source=_SCHEME + ref, size=size)

    async def owned(self, tenant: str, source: str) -> bool:
        """Whether this tenant uploaded it, not long ago. What is no bundle is nobody's."""
        if re.fullmatch(SOURCE_FORM, source) is None:
            return False
        return await self._claims.get(claim_key(_KIND, source.removeprefix(_SCHEME), tenant)) is not None

    async def _received(self, body: AsyncIterator[bytes], file: BinaryIO) -> int:
        size, held = 0, bytearray()
        async for piece in body:
            size += len(piece)
            if size > self._most_bytes:
                raise PayloadTooLargeError(f"a bundle may have {self._most_bytes} bytes")
            held += piece
            if len(held) >= HELD_BYTES:
                await asyncio.to_thread(file.write, bytes(held))
                held.clear()
        if not size:
            raise InvalidRequestError("the bundle is empty: send a git bundle, or a tar archive")
        await asyncio.to_thread(file.write, bytes(held))
        return size
