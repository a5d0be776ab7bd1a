"""Taking the engine's stream framing apart."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fumehood.sandbox.docker.attach import LAST_WORDS, Demultiplexer


@given(
    parts=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=200)), max_size=20),
    cut=st.integers(1, 50),
)
def test_whatever_the_pieces_the_streams_come_apart(parts: list[tuple[int, bytes]], cut: int) -> None:
    raw = b"".join(struct.pack(">BxxxI", stream, len(data)) + data for stream, data in parts)
    demultiplexer = Demultiplexer()
    got = b"".join(demultiplexer.feed(raw[at : at + cut]) for at in range(0, len(raw), cut))
    assert got == b"".join(data for stream, data in parts if stream == 1)
    errors = b"".join(data for stream, data in parts if stream == 2)
    assert bytes(demultiplexer.errors) == errors[:LAST_WORDS]
