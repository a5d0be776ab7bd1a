"""Sandboxes that live on: made, kept with a lease, worked in with commands and files, and removed.

Field names are the contract; a later version adds fields and never changes what one means. What is called a sandbox
here is a session to the workers that keep it, and in the codes of what went wrong.
"""

from __future__ import annotations

import base64
import binascii
import signal as signals
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fumehood.wire.base import (
    ABSENT_NOT_NULL,
    CHOSEN_NAME_FORM,
    NO_NUL,
    NO_NUL_NOT_EMPTY,
    NOT_NULL,
    WHOLE,
    UtcTime,
    WireModel,
)
from fumehood.wire.command_api import WAIT_MS, WaitMs
from fumehood.wire.console.codes import PIECE_BYTES
from fumehood.wire.console.sessions import LONGEST_TIMEOUT_MS, MAX_WRITE_BYTES, MOST_ROWS, SESSION_PATTERN
from fumehood.wire.sandbox import EnvName, NetworkProfile

SANDBOXES_PATH = "/v1/sandboxes"
SANDBOX_PATH = "/v1/sandboxes/{sandbox_id}"
EXTEND_PATH = "/v1/sandboxes/{sandbox_id}:extend"
COMMANDS_PATH = "/v1/sandboxes/{sandbox_id}/commands"
COMMAND_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}"
OUTPUT_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}/output"
RECEIPT_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}/receipt"
STDIN_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}/stdin"
RESIZE_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}:resize"
SIGNAL_PATH = "/v1/sandboxes/{sandbox_id}/commands/{command_id}:signal"
FILES_PATH = "/v1/sandboxes/{sandbox_id}/files"
CONTENT_PATH = "/v1/sandboxes/{sandbox_id}/files/content"
LIST_PATH = "/v1/sandboxes/{sandbox_id}/files/list"
STAT_PATH = "/v1/sandboxes/{sandbox_id}/files/stat"
FOLDERS_PATH = "/v1/sandboxes/{sandbox_id}/files/folders"

MAX_TEXT_BYTES: Final = 1024 * 1024
"""Of each stream in an answer; all of it is at the command's `output`."""
MAX_INPUT_BYTES: Final = PIECE_BYTES
MAX_FILE_BYTES: Final = MAX_WRITE_BYTES
LONGEST_LEASE: Final = 86_400
LONGEST_PATH: Final = 4096
LONGEST_ARGUMENT: Final = 131_071
MOST_ARGUMENTS: Final = 4096
MOST_ENV, MOST_ENV_BYTES = 1024, 256 * 1024
CHOSEN_COMMAND_PATTERN: Final = CHOSEN_NAME_FORM
"""All commands of a worker share their names: short ones would meet those of others."""
_PATTERN_IN_WORDS = "1 to 128 letters, digits, dashes and underscores"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _fits_the_kernel(text: str) -> str:
    if _size(text) > LONGEST_ARGUMENT:
        raise ValueError(f"must have at most {LONGEST_ARGUMENT} bytes of UTF-8")
    return text


def _is_env(env: dict[str, str]) -> dict[str, str]:
    if sum(_size(text) for entry in env.items() for text in entry) > MOST_ENV_BYTES:
        raise ValueError(f"must have at most {MOST_ENV_BYTES} bytes of UTF-8, names and values together")
    return env


Argument = Annotated[str, Field(pattern=NO_NUL), AfterValidator(_fits_the_kernel)]
Program = Annotated[list[Argument], Field(min_length=1, max_length=MOST_ARGUMENTS)]
Shell = Annotated[str, Field(pattern=NO_NUL_NOT_EMPTY), AfterValidator(_fits_the_kernel)]
Env = Annotated[
    dict[EnvName, Annotated[str, Field(pattern=NO_NUL)]], Field(max_length=MOST_ENV), AfterValidator(_is_env)
]
Lease = Annotated[int, Field(ge=1, le=LONGEST_LEASE), WHOLE]


# --- sandboxes ---------------------------------------------------------------------------------------------


class CreateSandboxRequest(WireModel):
    """A sandbox to make. What is left out is as the worker has it by default."""

    sandbox_id: Annotated[
        Annotated[str, Field(pattern=SESSION_PATTERN)] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description=f"Its name, {_PATTERN_IN_WORDS}, of the caller's choice: asked for again, it is the same "
            "sandbox. Absent: a new one"
        ),
    ] = None
    image: Annotated[
        Annotated[str, Field(min_length=1, max_length=1024)] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="What it is made from; the worker's policy decides whether it may be"),
    ] = None
    lease_seconds: Annotated[
        Lease | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="How long it lives unless that is extended; the worker has bounds for it"),
    ] = None
    network: Annotated[NetworkProfile, Field(strict=False, description="What it can reach")] = NetworkProfile.DENY_ALL
    memory_mib: Annotated[
        Annotated[int, Field(ge=32, le=1024 * 1024), WHOLE] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="Memory of all of it together"),
    ] = None
    cpu_millis: Annotated[
        Annotated[int, Field(ge=50, le=1_024_000), WHOLE] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="Thousandths of a CPU"),
    ] = None
    env: Annotated[Env, Field(description=f"Of every command in it; at most {MOST_ENV_BYTES} bytes together")] = Field(
        default_factory=dict
    )


