"""What is kept of a sandbox's output: written and read back, and nothing else read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import BlobCorruptError
from fumehood.sandbox.head_tail import HEAD_BYTES, TAIL_BYTES, Kept
from fumehood.sandbox.kept_logs import LARGEST, KeptLogs

KEPT = st.builds(
    lambda head, tail, gone: Kept(head, tail, len(head) + len(tail) + gone),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 10**12),
)


@given(KEPT, KEPT)
def test_it_is_read_back_as_it_was(stdout: Kept, stderr: Kept) -> None:
    logs = KeptLogs(stdout, stderr)
    assert KeptLogs.decode(logs.encode()) == logs
    assert json.loads(logs.encode())["truncated"] == {"stdout": stdout.left_out > 0, "stderr": stderr.left_out > 0}


def test_the_largest_fits_into_its_bound() -> None:
    full = Kept(b"\xff" * HEAD_BYTES, b"\xff" * TAIL_BYTES, 2**53)
    assert len(KeptLogs(full, full).encode()) <= LARGEST


GOOD = {"head": "YQ==", "tail": "", "total": 1}


@pytest.mark.parametrize(
    "said",
    [
        [],
        None,
        {},
        {"stdout": GOOD},
        {"stdout": "text", "stderr": "text"},
        *(
            {"stdout": {**GOOD, **wrong}, "stderr": GOOD}
            for wrong in (
                {"total": 0},
                {"total": True},
                {"total": "1"},
                {"total": 2**60},
                {"head": "?"},
                {"head": 5},
                {"tail": None},
            )
        ),
    ],
)
def test_what_is_no_such_blob_is_not_read(said: object) -> None:
    with pytest.raises(BlobCorruptError):
        KeptLogs.decode(json.dumps(said).encode())
    with pytest.raises(BlobCorruptError):
        KeptLogs.decode(b"\xff")
