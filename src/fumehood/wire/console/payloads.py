"""What the contract's commands are given, and what they answer, field by field."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

from fumehood.errors import CommandFailedError, InvalidRequestError
from fumehood.wire import strict_json
from fumehood.wire.base import NO_NUL, NOT_NULL, WHOLE, Model, WireModel, validate
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.sessions import FilePath, SessionId

LONGEST_ARGUMENT: Final = 131_071
"""Bytes of one argument of a program: what Linux takes (`MAX_ARG_STRLEN`, without the byte that ends it)."""


def _fits_an_argument(text: str) -> str:
    if len(text.encode()) > LONGEST_ARGUMENT:
        raise ValueError(f"must have at most {LONGEST_ARGUMENT} bytes: write more into a file first")
    return text


Program = Annotated[str, Field(pattern=NO_NUL, min_length=1), AfterValidator(_fits_an_argument)]
"""Words that become one argument."""


def read(kind: type[Model], payload_json: bytes) -> Model:
    """A command's payload; anything that does not fit is `invalid_payload`."""
    try:
        return validate(kind, strict_json.loads(payload_json), versioned=False)
    except InvalidRequestError as error:
        raise CommandFailedError(Reason.INVALID_PAYLOAD, error.detail.replace("the body", "the payload")) from None


def written(answer: WireModel) -> bytes:
    """An answer as it travels."""
    return answer.model_dump_json().encode()


class PythonExec(WireModel):
    code: Program


class PythonExecResult(WireModel):
    """The flags are there only when something was cut off, so that the contract's three fields stay exact."""

    output: str
    stderr: str
    exit_code: int
    output_truncated: Annotated[bool, Field(exclude_if=lambda cut: not cut)] = False
    stderr_truncated: Annotated[bool, Field(exclude_if=lambda cut: not cut)] = False


class TerminalExec(WireModel):
    command: Program
    session_id: Annotated[SessionId | None, NOT_NULL] = None
    """None: a session is made for it."""
    create_if_missing: bool = False
    lease_ttl_sec: Annotated[int | None, NOT_NULL, WHOLE] = None
    """None: the worker's default."""


class TerminalExecResult(WireModel):
    session_id: str
    created: bool
    stdout: str
    stderr: str
    exit_code: int
    stdout_truncated: bool
    stderr_truncated: bool
    lease_expires_unix_ms: int


class ResourceAction(StrEnum):
    VALIDATE = "validate"
    READ = "read"


class TerminalResource(WireModel):
    model_config = ConfigDict(strict=False)  # an action is a text; both other fields are texts, which nothing becomes

    session_id: SessionId
    file_path: FilePath
    action: ResourceAction = ResourceAction.VALIDATE


class TerminalResourceResult(WireModel):
    """`blob`: the content in base64, of `read` only."""

    session_id: str
    file_path: str
    mime_type: str
    size_bytes: int
    blob: Annotated[str | None, Field(exclude_if=lambda blob: blob is None)] = None
