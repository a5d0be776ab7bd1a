"""Expressions in definitions: CEL, compiled once, over values of JSON.

The language has no loops beyond its bounded macros, no I/O and no clock; what we add is a bound on the text of an
expression and on the size of what comes out. Why this binding: docs/decisions/0011-expressions.md.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import cel

LONGEST = 4096
_MACRO = re.compile(r"\.(map|filter|all|exists|exists_one)\s*\(|[()]")


class ExpressionError(ValueError):
    """An expression that does not compile, or that failed on the values it met."""


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Any:
    """The program of an expression; `ExpressionError` when it has none."""
    if len(text) > LONGEST:
        raise ExpressionError(f"longer than {LONGEST} characters")
    if _has_nested_macros(text):
        raise ExpressionError("map, filter, all and exists may follow each other, but not stand inside each other")
    try:
        return cel.compile(text)
    except Exception as error:
        raise ExpressionError(_first_line(error)) from error


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an expression as JSON; `ExpressionError` when it has none."""
    try:
        result = compiled(text).execute(dict(values))
    except ExpressionError:
        raise
    except Exception as error:
        raise ExpressionError(_first_line(error)) from error
    return plain(result)


def truth(text: str, values: Mapping[str, Any]) -> bool:
    """A condition is a boolean or an error: no number, text or null is quietly taken for one."""
    result = evaluate(text, values)
    if not isinstance(result, bool):
        raise ExpressionError(f"is {type(result).__name__}, not a boolean")
    return result


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """A mapping of inputs: every text in it is an expression, everything else is taken as it is."""
    if isinstance(template, str):
        return evaluate(template, values)
    if isinstance(template, dict):
        return {name: fill(item, values) for name, item in template.items()}
    if isinstance(template, list):
        return [fill(item, values) for item in template]
    return template


def texts(template: Any) -> list[str]:
    """All expressions in a mapping of inputs."""
    if isinstance(template, str):
        return [template]
    items = template.values() if isinstance(template, dict) else template if isinstance(template, list) else ()
    return [text for item in items for text in texts(item)]


def plain(value: Any) -> Any:
    """Only what JSON can carry leaves an expression."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ExpressionError("gives something that JSON cannot carry") from error


def _has_nested_macros(text: str) -> bool:
    """Macros inside macros multiply: 3,000 items squared took 18 s. One after the other they only add up.

    Parentheses inside texts are counted, too: that can refuse an odd expression, never let a nested one through.
    """
    depth: list[bool] = []
    for found in _MACRO.finditer(text):
        if found[0] == ")":
            if depth:
                depth.pop()
        else:
            macro = found[1] is not None
            if macro and any(depth):
                return True
            depth.append(macro)
    return False


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
