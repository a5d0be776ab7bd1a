"""A run as its journal tells it, by way of a snapshot where there is one.

Of a run that was archived, the beginning of its history lies in a blob that its line names, and the journal holds what
came later, if anything (`archive.py`).

A snapshot is taken every `EVERY` events and kept in the bucket `snapshots`: a line that says behind which record it was
taken, and the state, or a reference to a blob where that is large. It may be missing, old or unreadable, or of a
journal that is no more: then the journal is read from further back.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fumehood.broker.ports import Broker, Bucket, Entry, KvEntry
from fumehood.control import archived, records, summaries
from fumehood.control.archived import Archives
from fumehood.engine import snapshot
from fumehood.engine.fold import fold
from fumehood.engine.state import RunState
from fumehood.errors import BlobCorruptError, BlobNotFoundError, KeyConflictError, PayloadTooLargeError
from fumehood.wire import blobref

EVERY = 200
"""Events between two snapshots: what a decider that has never seen the run must read at most."""
LONG, LONG_BYTES = 400, 4 * 1024 * 1024
"""Records, and bytes of them, from which on a journal is read in several parts, between which it may be archived."""
_INLINE = 1024 * 1024
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run as its journal tells it."""

    state: RunState | None
    seq: int = 0
    """The journal's last number that the state holds; 0: the journal is empty."""
    weight: int = 0
    """About how many bytes the state holds: those of the records it was made from."""


async def load(broker: Broker, run_id: str) -> tuple[RunState | None, int]:
    """The state, and the journal's last number that it holds."""
    found = await read(broker, run_id)
    return found.state, found.seq


async def read(broker: Broker, run_id: str) -> Loaded:
    kept = await _snapshot(broker, run_id)
    if kept is not None:
        entries = await broker.journal.read(run_id, after=kept.seq - 1)
        # A snapshot lies in another stream. After a power cut or a restore it may be of a journal that is no more.
        if entries and (entries[0].seq, entries[0].record_id) == (kept.seq, kept.record_id):
            return await _folded(broker, run_id, entries[1:], kept)
    entries = await broker.journal.read(run_id)
    found = await _folded(broker, run_id, entries, None)
    if found.state is not None and len(entries) < LONG and found.weight < LONG_BYTES:
        return found
    whole = await _whole(broker, run_id, entries)
    if not whole.archived:
        return found
    folded = await _folded(broker, run_id, whole.entries, None)
    return Loaded(folded.state, whole.last, folded.weight)


@dataclass(frozen=True, slots=True)
class History:
    """Records of a run, wherever they lie."""

    entries: Sequence[Entry]
    last: int
    """The last number that was read from the journal; 0: nothing was."""
    archived: bool


async def history(
    broker: Broker, run_id: str, *, after: int = 0, limit: int | None = None, archives: Archives | None = None
) -> History:
    """All records past `after`, those that were archived included, or the first `limit` of them. Whoever comes for one
    page after the other brings the `archives` that he has come by."""
    entries = await broker.journal.read(run_id, after=after, limit=limit)
    return await _whole(broker, run_id, entries, after, limit, archives)


async def _whole(
    broker: Broker,
    run_id: str,
    entries: Sequence[Entry],
    after: int = 0,
    limit: int | None = None,
    archives: Archives | None = None,
) -> History:
    """What was read from the journal, behind what was archived. The run's line is to be read after the journal: where
    that was not whole any more, the line says so by then."""
    line, _ = await summaries.read(broker, run_id)
    kept = await (archived.read(broker, run_id, line) if archives is None else archives.read(run_id, line))
    behind = kept[-1].seq if kept else 0
    first = bisect_right(kept, after, key=lambda entry: entry.seq)
    whole = [*kept[first : None if limit is None else first + limit], *(one for one in entries if one.seq > behind)]
    return History(whole[:limit], entries[-1].seq if entries else 0, bool(kept))


async def fold_all(broker: Broker, run_id: str, entries: Sequence[Entry]) -> RunState | None:
    """The state that records give."""
    return (await _folded(broker, run_id, entries, None)).state


async def _folded(broker: Broker, run_id: str, entries: Sequence[Entry], kept: _Kept | None) -> Loaded:
    blobs = broker.blobs()
    state, seq, weight = (kept.state, kept.seq, kept.weight) if kept is not None else (None, 0, 0)
    for entry in entries:
        seq = entry.seq
        if records.is_genuine(run_id, entry):
            state = fold(run_id, [await records.decode(entry, blobs)], state)
            weight += len(entry.data)
    return Loaded(state, seq, weight)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A snapshot, and the record that it was made behind."""

    state: RunState
    seq: int
    record_id: str
    weight: int


async def _snapshot(broker: Broker, run_id: str) -> _Kept | None:
    entry = await broker.bucket(Bucket.SNAPSHOTS).get(run_id)
    if entry is None:
        return None
    try:
        header, _, data = entry.value.partition(b"\n")
        document = json.loads(header)
        seq, record_id, ref = int(document["seq"]), str(document["id"]), blobref.ref_of(document.get("blob"))
        if ref is not None:
            data = await broker.blobs().get(ref, limit=_LARGEST)
    except (ValueError, KeyError, TypeError, BlobNotFoundError, BlobCorruptError, PayloadTooLargeError):
        return None
    state = snapshot.decode(data)
    return _Kept(state, seq, record_id, len(data)) if state is not None and state.run_id == run_id else None


def is_due(before: RunState | None, after: RunState) -> bool:
    """Whether a decision passed one of the marks."""
    return not after.status.ended and after.events // EVERY > (before.events if before is not None else 0) // EVERY


async def save(broker: Broker, state: RunState, seq: int, record_id: str) -> None:
    """Best effort: a projection that the next one replaces."""
    data = snapshot.encode(state)
    bucket = broker.bucket(Bucket.SNAPSHOTS)
    before = await bucket.get(state.run_id)
    header: dict[str, object] = {"seq": seq, "id": record_id}
    kept = None
    if len(data) > _INLINE:
        kept = await broker.blobs().put(data)
        header["blob"] = blobref.reference(kept, len(data))
        data = b""
    revision = await bucket.put(state.run_id, json.dumps(header).encode() + b"\n" + data)
    await _forget_blob(broker, before, but=kept)
    last = await broker.journal.last(state.run_id)
    if last is None or last.seq != seq:  # the run moved on, perhaps to its end: nobody would take this away any more
        with contextlib.suppress(KeyConflictError):
            await bucket.delete(state.run_id, revision=revision)
            await _forget_blob(broker, KvEntry(state.run_id, json.dumps(header).encode(), revision))


async def forget(broker: Broker, run_id: str) -> None:
    """The run has ended: its snapshot is not needed any more."""
    bucket = broker.bucket(Bucket.SNAPSHOTS)
    entry = await bucket.get(run_id)
    if entry is not None:
        await bucket.delete(run_id)
        await _forget_blob(broker, entry)


async def _forget_blob(broker: Broker, entry: KvEntry | None, *, but: str | None = None) -> None:
    if entry is None:
        return
    try:
        ref = blobref.ref_of(json.loads(entry.value.partition(b"\n")[0]).get("blob"))
    except (ValueError, AttributeError):
        return
    if ref is not None and ref != but:
        await broker.blobs().delete(ref)
