"""What a workflow's input must look like: the definition's `input_schema`, which is JSON Schema.

Schemas and inputs are strangers' texts. References leave the schema for nowhere (nothing is ever fetched), patterns
run in linear time, and what is said about a value never repeats it.
"""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema_rs

from fumehood.errors import InvalidDefinitionError, InvalidRequestError

_PATTERNS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=1024 * 1024)
_SAID = 5
_LONGEST = 200


class InputSchema:
    """A schema that is known to be one."""

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, offline=True, mask="the value", pattern_options=_PATTERNS, validate_formats=True
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise InvalidDefinitionError([f"input_schema{_place(error)}: {_first_line(error)}"]) from error

    def check(self, value: Any) -> None:
        """`InvalidRequestError` with the first few things that are wrong."""
        try:
            errors = list(itertools.islice(self._validator.iter_errors(value), _SAID + 1))
        except ValueError as error:  # deeper than the validator goes, or a number beyond its own
            raise InvalidRequestError("the input cannot be held against the workflow's input_schema") from error
        if errors:
            said = [f"input{_place(error)}: {_first_line(error)}"[:_LONGEST] for error in errors[:_SAID]]
            more = ["and more"] if len(errors) > _SAID else []
            raise InvalidRequestError("the input does not fit the workflow's input_schema: " + "; ".join(said + more))


def _place(error: Exception) -> str:
    parts = getattr(error, "instance_path", ())
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _first_line(error: Exception) -> str:
    message = getattr(error, "message", None) or str(error)
    return (str(message).splitlines() or ["not a JSON Schema"])[0]
