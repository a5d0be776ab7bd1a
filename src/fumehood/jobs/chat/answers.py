"""Reading what a model said. The schema asks for much; what comes is taken where it can be understood.

Small things are mended (`"12"` is a number, a score of 1.2 is 1), list items that make no sense are dropped, and an
answer that lacks what it is for is a `MisfitError`, whose words tell the model what to mend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fumehood.errors import InvalidRequestError
from fumehood.wire import strict_json

Item = TypeVar("Item", bound=BaseModel)

MAX_ITEMS = 2000
MAX_TEXT = 4096


class MisfitError(Exception):
    """An answer that does not fit. The text names what is missing and quotes nothing."""


def document(said: str) -> object:
    """The JSON in an answer: models without a forced form put their thoughts before it, and fences around it."""
    text = said.rpartition("</think>")[2].strip()
    if text.startswith("```"):
        text = text.removeprefix("```").removeprefix("json").removesuffix("```")
    try:
        return strict_json.loads(text.encode(), deepest=strict_json.DEEPEST)
    except (InvalidRequestError, UnicodeEncodeError):
        raise MisfitError("it is not one JSON object") from None


class Said(BaseModel):
    """A part of an answer. Not strict: `"12"` is understood where a number is wanted."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


def whole(kind: type[Item], answer: object) -> Item:
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        wrong = sorted(
            {str(fault["loc"][0]) if fault["loc"] else "the whole" for fault in error.errors(include_input=False)}
        )
        raise MisfitError(f"missing or of the wrong type: {', '.join(wrong)}") from None


def those_that_fit(kind: type[Item], found: Iterable[object]) -> list[Item]:
    items = []
    for one in found:
        try:
            items.append(kind.model_validate(one))
        except ValidationError:
            continue
        if len(items) == MAX_ITEMS:
            break
    return items


def without_nones(said: Iterable[BaseModel]) -> list[dict[str, Any]]:
    """For models in which a field that says nothing is left out."""
    return [one.model_dump(exclude_none=True) for one in said]


# --- kinds of values -----------------------------------------------------------------------------------------------


def _text(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("no text")
    return value.strip()[:MAX_TEXT]


def _text_or_none(value: object) -> object:
    return value.strip()[:MAX_TEXT] if isinstance(value, str) and value.strip() else None


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("no number")
    return value


def _share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("no number") from None
    return min(max(number, 0.0), 1.0) if math.isfinite(number) else 0.0


Text = Annotated[str, BeforeValidator(_text)]
OptionalText = Annotated[str | None, BeforeValidator(_text_or_none)]
Whole = Annotated[int, BeforeValidator(_number)]
Share = Annotated[float, BeforeValidator(_share)]


# --- schemas: the subset that every endpoint with `strict` understands ----------------------------------------------

TEXT: dict[str, Any] = {"type": "string"}
OPTIONAL_TEXT: dict[str, Any] = {"type": ["string", "null"]}
WHOLE: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
LEVEL: dict[str, Any] = {"type": "string", "enum": ["low", "medium", "high"]}


def an_object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def a_list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
