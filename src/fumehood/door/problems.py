"""Errors as RFC 9457 problems: the only place where an error of ours gets an HTTP status.

A problem tells a caller what to do about it. What broke inside is for the process's own log, under the same request
id, and never for the caller: the text of a foreign exception may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fumehood.errors import (
    CommandFailedError,
    FumehoodError,
    InvalidDefinitionError,
    OverloadedError,
    RunDeniedError,
)
from fumehood.wire.console.codes import RETRYABLE, Reason
from fumehood.wire.problem import MEDIA_TYPE, ProblemDetails, problem_type

REQUEST_ID = "fumehood.request_id"
"""Where the request's id stands in an ASGI scope."""


class RequestTimeoutError(FumehoodError):
    """The body came too slowly."""

    code = "request-timeout"
    retryable = True


class UnsupportedMediaTypeError(FumehoodError):
    """The body is not in a form that this door reads."""

    code = "unsupported-media-type"


@dataclass(frozen=True, slots=True)
class Kind:
    """What is the same for all problems of one type."""

    status: int
    title: str


KINDS: Mapping[str, Kind] = {
    "invalid-request": Kind(400, "Invalid request"),
    "unsupported-version": Kind(400, "Unsupported version"),
    "invalid-image-ref": Kind(400, "Invalid image reference"),
    "invalid-definition": Kind(400, "Invalid workflow definition"),
    "invalid-payload": Kind(400, "Invalid payload"),
    "unsupported-capability": Kind(400, "Unsupported capability"),
    "unauthenticated": Kind(401, "Authentication needed"),
    "forbidden": Kind(403, "Not allowed"),
    "policy-denied": Kind(403, "Policy denied"),
    "not-found": Kind(404, "Not found"),
    "session-not-found": Kind(404, "No such sandbox"),
    "command-not-found": Kind(404, "No such command"),
    "file-not-found": Kind(404, "No such file"),
    "method-not-allowed": Kind(405, "Method not allowed"),
    "request-timeout": Kind(408, "Request timed out"),
    "conflict": Kind(409, "Conflict"),
    "lease-lost": Kind(409, "Lease lost"),
    "archived": Kind(409, "Archived"),
    "no-key-list": Kind(409, "No list of keys"),
    "session-busy": Kind(409, "Sandbox busy"),
    "path-is-directory": Kind(409, "Path is a folder"),
    "file-error": Kind(409, "File operation failed"),
    "payload-too-large": Kind(413, "Payload too large"),
    "file-too-large": Kind(413, "File too large"),
    "unsupported-media-type": Kind(415, "Unsupported media type"),
    "quota-exceeded": Kind(429, "Quota exceeded"),
    "overloaded": Kind(503, "Overloaded"),
    "draining": Kind(503, "Shutting down"),
    "index-unavailable": Kind(503, "Index unavailable"),
    "engine-unavailable": Kind(503, "Container engine unavailable"),
    "deadline-exceeded": Kind(503, "Container engine too slow"),
    "broker-unavailable": Kind(503, "Broker unavailable"),
    "broker-full": Kind(503, "Broker full"),
    "broker": Kind(500, "Broker error"),
    "execution-failed": Kind(502, "Execution failed"),
    "image-unavailable": Kind(502, "Image unavailable"),
    "no-worker": Kind(503, "No worker"),
    "no-capacity": Kind(503, "No capacity"),
    "worker-lost": Kind(503, "Worker lost"),
    "worker-replaced": Kind(503, "Worker replaced"),
    "command-timed-out": Kind(504, "Command timed out"),
}

REASONS: Mapping[str, str] = {reason.value: reason.value.replace("_", "-") for reason in Reason} | {
    Reason.DEADLINE_EXCEEDED.value: "command-timed-out"  # the other name is a slow engine's
}
"""The problem that each reason of a failed command is told as. The problem's member `code` has the reason itself."""

CHALLENGE = 'Bearer realm="fumehood"'
RETRY_SECONDS = 5
"""For callers of a process whose engine or broker is away: what they asked may be asked again after a while."""
ROOM_SECONDS = 1
"""For callers who found all workers busy: most commands are short."""

_FRAMEWORK = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path has other methods; the header Allow names them"),
}
_INTERNAL = Kind(500, "Internal error")
_INTERNAL_DETAIL = "the fault is on this side; the log tells more under this request id"


def problem(
    code: str,
    detail: str,
    request_id: str,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
) -> Response:
    """An answer that says what went wrong, with a contract's own extra members where it has any. A code without a
    status of its own is a fault of ours: 500, and what broke is not for the caller."""
    kind = KINDS.get(code, _INTERNAL)
    body = ProblemDetails(
        type=problem_type(code),
        title=kind.title,
        status=kind.status,
        detail=detail if kind.status != 500 else _INTERNAL_DETAIL,
        instance=request_id,
    )
    # `charset` means nothing for JSON, so the content type is given in full.
    text = json.dumps({**body.model_dump(mode="json"), **(members or {})}, ensure_ascii=False, separators=(",", ":"))
    return Response(text, kind.status, {"content-type": MEDIA_TYPE, **(headers or {})})


def internal_problem(request_id: str) -> Response:
    """An answer to whatever nobody expected."""
    return problem("internal", "", request_id)


def request_id_of(scope: Scope) -> str:
    return str(scope.get(REQUEST_ID, "unknown"))


async def on_error(request: Request, error: Exception) -> Response:
    """For errors of ours, wherever below the middlewares they were raised."""
    assert isinstance(error, FumehoodError)
    headers: dict[str, str] = {}
    code = _code_of(error)
    status = KINDS.get(code, _INTERNAL).status
    if status == 500:
        structlog.get_logger().error("http.failed", exc_info=error)
    if status == 401:
        headers["www-authenticate"] = CHALLENGE
    if status in (429, 503):
        headers["retry-after"] = str(_retry_after(error))
    if isinstance(error, RunDeniedError) and error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return problem(code, error.detail, request_id_of(request.scope), headers, _members(error))


def _code_of(error: FumehoodError) -> str:
    """A reason that is none of the protocol's was made up by a worker: it failed, and that is all we know."""
    return REASONS[_reason(error)] if isinstance(error, CommandFailedError) else error.code


def _reason(error: CommandFailedError) -> str:
    return error.reason if error.reason in REASONS else Reason.EXECUTION_FAILED.value


def _members(error: FumehoodError) -> Mapping[str, Any] | None:
    """What a contract wants to be told beyond the text."""
    if isinstance(error, InvalidDefinitionError):
        return {"problems": list(error.problems)}
    if isinstance(error, CommandFailedError):
        reason = _reason(error)
        return {"code": reason, "retryable": reason in RETRYABLE}
    return {"policy_evidence": error.evidence} if isinstance(error, RunDeniedError) else None


def _retry_after(error: FumehoodError) -> int:
    if isinstance(error, CommandFailedError) and error.reason == Reason.NO_CAPACITY:
        return ROOM_SECONDS
    return error.retry_after_seconds if isinstance(error, OverloadedError) else RETRY_SECONDS


async def on_http_exception(request: Request, error: Exception) -> Response:
    """For the framework's own: no such path, no such method (its `Allow` header goes along)."""
    assert isinstance(error, HTTPException)
    code, detail = _FRAMEWORK.get(error.status_code, ("internal", ""))
    return problem(code, detail, request_id_of(request.scope), error.headers)
