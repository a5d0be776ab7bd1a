"""What the server's OpenAPI document says beyond what the framework can see. The models are the source."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import JsonSchemaMode
from starlette.responses import Response

from fumehood.door import schema as door
from fumehood.door.bodies import JSON
from fumehood.door.schema import ALLOW, CHALLENGE, REQUEST_ID, RETRY, Responses, problem_response, ref
from fumehood.engine.definition import Definition
from fumehood.wire import run_api
from fumehood.wire.problem import ProblemDetails

ADMIN, BRIDGE = "adminToken", "bridgeToken"
TOKENS = {
    ADMIN: "The administrator's token, or an API key that has the scope",
    BRIDGE: "The token of workers that come over HTTP, the administrator's, or an API key with the scope `workers`",
}
YAML = ("application/yaml", "text/yaml", "application/x-yaml")
DEFINITION_TYPES = ("application/json", *YAML)
NAME_PATTERN = "^[A-Za-z0-9_](-?[A-Za-z0-9_])*$"
RUN_PATTERN = "^[A-Za-z0-9_-]{1,128}$"

PROBLEMS = (
    "invalid-request",
    "unsupported-version",
    "invalid-definition",
    "unauthenticated",
    "forbidden",
    "policy-denied",
    "not-found",
    "method-not-allowed",
    "request-timeout",
    "conflict",
    "lease-lost",
    "archived",
    "payload-too-large",
    "unsupported-media-type",
    "quota-exceeded",
    "overloaded",
    "draining",
    "index-unavailable",
    "broker-unavailable",
    "broker-full",
    "broker",
    "invalid-payload",
    "unsupported-capability",
    "session-not-found",
    "command-not-found",
    "file-not-found",
    "session-busy",
    "path-is-directory",
    "file-error",
    "file-too-large",
    "execution-failed",
    "image-unavailable",
    "no-worker",
    "no-capacity",
    "worker-lost",
    "worker-replaced",
    "command-timed-out",
    "internal",
)
"""Those of all problems that a server answers with."""


class DefinitionProblem(ProblemDetails):
    """A definition that does not hold together."""

    problems: list[str] = Field(
        default_factory=list, description="One text for each thing that is wrong, with its line where it is YAML"
    )


Models = list[tuple[type[BaseModel], JsonSchemaMode]]

MODELS: Models = [
    (Definition, "validation"),
    (DefinitionProblem, "serialization"),
    (run_api.StartRunRequest, "validation"),
    (run_api.StartRunResponse, "serialization"),
    (run_api.CancelRunRequest, "validation"),
    (run_api.RunView, "serialization"),
    (run_api.HistoryPage, "serialization"),
    (run_api.WorkflowSummary, "serialization"),
    (run_api.WorkflowList, "serialization"),
    (run_api.WorkflowView, "serialization"),
]


def components(more: Models) -> dict[str, Any]:
    return door.components([*MODELS, *more], PROBLEMS, TOKENS)


def answer(model: str, description: str) -> dict[str, Any]:
    return {"description": description, "headers": REQUEST_ID, "content": {"application/json": {"schema": ref(model)}}}


def raw_answer(description: str) -> dict[str, Any]:
    """Any JSON."""
    return {"description": description, "headers": REQUEST_ID, "content": {"application/json": {"schema": {}}}}


def guarded(answers: Responses, *, body: bool = False) -> Responses:
    """The answers of an operation, with those that every guarded one has."""
    common: Responses = {
        400: problem_response("invalid-request"),
        401: problem_response("unauthenticated", extra_headers=CHALLENGE),
        403: problem_response("forbidden"),
        405: problem_response("method-not-allowed", extra_headers=ALLOW),
        500: problem_response("internal", "broker"),
        503: problem_response("broker-unavailable", "broker-full", extra_headers=RETRY),
    }
    if body:
        common |= {
            408: problem_response("request-timeout"),
            413: problem_response("payload-too-large"),
            415: problem_response("unsupported-media-type"),
        }
    return dict(sorted((common | answers).items(), key=lambda item: int(item[0])))


def operation(
    name: str,
    summary: str,
    answers: Responses,
    *parameters: dict[str, Any],
    body: str | None = None,
    description: str | None = None,
    token: str | None = ADMIN,
    required: bool = True,
) -> dict[str, Any]:
    """What the decorator of a guarded operation's route is told. `body` names the model of what it is asked; the least
    of its answers is the common one."""
    content = {JSON: ref(body)} if body is not None else None
    return {
        "operation_id": name,
        "summary": summary,
        "description": description,
        "status_code": min(int(status) for status in answers),
        "response_class": Response,
        "responses": guarded(answers, body=body is not None),
        "openapi_extra": extra(*parameters, body=content, token=token, required=required),
    }


def raw_operation(
    name: str,
    summary: str,
    answers: Responses,
    *parameters: dict[str, Any],
    media_type: str,
    description: str | None = None,
) -> dict[str, Any]:
    """The same for an operation whose body is bytes."""
    said = operation(name, summary, answers, *parameters, description=description)
    content = {media_type: {"type": "string", "format": "binary"}}
    return said | {
        "responses": guarded(answers, body=True),
        "openapi_extra": extra(*parameters, body=content, required=False),
    }


def extra(
    *parameters: dict[str, Any], body: dict[str, Any] | None = None, token: str | None = ADMIN, required: bool = True
) -> dict[str, Any]:
    """The rest of an operation: its parameters, its body by media type, its token."""
    said: dict[str, Any] = {"security": [] if token is None else [{token: []}]}
    if parameters:
        said["parameters"] = list(parameters)
    if body is not None:
        content = {kind: {"schema": schema} for kind, schema in body.items()}
        said["requestBody"] = {"required": required, "content": content}
    return said


def path(name: str, pattern: str, longest: int = 128) -> dict[str, Any]:
    schema = {"type": "string", "pattern": pattern, "maxLength": longest}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def query(name: str, description: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def paged(most: int, *, longest: int = 128, after: str = "Only names behind this one") -> tuple[dict[str, Any], ...]:
    """The parameters of a list that is read in parts."""
    return (
        query("after", after, {"type": "string", "maxLength": longest}),
        query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": most}),
    )


def in_header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}
