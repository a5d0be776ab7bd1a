"""What the OpenAPI document says beyond what the framework can see: bodies that we parse ourselves, problems,
headers, the token. The models are the source; this only points to them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from fumehood.door import schema as door
from fumehood.door.schema import (
    ALLOW,
    CHALLENGE,
    NOT_ALLOWED,
    REF,
    REQUEST_ID,
    RETRY,
    header,
    problem_response,
    text_response,
)
from fumehood.wire.receipt_api import HEX_KEY_FORM
from fumehood.wire.receipts import RECEIPT_KEY_HEADER, ReceiptEnvelope
from fumehood.wire.worker_api import (
    EFFECTIVE_TIMEOUT_HEADER,
    EXIT_REASON_HEADER,
    ExitReason,
    RunJobRequest,
    RunJobResponse,
)

TOKEN_SCHEME = "workerToken"
EXAMPLE_JOB = "00000000-0000-0000-0000-000000000000"
"""The contract's own."""

RUN_JOB_200: dict[str, Any] = {
    "description": "The job ran to its end; how it ended is in `status`",
    "headers": {
        **REQUEST_ID,
        EFFECTIVE_TIMEOUT_HEADER: header(
            "Seconds the job was given, after the node's default and maximum",
            {"type": "integer", "minimum": 1},
            required=True,
        ),
        EXIT_REASON_HEADER: header(
            "Why it ended so, where `status` and `exit_code` do not tell",
            {"type": "string", "pattern": "^[a-z_]+$", "examples": [reason.value for reason in ExitReason]},
            required=False,
        ),
        RECEIPT_KEY_HEADER: header(
            "The id of the key that the job's receipt is signed with",
            {"type": "string", "pattern": HEX_KEY_FORM},
            required=False,
        ),
    },
    "content": {"application/json": {"schema": {"$ref": REF.format(model="RunJobResponse")}}},
}

RUN_JOB_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: RUN_JOB_200,
    400: problem_response("invalid-request", "unsupported-version", "invalid-image-ref"),
    401: problem_response("unauthenticated", extra_headers=CHALLENGE),
    405: problem_response("method-not-allowed", extra_headers=ALLOW),
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
        extra_headers=RETRY,
    ),
}

RUN_JOB_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": REF.format(model="RunJobRequest")}}},
    },
    "security": [{TOKEN_SCHEME: []}],
}

RECEIPT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A DSSE envelope; the same whenever it is asked for",
        "headers": REQUEST_ID,
        "content": {"application/json": {"schema": {"$ref": REF.format(model="ReceiptEnvelope")}}},
    },
    401: problem_response("unauthenticated", extra_headers=CHALLENGE),
    404: problem_response("not-found"),
    405: problem_response("method-not-allowed", extra_headers=ALLOW),
    500: problem_response("internal"),
}

RECEIPT_EXTRA: dict[str, Any] = {
    "description": "What ran, from which request and which image, what came of it by its SHA-256, and how it ended. It "
    "is there as long as the node keeps the job's answer.",
    "parameters": [
        {
            "name": "job_id",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "format": "uuid"},
            "example": EXAMPLE_JOB,
        },
    ],
    "security": [{TOKEN_SCHEME: []}],
}

METRICS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: text_response("Metrics in Prometheus' text format"),
    401: problem_response("unauthenticated", extra_headers=CHALLENGE),
    **NOT_ALLOWED,
}


PROBLEMS = (
    "invalid-request",
    "unsupported-version",
    "invalid-image-ref",
    "unauthenticated",
    "forbidden",
    "not-found",
    "method-not-allowed",
    "request-timeout",
    "conflict",
    "payload-too-large",
    "unsupported-media-type",
    "overloaded",
    "draining",
    "engine-unavailable",
    "deadline-exceeded",
    "internal",
)
"""Those of all problems that a node answers with."""


def components() -> dict[str, Any]:
    """The models' schemas and the security scheme."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (RunJobRequest, "validation"),
        (RunJobResponse, "serialization"),
        (ReceiptEnvelope, "serialization"),
    ]
    return door.components(models, PROBLEMS, {TOKEN_SCHEME: "The node's Worker API token"})
