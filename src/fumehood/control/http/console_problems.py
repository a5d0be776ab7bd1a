"""What the console's operations have in common: how their ids look, and which problems they answer with."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

from fumehood.control.http import schema
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.errors import CommandFailedError
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.sessions import COMMAND_PATTERN, SESSION_PATTERN

MODEL = "CommandProblem"
SANDBOX = schema.path("sandbox_id", SESSION_PATTERN)
COMMAND = schema.path("command_id", COMMAND_PATTERN, 64)

_AWAY = ("no-worker", "no-capacity", "worker-lost", "worker-replaced", "broker-unavailable", "broker-full")


def told(*codes: str) -> dict[str, Any]:
    return problem_response(*codes, model=MODEL)


UNAVAILABLE = problem_response(*_AWAY, "overloaded", "draining", extra_headers=RETRY, model=MODEL)
FROM_A_WORKER: Responses = {
    400: told("invalid-request", "invalid-payload", "unsupported-capability"),
    403: told("forbidden", "policy-denied"),
    409: told("conflict", "session-busy", "path-is-directory", "file-error"),
    502: told("execution-failed", "image-unavailable"),
    503: UNAVAILABLE,
    504: told("command-timed-out"),
}
"""What every operation may answer that asks a worker."""


def session_id_of(request: Request) -> str:
    """A name that no session can have is one that there is not."""
    found: str = request.path_params["sandbox_id"]
    if re.fullmatch(SESSION_PATTERN, found) is None:
        raise CommandFailedError(Reason.SESSION_NOT_FOUND, "there is no such session: it may have run out")
    return found


def command_id_of(request: Request) -> str:
    found: str = request.path_params["command_id"]
    if re.fullmatch(COMMAND_PATTERN, found) is None:
        raise CommandFailedError(Reason.COMMAND_NOT_FOUND, "there is no such command")
    return found
