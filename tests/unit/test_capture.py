"""Bounded capture: whatever the pieces, the repeats and the restarts, the kept bytes are the stream's first ones."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.capture import STDERR, STDOUT, Capture


@given(
    data=st.binary(max_size=400),
    limit=st.integers(0, 300),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    back=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    restart=st.booleans(),
)
def test_the_kept_part_is_a_prefix_whatever_is_repeated(
    data: bytes, limit: int, cuts: list[int], back: list[int], restart: bool
) -> None:
    with TemporaryDirectory() as folder:
        capture = Capture(limit, Path(folder) / "spool")
        position = step = 0
        while position < len(data):
            start = max(0, position - back[step % len(back)])  # a piece may begin before what we have
            end = min(len(data), position + cuts[step % len(cuts)])
            capture.write(STDOUT, start, data[start:end])
            position, step = end, step + 1
            if restart:  # the node was killed: the next one reads the spool
                capture.close()
                capture = Capture(limit, Path(folder) / "spool")
        assert capture.kept(STDOUT) == data[:limit]
        assert capture.kept(STDERR) == b""
        assert capture.truncated(STDOUT, len(data)) == (len(data) > limit)
        capture.discard()
        assert not (Path(folder) / "spool").exists()


def test_a_gap_is_an_error_never_silence() -> None:
    capture = Capture(100)
    capture.write(STDOUT, 0, b"abc")
    with pytest.raises(WardenProtocolError):
        capture.write(STDOUT, 4, b"e")


def test_a_flood_beyond_the_limit_is_not_kept() -> None:
    capture = Capture(10)
    for number in range(1000):
        capture.write(STDOUT, number * 1000, b"x" * 1000)
    assert capture.kept(STDOUT) == b"x" * 10


@pytest.mark.parametrize(
    ("data", "limit", "text"),
    [
        ("ab\u00e9".encode(), 4, "ab\u00e9"),
        ("ab\u00e9".encode(), 3, "ab"),
        ("\U0001f600x".encode(), 3, ""),
        (b"a\xffb", 10, "a\ufffdb"),
        (b"ab\xc3", 10, "ab\ufffd"),
        (b"a\0b", 10, "a\0b"),
    ],
)
def test_text_is_valid_and_a_cut_character_is_left_out(data: bytes, limit: int, text: str) -> None:
    capture = Capture(limit)
    capture.write(STDOUT, 0, data)
    assert capture.text(STDOUT, len(data)) == text
