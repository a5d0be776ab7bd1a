"""The beginning and the end of a stream, held against the whole of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fumehood.sandbox.head_tail import HeadTail, Kept, broken_end, broken_start, last_lines

PIECES = st.lists(st.binary(max_size=40), max_size=12)
TEXTS = st.text(st.sampled_from("ab\n€é😀"), max_size=60)
LIMIT = st.integers(0, 30)


@given(PIECES, LIMIT, LIMIT)
@example([b"x" * 31, b"y"], 0, 0)
def test_it_keeps_what_a_slice_would(pieces: list[bytes], head: int, tail: int) -> None:
    made, whole = HeadTail(head, tail), b"".join(pieces)
    for piece in pieces:
        made.push(piece)
        assert len(made._head) <= head
        assert len(made._tail) <= 2 * tail
    assert made.total == len(whole)
    assert made.head == whole[:head]
    rest = whole[head:]
    assert made.tail == rest[max(0, len(rest) - tail) :]
    assert made.kept.left_out == max(0, len(whole) - head - tail)


@given(PIECES, PIECES, st.integers(1, 100), LIMIT, LIMIT)
def test_what_is_lost_is_counted_and_nothing_is_glued_over_it(
    before: list[bytes], after: list[bytes], count: int, head: int, tail: int
) -> None:
    made = HeadTail(head, tail)
    for piece in before:
        made.push(piece)
    made.lose(count)
    for piece in after:
        made.push(piece)
    first, second = b"".join(before), b"".join(after)
    assert made.total == len(first) + count + len(second)
    assert made.head == first[:head]
    assert made.tail == second[max(0, len(second) - tail) :]
    assert made.kept.left_out >= count


@given(TEXTS, st.integers(0, 12), st.integers(0, 12))
def test_a_cut_goes_between_characters_and_is_counted(text: str, head: int, tail: int) -> None:
    data, made = text.encode(), HeadTail(head, tail)
    made.push(data)
    shown = made.kept.text()
    if len(data) <= head + tail:
        assert shown == text
        return
    first, mark, last = shown.partition("\n[… ")
    left_out, _, last = last.partition(" bytes left out …]\n")
    assert mark
    assert "�" not in shown
    assert text.startswith(first)
    assert text.endswith(last)
    assert len(first.encode()) <= head
    assert len(last.encode()) <= tail
    assert len(first.encode()) + int(left_out) + len(last.encode()) == len(data)
    assert len(data) - head - tail <= int(left_out) <= len(data) - head - tail + 6


@given(st.binary(max_size=60))
def test_what_is_no_text_becomes_the_sign_for_it(data: bytes) -> None:
    assert Kept(data[:20], data[20:], len(data)).text() == data.decode("utf-8", "replace")


@given(TEXTS, st.integers(0, 60))
def test_a_stream_that_goes_on_shows_whole_characters(text: str, upto: int) -> None:
    data = text.encode()[:upto]
    shown = Kept(data, b"", len(data)).text(goes_on=True)
    assert text.startswith(shown)
    assert 0 <= len(data) - len(shown.encode()) == broken_end(data) <= 3


@given(TEXTS, st.integers(0, 60))
def test_the_rest_of_a_character_is_known(text: str, start: int) -> None:
    data = text.encode()
    rest = data[start:]
    assert text.endswith(rest[broken_start(rest) :].decode())


@given(st.binary(max_size=30))
def test_a_broken_end_is_what_a_decoder_waits_with(data: bytes) -> None:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    assert broken_end(data) == len(decoder.getstate()[0])


@given(st.text(st.sampled_from("ab\r\n\u2028"), max_size=40), st.integers(1, 8))
def test_the_last_lines_are_the_last_lines(text: str, count: int) -> None:
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    assert last_lines(text, count) == "".join(lines[-count:])


@pytest.mark.parametrize("size", [0, 1, 512 * 1024, 1024 * 1024, 1024 * 1024 + 1])
def test_a_megabyte_is_kept_whole(size: int) -> None:
    made = HeadTail()
    made.push(b"x" * size)
    assert made.kept.left_out == max(0, size - 1024 * 1024)
