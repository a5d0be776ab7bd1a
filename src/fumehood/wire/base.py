"""What all models of the wire have in common: they are strict, frozen, and refuse what they do not know.

Strict means that no value is guessed into another type: `"1"` is not 1, `true` is not 1, `null` is not
"absent". A caller whose request is read differently from how it was meant gets a result that is a lie.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)
from pydantic_core import ErrorDetails

from fumehood.errors import InvalidRequestError, UnsupportedVersionError

VERSION: Final = 1

Model = TypeVar("Model", bound="WireModel")


class WireModel(BaseModel):
    """The base of every model that travels."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        json_schema_serialization_defaults_required=True,
    )


UUID_FORM = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
NO_NUL = r"^[^\x00]*$"
NO_NUL_NOT_EMPTY = r"^[^\x00]+$"
ENV_NAME = r"^[^=\x00]+$"
"""A NUL ends a string for the kernel: what follows it would silently be cut off. `=` ends an environment name."""
PLAIN_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""What every shell takes for a name."""

TOKEN_FORM = r"^[A-Za-z0-9_-]{1,128}$"
TASK_TYPE_FORM = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
"""Both become parts of subjects."""
NAME_FORM = r"^[A-Za-z0-9_-]{1,64}$"
CHOSEN_NAME_FORM = r"^[A-Za-z0-9_-]{16,64}$"
"""Long enough that what somebody makes up at random is nobody else's."""
LABEL_NAME_FORM = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,62}$"
SHA256_FORM = r"^[0-9a-f]{64}$"
IMAGE_DIGEST_FORM = r"^sha256:[0-9a-f]{64}$"

JOB_TYPE_FORM = r"^[a-z][a-z0-9]*(\.[a-z][a-z0-9_]*)+\.v[1-9][0-9]*$"

_FORMS: Mapping[str, str] = {
    JOB_TYPE_FORM: "must be the whole name of a type, like oa.sandbox_run.v1",
    UUID_FORM: "must be a UUID, like 0d9a8f52-5c0e-4a8e-8f0b-7d1f5d6c3a21",
    NO_NUL: "must not contain the character NUL",
    NO_NUL_NOT_EMPTY: "must not be empty or contain the character NUL",
    TOKEN_FORM: "must be 1 to 128 letters, digits, dashes and underscores",
    NAME_FORM: "must be 1 to 64 letters, digits, dashes and underscores",
    CHOSEN_NAME_FORM: "must be 16 to 64 letters, digits, dashes and underscores",
    LABEL_NAME_FORM: "a name must be 1 to 63 letters, digits and _ . / -, and begin with a letter or digit",
    TASK_TYPE_FORM: "must be letters, digits, dashes and underscores, with single dots between them",
    ENV_NAME: "a name must not be empty or contain `=` or the character NUL",
    PLAIN_ENV_NAME: "a name must be letters, digits and underscores, and not begin with a digit",
    SHA256_FORM: "must be 64 hex digits, in lower case",
    IMAGE_DIGEST_FORM: "must be sha256: and 64 hex digits, in lower case",
}
"""Each pattern in words, for people."""

Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]
Uuid = Annotated[str, Field(pattern=UUID_FORM, json_schema_extra={"format": "uuid"}), AfterValidator(str.lower)]
"""A UUID in its usual form; whatever the case that came in, lower case goes out."""


