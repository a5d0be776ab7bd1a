"""What every door's OpenAPI document says beyond what the framework can see: problems, headers, tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from fumehood.wire.problem import MEDIA_TYPE, ProblemDetails, problem_type

REF = "#/components/schemas/{model}"

Responses = dict[int | str, dict[str, Any]]

REQUEST_ID = {
    "X-Request-Id": {
        "description": "The caller's `X-Request-Id` if it was sane, else a new one; `instance` in problems",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    }
}


def header(description: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"description": description, "required": required, "schema": schema}


def problem_response(
    *codes: str, extra_headers: dict[str, Any] | None = None, model: str = "ProblemDetails"
) -> dict[str, Any]:
    """How one status is documented: the problems that bear it."""
    types = ", ".join(f"`{problem_type(code)}`" for code in codes)
    return {
        "description": f"Problem: {types}",
        "headers": {**REQUEST_ID, **(extra_headers or {})},
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model=model)}}},
    }


CHALLENGE = {"WWW-Authenticate": header("How to authenticate", {"type": "string"}, required=True)}
ALLOW = {"Allow": header("The methods that exist", {"type": "string"}, required=True)}
RETRY = {"Retry-After": header("Seconds to wait before the next try", {"type": "integer", "minimum": 1}, required=True)}

NOT_ALLOWED: Responses = {405: problem_response("method-not-allowed", extra_headers=ALLOW)}


def ref(model: str) -> dict[str, Any]:
    return {"$ref": REF.format(model=model)}


def text_response(description: str, word: str | None = None) -> dict[str, Any]:
    """A plain answer: always the same word, or any text."""
    text = {"type": "string"} if word is None else {"type": "string", "const": word}
    return {"description": description, "headers": REQUEST_ID, "content": {"text/plain": {"schema": text}}}


def components(
    models: Iterable[tuple[type[BaseModel], JsonSchemaMode]], problems: Iterable[str], tokens: Mapping[str, str]
) -> dict[str, Any]:
    """The schemas of all models, the problems' examples, and a bearer scheme for each kind of token."""
    _, definitions = models_json_schema([*models, (ProblemDetails, "serialization")], ref_template=REF)
    types = [problem_type(code) for code in problems]
    definitions["$defs"]["ProblemDetails"]["properties"]["type"]["examples"] = types
    schemes = {
        name: {"type": "http", "scheme": "bearer", "description": description} for name, description in tokens.items()
    }
    return {"schemas": definitions["$defs"], "securitySchemes": schemes}
