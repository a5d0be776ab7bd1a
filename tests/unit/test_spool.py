"""The spool: whatever the pieces, the repeats and the restarts, what is read is what was written where it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.sessions.output import behind
from fumehood.sandbox.sessions.readers import Place
from fumehood.sandbox.sessions.spool import Bounds, Spool
from fumehood.sandbox.sessions.values import Piece

SMALL = Bounds(head=20, tail=40, segment=8)


def read_all(spool: Spool, place: Place = (0, 0), limit: int = 16) -> list[Piece]:
    found: list[Piece] = []
    while pieces := spool.read(place, limit):
        assert sum(len(piece.data) for piece in pieces) <= limit
        found += pieces
        place = behind(place, pieces)
    return found


@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    back=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    restart=st.booleans(),
    limit=st.integers(1, 50),
    start=st.integers(0, 320),
)
def test_what_is_read_is_what_was_written(
    data: bytes, cuts: list[int], back: list[int], restart: bool, limit: int, start: int
) -> None:
    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool", SMALL)
        position = step = 0
        while position < len(data):
            begin = max(0, position - back[step % len(back)])  # a piece may begin before what we have
            end = min(len(data), position + cuts[step % len(cuts)])
            spool.write(STDOUT, begin, data[begin:end])
            position, step = end, step + 1
            if restart:  # the process was killed: the next one finds the files
                spool.close()
                spool = Spool(Path(folder) / "spool", SMALL)
        assert spool.written == (len(data), 0)
        assert spool.head(STDOUT, SMALL.head) == data[: SMALL.head]
        assert spool.kept <= SMALL.head + SMALL.tail + 3 * SMALL.segment
        pieces = read_all(spool, (start, 0), limit)
        for piece in pieces:
            assert piece.stream == STDOUT
            assert piece.data == data[piece.offset : piece.offset + len(piece.data)]
        read = {at for piece in pieces for at in range(piece.offset, piece.offset + len(piece.data))}
        assert {at for at in range(start, len(data)) if at < SMALL.head or at >= len(data) - SMALL.tail} <= read
        spool.discard()
        assert not (Path(folder) / "spool").exists()
        assert (spool.written, spool.read((0, 0), 100)) == ((len(data), 0), [])


def test_a_gap_is_an_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", SMALL)
    spool.write(STDOUT, 0, b"abc")
    with pytest.raises(WardenProtocolError, match="jumps from byte 3 to 5"):
        spool.write(STDOUT, 5, b"x")
    assert read_all(spool) == [Piece(STDOUT, 0, b"abc")]


def test_nothing_is_made_before_the_first_byte(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "spool", SMALL)
    assert (spool.written, spool.read((0, 0), 10), spool.head(STDERR, 10)) == ((0, 0), [], b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "err", "expected"),
    [(100, 100, (5, 5)), (100, 2, (8, 2)), (2, 100, (2, 8)), (3, 3, (3, 3)), (100, 0, (10, 0))],
)
def test_neither_stream_starves_the_other(tmp_path: Path, out: int, err: int, expected: tuple[int, int]) -> None:
    spool = Spool(tmp_path / "spool", Bounds(head=200))
    spool.write(STDOUT, 0, b"o" * out)
    spool.write(STDERR, 0, b"e" * err)
    sizes = {piece.stream: len(piece.data) for piece in spool.read((0, 0), 10)}
    assert (sizes.get(STDOUT, 0), sizes.get(STDERR, 0)) == expected


def test_a_full_disk_leaves_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a piece was written when the disk was full: it comes again as a whole."""
    spool = Spool(tmp_path / "spool", SMALL)
    spool.write(STDOUT, 0, b"abc")
    real = os.pwrite

    def full(file: int, data: memoryview, at: int) -> int:
        real(file, data[:2], at)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space"):
        spool.write(STDOUT, 3, b"defghijklm")
    assert spool.written == (3, 0)
    monkeypatch.undo()
    spool.write(STDOUT, 3, b"defghijklm")
    assert b"".join(piece.data for piece in read_all(spool)) == b"abcdefghijklm"