def _to_utc(value: dt.datetime) -> dt.datetime:
    """Whole milliseconds, so that a value is equal to what is read back from its text."""
    return value.astimezone(dt.UTC).replace(microsecond=value.microsecond // 1000 * 1000)


def _to_text(value: dt.datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"


UtcTime = Annotated[
    AwareDatetime,
    AfterValidator(_to_utc),
    PlainSerializer(_to_text, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time", "pattern": r"^[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z$"}),
]
"""A moment; as JSON it is RFC 3339 in UTC, always with milliseconds and `Z`."""


def _whole(value: object) -> object:
    """JSON has one kind of number: `1.0` is the integer 1, also for JSON Schema. Nothing else is made a number."""
    return int(value) if type(value) is float and value.is_integer() else value


def _refuse_lookalikes(value: object) -> object:
    """`true` is equal to 1 in Python, and so to a `Literal`, but not in the contract."""
    if type(_whole(value)) is not int:
        raise ValueError("must be an integer")
    return _whole(value)


WHOLE = BeforeValidator(_whole)
"""For integers."""

Version = Annotated[Literal[1], BeforeValidator(_refuse_lookalikes)]


def _refuse_null(value: object) -> object:
    if value is None:
        raise ValueError("null is not a value: leave the field out instead")
    return value


def _schema_without_null(schema: dict[str, Any]) -> None:
    (kind,) = (option for option in schema.pop("anyOf") if option != {"type": "null"})
    schema.pop("default", None)
    schema.update(kind)


def _is_none(value: object) -> bool:
    return value is None


NOT_NULL = BeforeValidator(_refuse_null)
"""For `X | None = None`: the field may be absent, and None says so in Python, but `null` is no value."""

NEVER_NULL = Field(json_schema_extra=_schema_without_null)
"""For what is written without the fields that say nothing."""

ABSENT_NOT_NULL = Field(json_schema_extra=_schema_without_null, exclude_if=_is_none)
"""The same for the field's schema, and for what is written."""


def canonical_sha256(model: WireModel) -> str:
    """A hash of what a request says: blanks, the order of keys and defaults written out make no difference.

    Defaults are left out, so that a field which a later version adds leaves the hash of old requests alone.
    """
    said = model.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def validate(kind: type[Model], data: object, *, versioned: bool = True) -> Model:
    """Read a decoded JSON value as a model; the version is looked at before anything else, where a contract has one."""
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    if versioned:
        _check_version(data.get("version", VERSION))
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InvalidRequestError(explain(kind, error)) from None


def _check_version(version: object) -> None:
    """Another version may have other fields, so complaints about those would only mislead."""
    version = _whole(version)
    if type(version) is int and version != VERSION:
        raise UnsupportedVersionError(f"version {_short(version)} was received; supported is {VERSION}")


_PLAIN: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "enum": "must be {expected}",
    "extra_forbidden": "is not a field of this contract",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_type": "must be an object",
    "list_type": "must be an array",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "string_type": "must be text",
    "string_unicode": "must be text, without half a surrogate pair",
    "too_short": "must not be empty",
    "tuple_type": "must be an array",
}
"""Our words for what Pydantic says in Python's."""

_MUST = "must be "
_OF_A_MAP = "a value "
"""Begins what is said of an entry of a map, whose key, the caller's own, is not shown."""


def explain(kind: type[WireModel], error: ValidationError, inside: str = "") -> str:
    """Where and why, without the values, nor the names in a map of the caller's: they may be secrets. `inside` is the
    field of the body that was read."""
    faults = error.errors(include_url=False, include_input=False)
    said: dict[str, list[str]] = {}
    for fault in _of_what_was_meant(kind, faults):
        place, words = _sentence(kind, fault["loc"], fault["type"], fault["msg"], fault.get("ctx", {}))
        said.setdefault(".".join(filter(None, (inside, place))) or "body", []).append(words)
    different = [f"{place}: {words}" for place, all_words in said.items() for words in _alternatives(all_words)]
    more = [f"and {len(different) - 5} more"] if len(different) > 5 else []
    return "; ".join(different[:5] + more)


def _of_what_was_meant(model: type[WireModel], faults: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Where a field may be a text or an array, nobody who sent an array is told that it must be text. Pydantic names
    such a way of reading at the end of a place, where the value is no such thing at all."""
    places = [tuple(_place(model, fault["loc"], fault["type"])) for fault in faults]
    others = [
        fault["type"].endswith(("_type", "literal_error")) and place[-1:] != fault["loc"][-1:]
        for fault, place in zip(faults, places, strict=True)
    ]
    meant = [place for place, other in zip(places, others, strict=True) if not other]
    return [
        fault
        for fault, place, other in zip(faults, places, others, strict=True)
        if not (other and any(one[: len(place)] == place for one in meant))
    ]


def _alternatives(said: Sequence[str]) -> list[str]:
    """What is said of one place, each once. Where a field may be this or that, it is told what it must be twice."""
    different = list(dict.fromkeys(said))
    if len(different) > 1 and all(words.startswith(_MUST) for words in different):
        return [_MUST + " or ".join(words.removeprefix(_MUST) for words in different)]
    return different


def _sentence(
    model: type[WireModel], parts: Sequence[int | str], kind: str, message: str, context: Mapping[str, Any]
) -> tuple[str, str]:
    parts = _place(model, parts, kind)
    place = _known_part(model, parts)
    words = plain_words(kind, message, context)
    in_a_map = len(place) < len(parts) and not words.startswith("a name ")
    return ".".join(_short(part) for part in place), f"{_OF_A_MAP if in_a_map else ''}{words}"


def _place(model: type[WireModel], parts: Sequence[int | str], kind: str) -> list[int | str]:
    """What is forbidden is no field, and named all the same."""
    if kind == "extra_forbidden":
        return [*_without_branches(model, parts[:-1]), *parts[-1:]]
    return _without_branches(model, parts)


def _without_branches(model: type[WireModel], parts: Sequence[int | str]) -> list[int | str]:
    """Pydantic names the Python type that it tried, where a field may be this or that; nobody sent that."""
    kept: list[int | str] = []
    here: Any = model
    in_a_map = False
    for part in parts:
        in_a_map = in_a_map or get_origin(here) is dict
        is_model = isinstance(here, type) and issubclass(here, WireModel)
        is_field = is_model and part in here.model_fields
        if kept and isinstance(part, str) and not is_field and not in_a_map:
            continue
        kept.append(part)
        here = here if isinstance(part, int) else _type_of(here, part)
    return kept


def plain_words(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What is wrong, for people who have never heard of Pydantic."""
    if kind == "string_pattern_mismatch":
        return _FORMS.get(str(context.get("pattern")), "has another form than the contract says")
    if kind in _PLAIN:
        return _PLAIN[kind].format_map(context)
    return message.removeprefix("Value error, ")


def _known_part(model: type[WireModel], parts: Sequence[int | str]) -> list[int | str]:
    """A place up to the first map, below which names are the caller's."""
    known: list[int | str] = []
    here: Any = model
    for part in parts:
        known.append(part)
        here = here if isinstance(part, int) else _type_of(here, part)
        if get_origin(here) is dict:
            break
    return known


def _type_of(model: Any, name: str) -> Any:
    """What a field holds: a map, a model (perhaps in an array, perhaps absent), or nothing that has parts."""
    found = model.model_fields.get(name) if isinstance(model, type) and issubclass(model, WireModel) else None
    pending = [found.annotation] if found is not None else []
    while pending:
        hint = pending.pop()
        if get_origin(hint) is dict or (isinstance(hint, type) and issubclass(hint, WireModel)):
            return hint
        pending += get_args(hint)
    return None


def _short(part: object) -> str:
    text = str(part)
    return text if len(text) <= 64 else text[:61] + "..."
