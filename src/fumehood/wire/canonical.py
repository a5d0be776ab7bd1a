"""One form for each JSON value, and its hash: RFC 8785, so that any language comes to the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from fumehood.errors import InvalidRequestError

LARGEST_INTEGER = 2**53 - 1


def canonical_json(value: Any) -> bytes:
    """`InvalidRequestError` for what has no such form: numbers that no double holds, text that is no Unicode."""
    try:
        if _is_plain(value):  # in a third of the time; everything that we sign is plain
            return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        pass  # `rfc8785` says what is wrong with it
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        fault = f"an integer is beyond {LARGEST_INTEGER}, which not every language can hold"
    except rfc8785.FloatDomainError:
        fault = "a number is not finite"
    except UnicodeEncodeError:
        fault = "a name holds half a surrogate pair, which is no character"
    except rfc8785.CanonicalizationError:
        fault = "something in it is no JSON"
    except RecursionError:
        fault = "it is nested too deeply"
    raise InvalidRequestError(f"this value has no canonical form: {fault}")


def _is_plain(value: Any) -> bool:
    """No floats, and only ASCII names, whose order in UTF-16 is that of Python: then the standard library's encoder
    writes the same bytes (`test_the_quick_form_is_the_canonical_one`)."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-LARGEST_INTEGER <= value <= LARGEST_INTEGER)
    if kind is dict:
        return all(type(name) is str and name.isascii() and _is_plain(one) for name, one in value.items())
    return kind in (list, tuple) and all(map(_is_plain, value))


def json_sha256(value: Any) -> str:
    """Lower-case hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
