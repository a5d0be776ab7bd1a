"""Commands of workers, from the caller's side: submitted, waited for, asked about, cancelled, followed.

Field names are the contract; a later version adds fields and never changes what one means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from fumehood.errors import InvalidRequestError
from fumehood.wire.base import ABSENT_NOT_NULL, NOT_NULL, WHOLE, UtcTime, WireModel
from fumehood.wire.console.codes import PIECE_BYTES, Capability
from fumehood.wire.problem import ProblemDetails
from fumehood.wire.run_api import Key

COMMANDS_PATH = "/v1/commands"
COMMAND_PATH = "/v1/commands/{command_id}"
CANCEL_PATH = "/v1/commands/{command_id}:cancel"
STREAM_PATH = "/v1/commands/{command_id}/stream"
RECEIPT_PATH = "/v1/commands/{command_id}/receipt"

MAX_PAYLOAD_BYTES: Final = PIECE_BYTES
"""Of a payload's text: it passes through the broker beside other messages."""
DEEPEST_PAYLOAD: Final = 64
TIMEOUT_MS, LONGEST_TIMEOUT_MS = 60_000, 3_600_000
"""What takes longer belongs into a sandbox of its own, where it can be left alone and found again."""
WAIT_MS, LONGEST_WAIT_MS = 10_000, 60_000

POSITION_PATTERN: Final = r"[0-9]{1,18}\.[0-9]{1,18}(\.end)?"
LONGEST_POSITION: Final = 41
_POSITION = re.compile(POSITION_PATTERN)


class CommandStatus(StrEnum):
    """Where a command stands."""

    QUEUED = "queued"
    """No worker had room for it yet."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (CommandStatus.QUEUED, CommandStatus.RUNNING)


WaitMs = Annotated[
    int,
    Field(ge=0, le=LONGEST_WAIT_MS, description="How long the answer may wait for the end; 0: not at all"),
    WHOLE,
]


class SubmitCommandRequest(WireModel):
    """A command to be done by whichever worker can."""

    capability: Annotated[Capability, Field(strict=False, description="What is asked for")]
    payload: Annotated[
        Any,
        Field(
            description="What the capability wants to be told: any JSON, which the worker gets exactly as it is "
            f"written here; at most {MAX_PAYLOAD_BYTES} bytes and {DEEPEST_PAYLOAD} levels"
        ),
    ]
    timeout_ms: Annotated[
        int,
        Field(ge=1, le=LONGEST_TIMEOUT_MS, description="After which it is ended, with everything that it started"),
        WHOLE,
    ] = TIMEOUT_MS
    wait_ms: WaitMs = WAIT_MS
    idempotency_key: Annotated[
        Key | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description="The same key and command again is the same command, for as long as that is known. May also be "
            "given in the header `Idempotency-Key`"
        ),
    ] = None


def _is_none(value: object) -> bool:
    return value is None


class CommandError(WireModel):
    """Why a command failed."""

    code: Annotated[str, Field(description="For programs: `session_not_found`, `deadline_exceeded` and the like")]
    message: Annotated[str, Field(description="For people")]
    retryable: Annotated[bool, Field(description="Whether the same command may succeed later")]


class CommandView(WireModel):
    """A command as it is now."""

    command_id: Annotated[str, Field(description="The command's name from now on")]
    status: Annotated[CommandStatus, Field(strict=False, description="Where it stands; the last four are for good")]
    capability: Annotated[str, Field(description="What was asked for")]
    created_at: Annotated[UtcTime, Field(description="When it was submitted")]
    ended_at: Annotated[UtcTime | None, ABSENT_NOT_NULL, Field(description="When it ended")] = None
    result: Annotated[
        Any,
        Field(
            exclude_if=_is_none,
            description="What the worker said, exactly as it wrote it; absent unless the command succeeded",
        ),
    ] = None
    error: Annotated[CommandError | None, ABSENT_NOT_NULL, Field(description="Why it failed, where it did")] = None


class CommandProblem(ProblemDetails):
    """What a worker could not do, or nobody was there to do."""

    code: Annotated[
        str | None,
        ABSENT_NOT_NULL,
        Field(description="One of the codes of commands and sandboxes, like `no_worker`; absent: it is about neither"),
    ] = None
    retryable: Annotated[
        bool | None, ABSENT_NOT_NULL, Field(description="Whether the same may succeed later; absent as above")
    ] = None


# --- what it prints ----------------------------------------------------------------------------------------


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class OutputEvent(WireModel):
    """The data of `output`: the next piece of a stream."""

    stream: Annotated[OutputStream, Field(strict=False, description="Which one; a terminal has only `stdout`")]
    offset: Annotated[
        int,
        Field(ge=0, description="Bytes of the stream before it; more than those that were told: the rest is gone"),
    ]
    data: Annotated[str, Field(description="Base64", json_schema_extra={"contentEncoding": "base64"})]


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """Up to where a command's output was seen: how many bytes of each stream, and whether its end was told."""

    stdout: int = 0
    stderr: int = 0
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.stdout}.{self.stderr}{'.end' if self.ended else ''}"

    @classmethod
    def parse(cls, text: str) -> OutputPosition:
        if _POSITION.fullmatch(text) is None:
            raise InvalidRequestError("this is not the id of an event of a command's output")
        stdout, stderr, *end = text.split(".")
        return cls(int(stdout), int(stderr), bool(end))

    def moved(self, stream: OutputStream, to: int) -> OutputPosition:
        return replace(self, stdout=to) if stream is OutputStream.STDOUT else replace(self, stderr=to)
