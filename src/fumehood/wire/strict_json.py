"""JSON without its ambiguities: what two parsers may read differently is refused.

Twice the same key, `NaN` or infinity, text that is not UTF-8, half a surrogate pair, nesting without end: each is an
`InvalidRequestError` here, so that none of them can become a crash, or another meaning, further in.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from fumehood.errors import InvalidRequestError

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(data: bytes) -> object:
    """Decode one JSON value."""
    try:
        text = data.decode("utf-8")
        value: object = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
        )
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


def _check_surrogates(value: object) -> None:
    """Half a surrogate pair is no character; encoding everything once is the plainest way to find one."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("the body holds half a surrogate pair, which is no character") from None
