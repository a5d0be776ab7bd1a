"""What the OpenAPI document says beyond what the framework can see: bodies that we parse ourselves, problems,
headers, the token. The models are the source; this only points to them.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from fumehood.node.http.problems import KINDS
from fumehood.wire.problem import MEDIA_TYPE, ProblemDetails, problem_type
from fumehood.wire.worker_api import (
    EFFECTIVE_TIMEOUT_HEADER,
    EXIT_REASON_HEADER,
    ExitReason,
    RunJobRequest,
    RunJobResponse,
)

REF = "#/components/schemas/{model}"
TOKEN_SCHEME = "workerToken"

_REQUEST_ID = {
    "X-Request-Id": {
        "description": "The caller's `X-Request-Id` if it was sane, else a new one; `instance` in problems",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    }
}


def _header(description: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"description": description, "required": required, "schema": schema}


def problem_response(*codes: str, extra_headers: dict[str, Any] | None = None) -> dict[str, Any]:
    """How one status is documented: the problems that bear it."""
    types = ", ".join(f"`{problem_type(code)}`" for code in codes)
    return {
        "description": f"Problem: {types}",
        "headers": {**_REQUEST_ID, **(extra_headers or {})},
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="ProblemDetails")}}},
    }


_CHALLENGE = {"WWW-Authenticate": _header("How to authenticate", {"type": "string"}, required=True)}
_ALLOW = {"Allow": _header("The methods that exist", {"type": "string"}, required=True)}
_RETRY = {
    "Retry-After": _header("Seconds to wait before the next try", {"type": "integer", "minimum": 1}, required=True)
}

RUN_JOB_200: dict[str, Any] = {
    "description": "The job ran to its end; how it ended is in `status`",
    "headers": {
        **_REQUEST_ID,
        EFFECTIVE_TIMEOUT_HEADER: _header(
            "Seconds the job was given, after the node's default and maximum",
            {"type": "integer", "minimum": 1},
            required=True,
        ),
        EXIT_REASON_HEADER: _header(
            "Why it ended so, where `status` and `exit_code` do not tell",
            {"type": "string", "pattern": "^[a-z_]+$", "examples": [reason.value for reason in ExitReason]},
            required=False,
        ),
    },
    "content": {"application/json": {"schema": {"$ref": REF.format(model="RunJobResponse")}}},
}

RUN_JOB_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: RUN_JOB_200,
    400: problem_response("invalid-request", "unsupported-version", "invalid-image-ref"),
    401: problem_response("unauthenticated", extra_headers=_CHALLENGE),
    405: problem_response("method-not-allowed", extra_headers=_ALLOW),
    408: problem_response("request-timeout"),
    409: problem_response("conflict"),
    413: problem_response("payload-too-large"),
    415: problem_response("unsupported-media-type"),
    500: problem_response("internal"),
    503: problem_response(
        "overloaded",
        "draining",
        "engine-unavailable",
        "deadline-exceeded",
        extra_headers=_RETRY,
    ),
}

RUN_JOB_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": REF.format(model="RunJobRequest")}}},
    },
    "security": [{TOKEN_SCHEME: []}],
}


def text_response(description: str, word: str | None = None) -> dict[str, Any]:
    """A plain answer: always the same word, or any text."""
    text = {"type": "string"} if word is None else {"type": "string", "const": word}
    return {"description": description, "headers": _REQUEST_ID, "content": {"text/plain": {"schema": text}}}


NOT_ALLOWED: dict[int | str, dict[str, Any]] = {405: problem_response("method-not-allowed", extra_headers=_ALLOW)}
METRICS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: text_response("Metrics in Prometheus' text format"),
    401: problem_response("unauthenticated", extra_headers=_CHALLENGE),
    **NOT_ALLOWED,
}


def components() -> dict[str, Any]:
    """The models' schemas and the security scheme."""
    _, definitions = models_json_schema(
        [(RunJobRequest, "validation"), (RunJobResponse, "serialization"), (ProblemDetails, "serialization")],
        ref_template=REF,
    )
    types = [problem_type(code) for code in (*KINDS, "internal")]
    definitions["$defs"]["ProblemDetails"]["properties"]["type"]["examples"] = types
    scheme = {"type": "http", "scheme": "bearer", "description": "The node's Worker API token"}
    return {"schemas": definitions["$defs"], "securitySchemes": {TOKEN_SCHEME: scheme}}
