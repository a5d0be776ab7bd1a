"""The canonical form of JSON values, against the library that defines it here."""

from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from fumehood.errors import InvalidRequestError
from fumehood.wire.canonical import LARGEST_INTEGER, canonical_json

TEXTS = st.text() | st.text(st.characters(max_codepoint=0x7F))
"""The second ones have control characters and quotes more often."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


@given(VALUES)
@example({"\ue000": 1, "\U00010000": 2})
@example([LARGEST_INTEGER, -LARGEST_INTEGER])
@example("".join(map(chr, range(0x80))) + "\u2028\u2029")
@example(LARGEST_INTEGER + 1)
@example("\ud800")
@example({"\ud800": 1})
@example({1: "a name that is a number"})
@example({True: 1, "true": 2})
@example(b"bytes")
def test_the_quick_form_is_the_canonical_one(value: Any) -> None:
    try:
        expected = rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        with pytest.raises(InvalidRequestError):
            canonical_json(value)
    else:
        assert canonical_json(value) == expected


def test_what_is_nested_too_deeply_is_refused() -> None:
    value: Any = None
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        canonical_json(value)
