"""References in place of large values: exactly two keys, found anywhere, put back to what they stand for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.broker import values
from fumehood.broker.memory import MemoryBroker
from fumehood.errors import BlobCorruptError, BlobNotFoundError, PayloadTooLargeError
from fumehood.wire import blobref

HASH = "sha256:" + "0" * 64
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "value",
    [
        {"$blob": HASH},
        {"$blob": HASH, "size": 1, "more": 1},
        {"$blob": HASH, "size": True},
        {"$blob": HASH, "size": "1"},
        {"$blob": HASH.upper(), "size": 1},
        {"$blob": HASH + "\n", "size": 1},
        {"$blob": ["x"], "size": 1},
        [HASH],
        HASH,
        None,
    ],
)
def test_what_only_looks_like_a_reference_is_none(value: Any) -> None:
    assert blobref.ref_of(value) is None
    assert blobref.replaced(value, {HASH: "content"}) == value


@given(JSON)
def test_a_mention_is_found_wherever_it_stands(value: Any) -> None:
    assert blobref.mentions_blob([value, {"a": [{"$blob": value}]}])
    assert blobref.mentions_blob(value) == ('"$blob":' in json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def test_a_mention_is_found_in_a_value_deeper_than_the_stack() -> None:
    value: Any = {"$blob": 1}
    for _ in range(100_000):
        value = [value]
    assert blobref.mentions_blob(value)
    assert blobref.refs(value) == []


@given(JSON, st.integers(0, 200))
async def test_a_value_comes_back_as_it_was_whether_it_was_outlined_or_not(value: Any, above: int) -> None:
    if blobref.mentions_blob(value):
        return
    blobs = MemoryBroker().blobs()
    kept = await values.outline(value, blobs, above=above)
    small = len(blobref.encode(value)) <= above
    assert (kept == value) if small else True
    assert blobref.encode(await values.inline({"x": [kept]}, blobs)) == blobref.encode({"x": [value]})


@given(JSON)
async def test_what_is_larger_than_its_bound_never_travels(value: Any) -> None:
    kept = await values.outline(value, MemoryBroker().blobs(), above=64)
    assert len(blobref.encode(kept)) <= max(64, len(blobref.encode(blobref.reference(HASH, 10**9))))


async def test_one_bound_holds_for_all_references_of_a_value_together() -> None:
    blobs = MemoryBroker().blobs()
    kept = [await values.outline("x" * 1000 + str(n), blobs, above=10) for n in range(3)]
    assert len(await values.inline(kept, blobs, limit=3100)) == 3
    with pytest.raises(PayloadTooLargeError):
        await values.inline(kept, blobs, limit=2500)


async def test_the_same_reference_counts_as_often_as_it_stands_there() -> None:
    """Written out it does: a small value could otherwise become an endless one."""
    blobs = MemoryBroker().blobs()
    kept = await values.outline("x" * 1000, blobs, above=10)
    assert await values.inline([kept] * 5, blobs, limit=5100) == ["x" * 1000] * 5
    with pytest.raises(PayloadTooLargeError):
        await values.inline([kept] * 5, blobs, limit=4000)


async def test_a_reference_to_nothing_or_to_no_value_is_an_error() -> None:
    blobs = MemoryBroker().blobs()
    with pytest.raises(BlobNotFoundError):
        await values.inline(blobref.reference(HASH, 1), blobs)
    ref = await blobs.put(b"not a value")
    with pytest.raises(BlobCorruptError):
        await values.inline(blobref.reference(ref, 11), blobs)


async def test_a_value_that_no_process_could_hold_is_refused() -> None:
    with pytest.raises(PayloadTooLargeError):
        await values.outline("x" * values.LARGEST, MemoryBroker().blobs())
