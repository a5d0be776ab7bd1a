"""What a model is shown of a stranger's output: never too much, never hidden, and exact about what is missing."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.mcp.bounds import HeadTail, clipped, last_line, shown, visible, whole_characters

PIECES = st.lists(st.binary(max_size=300), max_size=30)
LIMITS = st.integers(2, 400)


def fed(pieces: list[bytes], limit: int) -> HeadTail:
    stream = HeadTail(limit)
    for piece in pieces:
        stream.feed(piece)
    return stream


@given(PIECES, LIMITS)
def test_what_is_shown_and_what_is_left_out_is_the_whole(pieces: list[bytes], limit: int) -> None:
    data = b"".join(pieces)
    found = fed(pieces, limit).excerpt()
    assert found.total_bytes == len(data)
    if not found.truncated:
        assert found.text == shown(data)
        assert len(data) <= limit
        assert found.left_out_from is None
        return
    assert found.left_out_from is not None
    assert found.left_out_to is not None
    assert 0 <= found.left_out_from < found.left_out_to <= len(data)
    kept = found.left_out_from + len(data) - found.left_out_to
    assert kept <= limit
    assert found.text.startswith(shown(data[: found.left_out_from]))
    assert found.text.endswith(shown(data[found.left_out_to :]))


@given(PIECES, LIMITS)
def test_it_does_not_matter_how_it_comes(pieces: list[bytes], limit: int) -> None:
    assert fed(pieces, limit).excerpt() == fed([b"".join(pieces)], limit).excerpt()


@given(st.text(st.characters(codec="utf-8", exclude_characters="�"), min_size=1), st.integers(16, 400))
def test_no_character_is_cut_through(text: str, limit: int) -> None:
    found = fed([(text * (limit + 1)).encode()], limit).excerpt()
    assert found.truncated
    assert "�" not in found.text


@given(st.binary(max_size=50), st.integers(1, 10**6), st.binary(max_size=50), LIMITS)
def test_bytes_that_nobody_has_are_never_taken_for_shown(before: bytes, lost: int, after: bytes, limit: int) -> None:
    stream = HeadTail(limit)
    stream.feed(before)
    stream.skip(lost)
    stream.feed(after)
    found = stream.excerpt()
    assert found.truncated
    assert found.total_bytes == len(before) + lost + len(after)
    assert found.left_out_from is not None
    assert found.left_out_to is not None
    assert found.left_out_from <= len(before)
    assert found.left_out_to >= len(before) + lost


def test_memory_is_bounded() -> None:
    stream = HeadTail(1000)
    for _ in range(2000):
        stream.feed(b"x" * 10_000)
    assert stream.position == 20_000_000
    assert len(stream.excerpt().text) < 1100


def test_from_somewhere_on() -> None:
    stream = HeadTail(10, 1000)
    stream.feed(b"abcdefghijklmnop")
    found = stream.excerpt()
    assert (found.left_out_from, found.left_out_to, found.total_bytes) == (1005, 1011, 1016)


@given(st.text())
def test_nothing_is_hidden(text: str) -> None:
    for char in visible(text).replace("\r\n", ""):
        assert char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cs")
        assert not 0xE0000 <= ord(char) <= 0xE0FFF
        assert char not in "\u202e\u2066\u200b\ufeff\u2028"


@given(st.binary())
def test_whatever_it_is_it_can_be_sent(data: bytes) -> None:
    shown(data).encode()


@pytest.mark.parametrize(
    ("hostile", "seen"),
    [
        (b"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        (b"a\rb", "a\\x0db"),
        (b"a\r\nb\tc\n", "a\r\nb\tc\n"),
        (b"\xff\xfe", "��"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\U000e0041".encode(), "\\U000e0041"),
        (b"\x00", "\\x00"),
        ("grüße 日本 🎉".encode(), "grüße 日本 🎉"),
    ],
)
def test_hostile_output(hostile: bytes, seen: str) -> None:
    assert shown(hostile) == seen


@given(st.text(min_size=1), st.data())
def test_a_page_ends_with_a_whole_character(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    end = data.draw(st.integers(4, max(4, len(raw))))
    page = whole_characters(raw[:end])
    assert raw.startswith(page)
    assert page
    page.decode()
    assert len(raw[:end]) - len(page) <= 3


@given(st.binary(min_size=1))
def test_a_page_is_never_empty(data: bytes) -> None:
    """Else whoever reads page by page would never come to the end."""
    assert whole_characters(data)


def test_the_last_line_says_something() -> None:
    assert last_line(b"one\ntwo\r\n\n") == "two"
    assert last_line(b"10%\r20%\r") == "20%"
    assert last_line(b"\n\n") == ""
    assert len(last_line(b"x" * 10_000)) == 200
    assert re.fullmatch(r"[ -~]*", last_line(b"\x1b[31mred\x1b[0m"))


@given(st.text(max_size=200), st.integers(4, 100))
def test_a_clipped_text_fits(text: str, most: int) -> None:
    found, cut = clipped(text, most)
    assert len(found.encode("utf-8", "replace")) <= most
    assert cut == (found != text)
