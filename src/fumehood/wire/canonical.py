"""One form for each JSON value, and its hash: RFC 8785, so that any language comes to the same."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from fumehood.errors import InvalidRequestError


def canonical_json(value: Any) -> bytes:
    """`InvalidRequestError` for what has no such form: numbers that no double holds, text that is no Unicode."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        fault = "an integer is beyond 9007199254740991, which not every language can hold"
    except rfc8785.FloatDomainError:
        fault = "a number is not finite"
    except UnicodeEncodeError:
        fault = "a name holds half a surrogate pair, which is no character"
    except rfc8785.CanonicalizationError:
        fault = "something in it is no JSON"
    except RecursionError:
        fault = "it is nested too deeply"
    raise InvalidRequestError(f"this value has no canonical form: {fault}")


def json_sha256(value: Any) -> str:
    """Lower-case hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
