"""JSON without its ambiguities: what two parsers may read differently is refused.

Twice the same key, `NaN` or infinity, text that is not UTF-8, half a surrogate pair, nesting without end: each is an
`InvalidRequestError` here, so that none of them can become a crash, or another meaning, further in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from fumehood.errors import InvalidRequestError

T = TypeVar("T")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")


DEEPEST = 64
"""Levels of a value that becomes part of a run; what people and programs write has ten. A step's `with` may put one
such value inside another, and parsers end at about 200."""


def loads(data: bytes, *, deepest: int | None = None) -> object:
    """Decode one JSON value; `deepest`: of how many levels, where it will be written again."""
    value = _loads(data)
    if deepest is not None and not is_flat(value, deepest):
        raise InvalidRequestError("the body is nested too deeply")
    return value


def is_flat(value: object, levels: int = DEEPEST) -> bool:
    """Whether a value has at most so many levels. Looked at without recursion, since depth is what is in doubt."""
    level: list[object] = [value]
    for _ in range(levels):
        inside = [part for part in level if isinstance(part, dict | list)]
        if not inside:
            return True
        level = [item for part in inside for item in (part.values() if isinstance(part, dict) else part)]
    return not any(isinstance(part, dict | list) for part in level)


def loads_object(data: bytes) -> tuple[dict[str, object], dict[str, str]]:
    """Decode an object: its members, and the text of each as it was written."""
    return _read(data, _members)


def _loads(data: bytes) -> object:
    return _read(data, _DECODER.decode)


def _read(data: bytes, decode: Callable[[str], T]) -> T:
    try:
        text = data.decode("utf-8")
        value = decode(text)
        if _SURROGATE.search(text):
            _check_surrogates(value)
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not valid UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: line {error.lineno}, column {error.colno}") from None
    except ValueError:  # more digits than Python converts
        raise InvalidRequestError("the body holds a number that is too large") from None
    return value


def _members(text: str) -> tuple[dict[str, object], dict[str, str]]:
    """The standard library's way through an object, with the places that it does not tell."""
    values: dict[str, object] = {}
    texts: dict[str, str] = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        _DECODER.decode(text)  # which says what is wrong, if it is nothing at all
        raise InvalidRequestError("the body must be a JSON object")
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}" or values:
        name, at = _DECODER.raw_decode(text, _expected(text, at, '"'))
        begin = _skip(text, _expected(text, _skip(text, at), ":") + 1)
        if name in values:
            raise InvalidRequestError("the body has the same key twice in one object")
        values[name], at = _DECODER.raw_decode(text, begin)
        texts[name] = text[begin:at]
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        at = _skip(text, _expected(text, at, ",") + 1)
    if _skip(text, at + 1) != len(text):
        raise json.JSONDecodeError("more than one value", text, at + 1)
    return values, texts


def _expected(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise json.JSONDecodeError("another sign was expected", text, at)
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequestError("the body has the same key twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequestError(f"the body holds {name}, which is not JSON")


def _finite(text: str) -> float:
    """`1e999` is infinity by another name."""
    number = float(text)
    if math.isinf(number):
        raise InvalidRequestError("the body holds a number that is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)


def _check_surrogates(value: object) -> None:
    """Half a surrogate pair is no character; encoding everything once is the plainest way to find one."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("the body holds half a surrogate pair, which is no character") from None
