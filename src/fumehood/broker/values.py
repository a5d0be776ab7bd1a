"""Large values and the blob store: out of a message on its way in, back into it on its way out."""

from __future__ import annotations

import json
from typing import Any

from fumehood.broker.ports import Blobs
from fumehood.errors import BlobCorruptError, PayloadTooLargeError
from fumehood.wire import blobref

LARGEST = 32 * 1024 * 1024
"""Bytes of JSON that one value may have, references resolved: what a process can hold several of."""
DEEPEST = 4
"""How often a reference may lead to another; ours do it twice."""


async def outline(value: Any, blobs: Blobs, *, above: int = blobref.INLINE_BYTES) -> Any:
    """The value, or a reference to it where it is large."""
    if isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) * 6 < above):
        return value
    data = blobref.encode(value)
    if len(data) <= above:
        return value
    if len(data) > LARGEST:
        raise PayloadTooLargeError(f"a value of {len(data)} bytes; {LARGEST} are allowed")
    return blobref.reference(await blobs.put(data), len(data))


async def inline(value: Any, blobs: Blobs, *, limit: int = LARGEST) -> Any:
    """The value with all references in it resolved, those in what they stand for too (a map's list may be one, and its
    items again). `PayloadTooLargeError` above `limit` bytes together, each counted as often as it stands there."""
    for _ in range(DEEPEST):
        refs = blobref.counted(value)
        if not refs:
            return value
        contents: dict[str, Any] = {}
        for ref, times in refs.items():
            data = await blobs.get(ref, limit=limit // times)
            limit -= len(data) * times
            contents[ref] = decode(data)
        value = blobref.replaced(value, contents)
    raise PayloadTooLargeError("a value whose references lead to references without end")


def decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BlobCorruptError("the blob does not hold a value") from None
