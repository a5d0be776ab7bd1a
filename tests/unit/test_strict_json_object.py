"""An object that is read keeps the text of each of its members, and is read no other than by the rest of the house."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import InvalidRequestError
from fumehood.wire import strict_json

SPACE = st.text(" \t\n\r", max_size=2)
TEXTS = st.recursive(
    st.sampled_from(
        ["null", "true", "false", "0", "-0", "1.10", "1E2", "1e-7", "12345678901234567890", '""', '"\\u00e9"']
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: "[ " + " , ".join(some) + "]")
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(
            lambda some: "{" + ",".join(f"{json.dumps(name)}: {text}" for name, text in some.items()) + " }"
        )
    ),
    max_leaves=6,
)
NAMES = st.text(max_size=4)


@given(members=st.dictionaries(NAMES, TEXTS, max_size=4), spaces=st.lists(SPACE, min_size=6, max_size=6))
def test_each_text_is_what_stood_there(members: dict[str, str], spaces: list[str]) -> None:
    a, b, c, d, e, f = spaces
    inside = f"{a},{b}".join(f"{json.dumps(name)}{c}:{d}{text}" for name, text in members.items())
    body = f"{e}{{{f}{inside}{a}}}{b}".encode()
    values, texts = strict_json.loads_object(body)
    assert texts == members
    assert values == strict_json.loads(body)


@given(data=st.binary(max_size=12) | st.text('{}[]":, 01ae\\\n', max_size=12).map(str.encode))
def test_what_is_refused_is_refused_by_both(data: bytes) -> None:
    try:
        expected: Any = strict_json.loads(data)
    except InvalidRequestError:
        expected = None
    if isinstance(expected, dict):
        assert strict_json.loads_object(data)[0] == expected
    else:
        with pytest.raises(InvalidRequestError):
            strict_json.loads_object(data)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "must be a JSON object"),
        (b"", "line 1, column 1"),
        (b'{"a": 1, "a": 2}', "same key twice"),
        (b'{"a": {"b": 1, "b": 2}}', "same key twice"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": Infinity}', "not JSON"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a":\n1,}', "line 2, column 3"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b"\xff", "UTF-8"),
    ],
)
def test_words_say_what_is_wrong(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        strict_json.loads_object(body)