class ExtendSandboxRequest(WireModel):
    """A longer life."""

    lease_seconds: Annotated[Lease, Field(description="From now; a lease that is longer already stays as it is")]


class SandboxView(WireModel):
    """A sandbox that is there."""

    sandbox_id: Annotated[str, Field(description="Its name")]
    image: Annotated[str, Field(description="As it was asked for")]
    image_digest: Annotated[str, Field(description="What it was made from")]
    created_at: Annotated[UtcTime, Field(description="When it was made")]
    lease_expires_at: Annotated[UtcTime, Field(description="When it is removed, with all that is in it")]
    network: Annotated[NetworkProfile, Field(strict=False, description="What it can reach")]
    runtime: Annotated[str, Field(description="What isolates it")]
    running_commands: Annotated[int, Field(ge=0, description="Commands in it that have not ended")]
    worker_id: Annotated[str, Field(description="Who keeps it")]


class CreatedSandboxView(SandboxView):
    """The sandbox that was asked for."""

    created: Annotated[
        bool | None,
        Field(
            description="Whether this request made it; otherwise it was there before. "
            "Null where a worker of an older version has it, which does not say"
        ),
    ]


class SandboxListItem(WireModel):
    """A sandbox in a list, as far as it is known without asking its worker."""

    sandbox_id: Annotated[str, Field(description="Its name")]
    image: Annotated[str, Field(description="As it was asked for")]
    created_at: Annotated[UtcTime, Field(description="When it was made")]
    lease_expires_at: Annotated[UtcTime, Field(description="When it is removed; it may have been extended just now")]
    worker_id: Annotated[str, Field(description="Who keeps it")]


class SandboxList(WireModel):
    """A part of a list of sandboxes."""

    sandboxes: Annotated[list[SandboxListItem], Field(description="By name")]
    next: Annotated[str | None, Field(description="`after` for the next page; null where this is the last")] = None


# --- commands ----------------------------------------------------------------------------------------------


class TerminalSize(WireModel):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=MOST_ROWS, description="Lines"), WHOLE]
    columns: Annotated[int, Field(ge=1, le=MOST_ROWS, description="Characters of a line"), WHOLE]


