"""Text is cut as the model's own tokenizer cuts it. `minilm/record.py` says how the golden ids were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding import minilm
from fumehood.jobs.embedding.wordpiece import WordPieces, words

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "minilm" / "golden.json").read_text())["texts"]
SMALL = ["[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "able", "[", "]", "sep", "a", "##a"]


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces.read(minilm.folder() / minilm.VOCABULARY)


@pytest.fixture(scope="module")
def small() -> WordPieces:
    return WordPieces({piece: number for number, piece in enumerate(SMALL)})


@pytest.mark.parametrize("one", GOLDEN, ids=lambda one: ascii(one["text"][:24]))
def test_ids_are_those_of_the_reference(one: dict[str, Any], pieces: WordPieces) -> None:
    assert pieces.ids(one["text"], 10_000) == one["ids"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unaffable", ["un", "##aff", "##able"]),
        ("UNABLE able", ["un", "##able", "able"]),
        ("unaffx able", ["[UNK]", "able"]),
        ("a" * 100, ["a"] + ["##a"] * 99),
        ("a" * 101, ["[UNK]"]),
        ("[SEP]", ["[", "sep", "]"]),
        ("", []),
    ],
)
def test_the_longest_piece_is_taken(text: str, found: list[str], small: WordPieces) -> None:
    assert [SMALL[number] for number in small.ids(text, 1000)] == found


@given(text=st.text(max_size=60), limit=st.integers(0, 20))
def test_a_limit_gives_the_first_ones(text: str, limit: int, pieces: WordPieces) -> None:
    assert pieces.ids(text, limit) == pieces.ids(text, 10_000)[:limit]


@given(text=st.text(st.characters(codec="ascii"), max_size=60))
def test_the_short_way_for_ascii_is_the_long_way(text: str) -> None:
    """A letter that is not ASCII sends the whole text through the long one."""
    assert [*words(text), "π"] == list(words(text + " π"))


def test_a_vocabulary_has_its_marks() -> None:
    with pytest.raises(ConfigurationError, match=r"no \[SEP\]"):
        WordPieces({"[UNK]": 0, "[CLS]": 1})
