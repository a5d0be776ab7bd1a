"""What the OpenAPI document says about the bridge."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from fumehood.control.http.schema import path
from fumehood.door.schema import ALLOW, CHALLENGE, REQUEST_ID, RETRY, Responses, problem_response, ref
from fumehood.wire.base import TOKEN_FORM
from fumehood.wire.bridge import (
    ACTIONS,
    CheckpointResponse,
    ConnectRequest,
    DrainResponse,
    PollRequest,
    ResolveResponse,
)
from fumehood.wire.protocol import TaskPayload

MODELS: list[tuple[type[BaseModel], JsonSchemaMode]] = [
    (ConnectRequest, "validation"),
    (DrainResponse, "serialization"),
    (PollRequest, "validation"),
    (TaskPayload, "serialization"),
    *((kind, "validation") for kind in ACTIONS.values()),
    (ResolveResponse, "serialization"),
    (CheckpointResponse, "serialization"),
]

_JSON = "application/json"
_ANY: Responses = {
    401: problem_response("unauthenticated", extra_headers=CHALLENGE),
    403: problem_response("forbidden"),
    405: problem_response("method-not-allowed", extra_headers=ALLOW),
    500: problem_response("internal", "broker"),
    503: problem_response("broker-unavailable", "broker-full", "overloaded", "draining", extra_headers=RETRY),
}
_BODY: Responses = {
    400: problem_response("invalid-request"),
    408: problem_response("request-timeout"),
    413: problem_response("payload-too-large"),
    415: problem_response("unsupported-media-type"),
}


def _ok(description: str, schema: dict[str, Any], media_type: str = _JSON) -> dict[str, Any]:
    return {"description": description, "headers": REQUEST_ID, "content": {media_type: {"schema": schema}}}


_WORKER = path("worker_id", TOKEN_FORM)
_TASK = path("task_id", r"^[A-Za-z0-9_-]{1,128}\.[A-Za-z0-9_-]{1,128}$", longest=257)


def _extra(body: dict[str, Any] | None, *parameters: dict[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {"security": [{"bridgeToken": []}]}
    if parameters:
        extra["parameters"] = list(parameters)
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return extra


_RESOLVE_BODY = {
    "oneOf": [ref(kind.__name__) for kind in ACTIONS.values()],
    "discriminator": {
        "propertyName": "action",
        "mapping": {action: ref(kind.__name__)["$ref"] for action, kind in ACTIONS.items()},
    },
}

_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["heartbeat", "replaced", "drain"]},
        "data": {"type": "string", "contentMediaType": _JSON},
    },
    "required": ["event", "data"],
}
"""Each event of the stream."""

CONNECT: dict[str, Any] = {
    "summary": "Register a worker, for as long as the stream of heartbeats is open",
    "responses": {
        200: _ok(
            "Server-Sent Events: `heartbeat` at once and every 25 s; `replaced` or `drain` at the end",
            _EVENT,
            "text/event-stream",
        ),
        **_BODY,
        **_ANY,
    },
    "openapi_extra": _extra(ref("ConnectRequest")),
}
DRAIN: dict[str, Any] = {
    "summary": "Send a worker home: its stream ends, and its polls get nothing until it connects again",
    "responses": {
        200: _ok("It is told, wherever it is connected", ref("DrainResponse")),
        404: problem_response("not-found"),
        409: problem_response("conflict"),
        **_ANY,
    },
    "openapi_extra": _extra(None, _WORKER),
}
POLL: dict[str, Any] = {
    "summary": "Take tasks, or wait for them",
    "responses": {
        200: _ok(
            "The tasks, each leased to the caller; none when the time is over",
            {"type": "array", "items": ref("TaskPayload")},
        ),
        **_BODY,
        **_ANY,
    },
    "openapi_extra": _extra(ref("PollRequest")),
}
RESOLVE: dict[str, Any] = {
    "summary": "Answer a task: complete, fail, pause, checkpoint, continue, heartbeat or signal",
    "responses": {
        200: _ok("It counts", ref("ResolveResponse")),
        404: problem_response("not-found"),
        409: problem_response("lease-lost"),
        **_BODY,
        **_ANY,
    },
    "openapi_extra": _extra(_RESOLVE_BODY, _TASK),
}
CHECKPOINT: dict[str, Any] = {
    "summary": "Read what was kept for whoever takes the task up again",
    "responses": {
        200: _ok("The checkpoint", ref("CheckpointResponse")),
        404: problem_response("not-found"),
        **_ANY,
    },
    "openapi_extra": _extra(None, _TASK),
}