def _is_base64(text: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64") from None
    if len(data) > MAX_INPUT_BYTES:
        raise ValueError(f"must have at most {MAX_INPUT_BYTES} bytes")
    return text


def _is_input(text: str) -> str:
    if _size(text) > MAX_INPUT_BYTES:
        raise ValueError(f"must have at most {MAX_INPUT_BYTES} bytes of UTF-8")
    return text


class RunCommandRequest(WireModel):
    """A command to run in a sandbox."""

    command_id: Annotated[
        Annotated[str, Field(pattern=CHOSEN_COMMAND_PATTERN)] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(
            description="Its name, 16 to 64 letters, digits, dashes and underscores, of the caller's choice, best a "
            "random one: asked for again, it is the same command, and runs once. The name of another command is "
            "refused. Absent: a new one"
        ),
    ] = None
    command: Annotated[
        Shell | Program,
        Field(
            description="Words for the sandbox's shell (`sh -c`), or a program and its arguments, which no shell sees"
        ),
    ]
    cwd: Annotated[
        Annotated[str, Field(pattern=NO_NUL_NOT_EMPTY, max_length=LONGEST_PATH)], Field(description="Where it runs")
    ] = "/workspace"
    env: Annotated[Env, Field(description=f"Beside the sandbox's own; at most {MOST_ENV_BYTES} bytes together")] = (
        Field(default_factory=dict)
    )
    timeout_ms: Annotated[
        Annotated[int, Field(ge=1, le=LONGEST_TIMEOUT_MS), WHOLE] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description="After which everything in the sandbox is killed; absent: as long as the sandbox lives"),
    ] = None
    terminal: Annotated[
        TerminalSize | None, NOT_NULL, ABSENT_NOT_NULL, Field(description="Give it a terminal of this size")
    ] = None
    stdin: Annotated[
        bool, Field(description="Its input stays open, for `…/stdin`; else it is at its end when `input` was read")
    ] = False
    input: Annotated[
        Annotated[str, Field(max_length=MAX_INPUT_BYTES), AfterValidator(_is_input)] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description=f"What it reads first, at most {MAX_INPUT_BYTES} bytes of UTF-8"),
    ] = None
    input_base64: Annotated[
        Annotated[str, Field(max_length=MAX_INPUT_BYTES * 4 // 3 + 4), AfterValidator(_is_base64)] | None,
        NOT_NULL,
        ABSENT_NOT_NULL,
        Field(description=f"The same for bytes that are no text, at most {MAX_INPUT_BYTES}; one of the two"),
    ] = None
    background: Annotated[bool, Field(description="Answer at once, whatever `wait_ms` says")] = False
    wait_ms: WaitMs = WAIT_MS

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.input is not None and self.input_base64 is not None:
            raise ValueError("input and input_base64 exclude each other")
        return self

    @property
    def input_bytes(self) -> bytes:
        return (self.input or "").encode() if self.input_base64 is None else base64.b64decode(self.input_base64)


class SandboxCommandStatus(StrEnum):
    """How a command in a sandbox stands."""

    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OOM = "oom"
    """Killed, since the sandbox's memory was full."""
    NOT_STARTED = "not_started"
    SANDBOX_LOST = "sandbox_lost"
    """Nothing is known of how it ended."""


class SandboxCommandView(WireModel):
    """A command in a sandbox as it is now."""

    command_id: Annotated[str, Field(description="Its name")]
    sandbox_id: Annotated[str, Field(description="Where it runs")]
    status: Annotated[
        SandboxCommandStatus, Field(strict=False, description="How it stands; all but the first for good")
    ]
    exit_code: Annotated[int | None, Field(description="Where it ended with one")] = None
    signal: Annotated[int | None, Field(description="Where one ended it")] = None
    detail: Annotated[str, Field(description="Why it did not start, or was lost")] = ""
    started_at: Annotated[UtcTime | None, Field(description="When it started")] = None
    ended_at: Annotated[UtcTime | None, Field(description="When it ended")] = None
    command: Annotated[list[str], Field(description="What was run, the shell included")]
    terminal: Annotated[bool, Field(description="Whether it has one")] = False
    stdout_bytes: Annotated[int, Field(ge=0, description="Bytes of the whole stream so far")] = 0
    stderr_bytes: Annotated[int, Field(ge=0, description="The same of the other")] = 0
    stdin_bytes: Annotated[int, Field(ge=0, description="Bytes of input that were taken: more goes on from here")] = 0
    stdout: Annotated[
        str | None,
        ABSENT_NOT_NULL,
        Field(
            description=f"Of one that has ended: the first {MAX_TEXT_BYTES} bytes; what is no UTF-8 is U+FFFD. Absent "
            "while it runs, and in lists"
        ),
    ] = None
    stderr: Annotated[str | None, ABSENT_NOT_NULL, Field(description="The same of the other stream")] = None
    stdout_truncated: Annotated[
        bool | None, ABSENT_NOT_NULL, Field(description="Whether there is more of it than is shown here")
    ] = None
    stderr_truncated: Annotated[bool | None, ABSENT_NOT_NULL, Field(description="The same of the other stream")] = None


class SandboxCommandList(WireModel):
    """The commands of a sandbox that are known."""

    commands: Annotated[list[SandboxCommandView], Field(description="Oldest first")]


SignalName = Literal[
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT", "SIGSTOP", "SIGTSTP"
]
SignalNumber = Annotated[int, Field(ge=1, le=64), WHOLE]


class SignalCommandRequest(WireModel):
    """A signal for a command."""

    signal: Annotated[
        SignalName | SignalNumber,
        Field(description="By its name, or its number on Linux"),
    ]
    everything: Annotated[
        bool, Field(description="To all that runs in the sandbox, not the command's own processes alone")
    ] = False

    @property
    def number(self) -> int:
        return int(signals.Signals[self.signal]) if isinstance(self.signal, str) else self.signal


class StdinView(WireModel):
    """What became of input."""

    stdin_bytes: Annotated[int, Field(ge=0, description="Bytes taken in all: the next `offset`")]


# --- files -------------------------------------------------------------------------------------------------


class FileKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


class FileInfo(WireModel):
    """A file, or whatever else has a name."""

    name: Annotated[str, Field(description="Without its folder")]
    kind: Annotated[FileKind, Field(strict=False, description="What it is")]
    size_bytes: Annotated[int, Field(ge=0, description="Of its content")]
    mode: Annotated[str, Field(pattern="^[0-7]{4}$", description="Who may do what with it, in octal digits")]
    uid: Annotated[int, Field(description="Whose it is")]
    gid: Annotated[int, Field(description="And which group's")]
    modified_at: Annotated[UtcTime, Field(description="When it was last written")]


class FileList(WireModel):
    """What is in a folder."""

    files: Annotated[list[FileInfo], Field(description="By name")]
    unnamed: Annotated[
        int, Field(ge=0, description="Entries beside these whose names are not UTF-8, and cannot be told here")
    ] = 0


class FileWritten(WireModel):
    """A file that is there, all of it."""

    path: Annotated[str, Field(description="Where")]
    size_bytes: Annotated[int, Field(ge=0, description="How long it is")]
