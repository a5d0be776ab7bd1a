"""Records of a journal as bytes: small enough for one message, whatever they hold.

Two things keep a record small. Values that are large go by reference, so that a run's state stays small as well. What
is still too long for a message (a map over thousands of items) is stored whole as a blob, and a stub that names it is
appended in its place: the journal's order and its compare-and-set stay what they are.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from typing import Any

from fumehood.broker import values
from fumehood.broker.ports import Blobs, Entry
from fumehood.engine.definition import ITEM_SEPARATOR
from fumehood.engine.events import Event, Record, SignalReceived
from fumehood.errors import PayloadTooLargeError
from fumehood.wire import blobref

ITEM_BYTES = 16 * 1024
"""What an item of a map may hold itself: there may be ten thousand of them in one state."""
SMALL_ITEM_BYTES = 1024
"""And where there are so many that a record would become too large."""
RECORD_BYTES = 1024 * 1024
"""Half of what the broker's messages may have."""
_VALUES = ("input", "output", "said", "data", "continued_input")
_STUB = b'{"record":'


class UnwritableError(ValueError):
    """Something in the record cannot be written as JSON: not a number, or half a character."""


async def keep(record: Record, blobs: Blobs) -> tuple[Record, bytes]:
    """The record with large values by reference (the same object where there is nothing to do), and its bytes.
    `PayloadTooLargeError` where even that would give a record that nobody could read back."""
    data = _encoded(record)
    for bound, item_bytes in ((ITEM_BYTES, ITEM_BYTES), (RECORD_BYTES * 4, SMALL_ITEM_BYTES)):
        if len(data) > bound:
            kept = await _keep_values(record, blobs, item_bytes)
            record, data = (record, data) if kept is record else (kept, _encoded(kept))
    if len(data) > values.LARGEST:
        raise PayloadTooLargeError(f"a decision of {len(data)} bytes; {values.LARGEST} are allowed")
    if len(data) > RECORD_BYTES:
        data = json.dumps({"record": blobref.reference(await blobs.put(data), len(data))}).encode()
    return record, data


def _encoded(record: Record) -> bytes:
    try:
        return record.encode()
    except (ValueError, RecursionError) as error:
        raise UnwritableError("a record that JSON cannot carry") from error


async def _keep_values(record: Record, blobs: Blobs, item_bytes: int) -> Record:
    events = [await _keep_event(event, blobs, item_bytes) for event in record.events]
    if all(new is old for new, old in zip(events, record.events, strict=True)):
        return record
    return replace(record, events=tuple(events))


async def _keep_event(event: Event, blobs: Blobs, item_bytes: int) -> Event:
    changed: dict[str, Any] = {}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name == "inputs":
            kept: Any = [await values.outline(item, blobs, above=item_bytes) for item in value]
        elif field.name in _VALUES:
            kept = await _keep_value(value, blobs, item_bytes if _is_one_of_many(event) else blobref.INLINE_BYTES)
        else:
            continue
        if kept != value:
            changed[field.name] = kept
    return replace(event, **changed) if changed else event


def _is_one_of_many(event: Event) -> bool:
    return isinstance(event, SignalReceived) or ITEM_SEPARATOR in (getattr(event, "step", None) or "")


async def _keep_value(value: Any, blobs: Blobs, above: int) -> Any:
    """Of a list that is too long (what thousands of items gave) the items go by themselves first, so that whoever wants
    one of them need not fetch all."""
    if isinstance(value, list) and (size := len(blobref.encode(value))) > above:
        each = ITEM_BYTES if size <= values.LARGEST else SMALL_ITEM_BYTES
        value = [await values.outline(item, blobs, above=each) for item in value]
    return await values.outline(value, blobs, above=above)


def name(run_id: str, after: int, data: bytes) -> str:
    """A record's id: derived from what it holds and what it stands behind."""
    return f"{run_id}.{after}.{hashlib.sha256(data).hexdigest()[:16]}"


def is_genuine(run_id: str, entry: Entry) -> bool:
    """Whether a decider wrote this. A worker in the engine's own account could have the server deliver some message of
    another kind to a journal, but not one whose name fits what it holds."""
    first, _, last = entry.record_id.rpartition(".")
    return first.startswith(f"{run_id}.") and last == hashlib.sha256(entry.data).hexdigest()[:16]


def is_stub(entry: Entry) -> bool:
    """Whether the record itself lies elsewhere."""
    return entry.data.startswith(_STUB)


async def decode(entry: Entry, blobs: Blobs) -> Record:
    data = entry.data
    if is_stub(entry):
        ref = blobref.ref_of(json.loads(data)["record"])
        data = await blobs.get(ref or "", limit=values.LARGEST)
    return Record.decode(data)
