"""The codec of the warden's protocol: exact on golden frames, unmoved by noise, never fooled by data."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.frames import Decoder, Flag, Frame, Kind, Type, WireCommand

GOLDEN = Path(__file__).parents[2] / "contracts" / "golden" / "warden" / "frames.json"
NONCE = b"0123456789abcdef"


def welcome(nonce: bytes = NONCE) -> bytes:
    return frames.encode(Type.WELCOME, nonce + struct.pack(">HQIH", 1, 1, 0, 0))


def decode(decoder: Decoder, data: bytes, cut: int) -> list[Frame]:
    return [frame for at in range(0, len(data), cut) for frame in decoder.feed(data[at : at + cut])]


reliable = st.builds(
    lambda kind, command, seq, payload: frames.encode(kind, payload, command_id=command, seq=seq),
    st.sampled_from([Type.STARTED, Type.OUTPUT, Type.EXIT]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
)


@given(before=st.binary(max_size=500), sent=st.lists(reliable, max_size=5), cut=st.integers(1, 97))
def test_whatever_came_before_the_welcome_is_dropped_and_everything_after_it_is_kept(
    before: bytes, sent: list[bytes], cut: int
) -> None:
    decoder = Decoder(NONCE)
    got = decode(decoder, before + welcome() + b"".join(sent), cut)
    again = [
        frames.encode(Type(frame.type), frame.payload, command_id=frame.command_id, seq=frame.seq) for frame in got
    ]
    assert again == [welcome(), *sent]


@given(noise=st.binary(max_size=200_000), cut=st.integers(1, 70_000))
def test_without_our_nonce_nothing_is_believed_and_nothing_is_hoarded(noise: bytes, cut: int) -> None:
    decoder = Decoder(NONCE)
    others = welcome(b"another nonce!!!") + frames.encode(Type.EXIT, b"x", command_id=1, seq=1)
    assert decode(decoder, others + noise, cut) == []
    assert not decoder.synced
    assert len(decoder._buffer) <= frames.HEADER_SIZE + frames.NONCE_SIZE + cut


def test_a_welcome_cut_after_the_nonce_is_still_found() -> None:
    whole = b"torn" + welcome()
    decoder = Decoder(NONCE)
    assert decode(decoder, whole[:50], 50) == []
    assert [frame.type for frame in decoder.feed(whole[50:])] == [Type.WELCOME]


@pytest.mark.parametrize("damage", [0, 4, 10, 20, 24, 30])
def test_a_damaged_frame_is_an_error_not_a_guess(damage: int) -> None:
    decoder = Decoder(NONCE)
    frame = bytearray(frames.encode(Type.OUTPUT, b"some payload", command_id=1, seq=1))
    frame[damage] ^= 0x55
    with pytest.raises(WardenProtocolError):
        list(decoder.feed(welcome() + bytes(frame) + bytes(70_000)))


def test_padding_completes_any_torn_frame() -> None:
    assert len(frames.PADDING) == frames.HEADER_SIZE + frames.MAX_PAYLOAD
    assert not any(frames.PADDING)


@given(size=st.integers(0, 300_000))
def test_a_long_spec_travels_in_pieces_that_add_up(size: int) -> None:
    command = WireCommand(Kind.EXEC, Flag.SWEEP_ON_EXIT, 1, 2, b"/", [b"a" * size])
    decoder = Decoder(NONCE)
    got = list(decoder.feed(welcome() + command.frames(7)))[1:]
    pieces = [frame for frame in got if frame.type == Type.SPEC]
    offsets = [int.from_bytes(frame.payload[:4], "big") for frame in pieces]
    spec = b"".join(frame.payload[4:] for frame in pieces)
    assert spec == command.encode()
    assert offsets == [sum(len(frame.payload) - 4 for frame in pieces[:n]) for n in range(len(pieces))]
    assert got[-1].type == Type.START
    assert int.from_bytes(got[-1].payload, "big") == len(spec)


def test_a_spec_above_the_bound_and_a_nul_are_refused_before_they_are_sent() -> None:
    huge = WireCommand(Kind.EXEC, Flag(0), 1, 2, b"/", [b"a" * frames.MAX_SPEC])
    with pytest.raises(ValueError, match="larger than"):
        huge.frames(1)
    with pytest.raises(ValueError, match="NUL"):
        WireCommand(Kind.EXEC, Flag(0), 1, 2, b"/", [b"a\0b"]).frames(1)


@given(payload=st.binary(max_size=300))
def test_parsers_of_payloads_answer_or_refuse_but_never_crash(payload: bytes) -> None:
    for parse in (
        frames.parse_welcome,
        frames.parse_output,
        frames.parse_exit,
        frames.parse_u64,
        frames.parse_refused,
        frames.parse_records,
    ):
        try:
            parse(payload)
        except WardenProtocolError:
            continue


def golden() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(GOLDEN.read_text())
    return entries


@pytest.mark.parametrize("entry", golden(), ids=lambda entry: entry["name"])
def test_golden_frames_are_read_and_written_the_same(entry: dict[str, Any]) -> None:
    raw = bytes.fromhex(entry["hex"])
    decoder = Decoder(NONCE)
    got = list(decoder.feed(welcome() + raw))[1:]
    written = b"".join(
        frames.encode(Type(frame.type), frame.payload, command_id=frame.command_id, seq=frame.seq) for frame in got
    )
    assert written == raw
