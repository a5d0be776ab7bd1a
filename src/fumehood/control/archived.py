"""The records of a finished run as one blob: JSON lines, compressed, each as the journal held it.

The first line says whose they are. Who wrote a record is checked as in a journal, by the name that it bears; that the
blob is the right one is its hash's word, which stands in the run's line, where only servers write.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.broker.ports import Broker, Entry
from fumehood.control import records, summaries
from fumehood.errors import BlobCorruptError, PayloadTooLargeError
from fumehood.wire import blobref

FORMAT = 1
LARGEST = 256 * 1024 * 1024
"""Bytes of all records together, uncompressed: what a process can hold once in a while. A run with more stays in its
journal."""
ENTRY_BYTES = 400
"""About what a record costs in memory beside its data."""
KEPT_BYTES = LARGEST + LARGEST // 4
"""Of all archives that are kept unpacked: room for the largest one."""
KEPT_SECONDS = 60.0
"""Since somebody last read one. Whoever goes through it page by page comes back sooner, unless nobody waits for him."""
_LEVEL = 6


def reference_of(line: Mapping[str, Any]) -> str | None:
    """The blob that a run's line names, if any."""
    return blobref.ref_of(line.get(summaries.ARCHIVED))


async def pack(run_id: str, entries: Sequence[Entry]) -> bytes:
    """The same records always give the same bytes. `PayloadTooLargeError` where they could not be read back."""
    entries = [entry for entry in entries if records.is_genuine(run_id, entry)]
    if sum(len(entry.data) for entry in entries) > LARGEST:
        raise PayloadTooLargeError(f"a run whose records have more than {LARGEST} bytes")
    return await asyncio.to_thread(_packed, run_id, entries)


async def read(broker: Broker, run_id: str, line: Mapping[str, Any]) -> list[Entry]:
    """What was archived of a run, in order: nothing, where its line does not say so."""
    ref = reference_of(line)
    if ref is None:
        return []
    data = await broker.blobs().get(ref, limit=LARGEST)
    return await asyncio.to_thread(unpack, run_id, data)


@dataclass(slots=True)
class _Kept:
    entries: Sequence[Entry]
    weight: int
    until: float


class Archives:
    """What `read` gives, kept for a while: a reader who comes page by page has an archive unpacked once. One at a time
    is unpacked, so that what that takes is bounded as well."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._turn = asyncio.Lock()
        self._tidying: asyncio.TimerHandle | None = None

    async def read(self, run_id: str, line: Mapping[str, Any]) -> Sequence[Entry]:
        ref = reference_of(line)
        if ref is None:
            return []
        async with self._turn:
            kept = self._kept.get((run_id, ref))
            if kept is None:
                entries = await read(self._broker, run_id, line)
                kept = _Kept(entries, sum(len(entry.data) + ENTRY_BYTES for entry in entries), 0.0)
            self._keep((run_id, ref), kept)
        return kept.entries

    def _keep(self, place: tuple[str, str], kept: _Kept) -> None:
        kept.until = asyncio.get_running_loop().time() + KEPT_SECONDS
        self._kept[place] = kept
        self._kept.move_to_end(place)
        while sum(one.weight for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        if self._tidying is None:
            self._tidy()

    def _tidy(self) -> None:
        """Forget what nobody has read for long, now and again while there is anything."""
        loop = asyncio.get_running_loop()
        for place in [place for place, kept in self._kept.items() if kept.until <= loop.time()]:
            del self._kept[place]
        self._tidying = loop.call_later(KEPT_SECONDS, self._tidy) if self._kept else None


def _packed(run_id: str, entries: Sequence[Entry]) -> bytes:
    lines: list[dict[str, Any]] = [{"v": FORMAT, "run_id": run_id, "records": len(entries)}]
    lines += [{"seq": entry.seq, "id": entry.record_id, "data": entry.data.decode()} for entry in entries]
    return gzip.compress(b"".join(blobref.encode(line) + b"\n" for line in lines), _LEVEL, mtime=0)


def unpack(run_id: str, data: bytes) -> list[Entry]:
    """`BlobCorruptError` for what is not this run's archive, to the last record."""
    try:
        head, *lines = [json.loads(line) for line in _decompressed(data).splitlines()]
        known = (head["v"], head["run_id"], head["records"]) == (FORMAT, run_id, len(lines))
        entries = [Entry(int(line["seq"]), str(line["id"]), str(line["data"]).encode()) for line in lines]
    except (ValueError, KeyError, TypeError, zlib.error, EOFError) as error:
        raise BlobCorruptError("the archive of this run cannot be read") from error
    if not known or not all(records.is_genuine(run_id, entry) for entry in entries):
        raise BlobCorruptError("the archive is not this run's")
    return entries


def _decompressed(data: bytes) -> bytes:
    """As far as it may go: a few bytes can hold gigabytes."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    text = stream.decompress(data, 2 * LARGEST)
    if not stream.eof or stream.unused_data:
        raise ValueError("more, or less, than one archive")
    return text
