"""Session calls: what a server asks of the worker that keeps a session, and what that answers.

Every call can be repeated: whoever asks chooses the names (of a session, of a command, of an upload) and counts bytes
from the beginning, so that the second time finds what the first one did. So a call that got no answer is simply made
again, through another server if need be.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from fumehood.wire.base import NO_NUL, WireModel
from fumehood.wire.console.codes import PIECE_BYTES, SESSION_CALL
from fumehood.wire.sandbox import Arguments, Env, NetworkProfile

SESSION_PATTERN: Final = r"^[A-Za-z0-9_-]{1,128}$"
COMMAND_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$"
MOST_ROWS: Final = 1000
LONGEST_WAIT_MS: Final = 20_000
"""Of a call that waits for news: shorter than what proxies cut, and asked again at once."""
LONGEST_START_WAIT_MS: Final = 250
"""Of a call that starts a command. It holds one of the worker's places for calls for this long, and those are meant for
quick calls."""
START_OUTPUT_BYTES: Final = 64 * 1024
LONGEST_TIMEOUT_MS: Final = 24 * 3_600_000
MAX_WRITE_BYTES: Final = 256 * 1024 * 1024


class Method(StrEnum):
    """By its name, after `session.`."""

    CREATE = SESSION_CALL + "create"
    SHOW = SESSION_CALL + "show"
    EXTEND = SESSION_CALL + "extend"
    REMOVE = SESSION_CALL + "remove"
    START = SESSION_CALL + "start"
    COMMAND = SESSION_CALL + "command"
    COMMANDS = SESSION_CALL + "commands"
    OUTPUT = SESSION_CALL + "output"
    INPUT = SESSION_CALL + "input"
    RESIZE = SESSION_CALL + "resize"
    SIGNAL = SESSION_CALL + "signal"
    READ_FILE = SESSION_CALL + "read_file"
    WRITE_FILE = SESSION_CALL + "write_file"
    LIST_FILES = SESSION_CALL + "list_files"
    STAT_FILE = SESSION_CALL + "stat_file"
    REMOVE_FILE = SESSION_CALL + "remove_file"
    MAKE_FOLDER = SESSION_CALL + "make_folder"


SessionId = Annotated[str, Field(pattern=SESSION_PATTERN)]
CommandId = Annotated[str, Field(pattern=COMMAND_PATTERN)]
FilePath = Annotated[str, Field(pattern=NO_NUL, min_length=1, max_length=4096)]
Offset = Annotated[int, Field(ge=0, le=2**62)]
WaitMs = Annotated[int, Field(ge=0, le=LONGEST_WAIT_MS)]


class CallModel(WireModel):
    model_config = ConfigDict(extra="ignore", strict=False, frozen=True)


class Terminal(CallModel):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    columns: Annotated[int, Field(ge=1, le=MOST_ROWS)]


# --- sessions ----------------------------------------------------------------------------------------------


class SessionRef(CallModel):
    """show, commands."""

    session_id: SessionId


class RemoveSession(SessionRef):
    made_by: Annotated[str | None, Field(max_length=256)] = None
    """Only if this request made it."""


class CreateSession(CallModel):
    """What is left out is the worker's own default."""

    session_id: SessionId
    image: Annotated[str | None, Field(max_length=1024)] = None
    lease_ttl_sec: int | None = None
    network: NetworkProfile = NetworkProfile.DENY_ALL
    memory_mib: Annotated[int | None, Field(ge=32, le=1024 * 1024)] = None
    cpu_millis: Annotated[int | None, Field(ge=50, le=1_024_000)] = None
    env: Env = Field(default_factory=dict)
    """Of every command in it."""
    made_by: Annotated[str, Field(max_length=256)] = ""
    """The request that asks, the same when it is sent again: the view says which one made the session."""


class ExtendSession(CallModel):
    session_id: SessionId
    lease_ttl_sec: int


class SessionView(CallModel):
    """create, show, extend."""

    session_id: str
    image: str
    """As it was asked for."""
    image_digest: str
    created_unix_ms: int
    lease_expires_unix_ms: int
    network: NetworkProfile
    runtime: str = ""
    running_commands: int = 0
    worker: str = ""
    """Who keeps it: the console's to say."""
    made_by: str = ""
    """As `CreateSession` had it; empty where a worker of an older version made it."""


# --- commands in a session ---------------------------------------------------------------------------------


class StartCommand(CallModel):
    """A program, or words for the shell: one of the two."""

    session_id: SessionId
    command_id: CommandId
    argv: Arguments | None = None
    shell: Annotated[str | None, Field(pattern=NO_NUL, max_length=131_071)] = None
    cwd: Annotated[str, Field(pattern=NO_NUL, max_length=4096)] = "/workspace"
    env: Env = Field(default_factory=dict)
    timeout_ms: Annotated[int, Field(ge=0, le=LONGEST_TIMEOUT_MS)] = 0
    """0: as long as the session lives."""
    terminal: Terminal | None = None
    stdin: bool = False
    """Its input stays open and is fed by `session.input`; else it is at its end from the beginning."""
    wait_ms: Annotated[int, Field(ge=0, le=LONGEST_START_WAIT_MS)] = 0
    """The answer waits for the command's end, for so long. If the command has ended and printed at most
    `START_OUTPUT_BYTES`, its output comes with the answer: stdout, then stderr. So a quick command takes one call and
    not three."""


class CommandRef(CallModel):
    session_id: SessionId
    command_id: CommandId


class AskCommand(CommandRef):
    """How it stands; with `wait_ms`, as soon as it has ended or the time is over."""

    wait_ms: WaitMs = 0


class CommandStatus(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OOM = "oom"
    NOT_STARTED = "not_started"
    SANDBOX_LOST = "sandbox_lost"


class CommandView(CallModel):
    """start, command, commands."""

    command_id: str
    session_id: str
    status: CommandStatus
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""
    """Why it did not start, or was lost."""
    started_unix_ms: int | None = None
    ended_unix_ms: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    """So far; of the whole stream once it has ended."""
    stdin_bytes: int = 0
    """Taken so far: the next `session.input` goes on from here."""
    argv: tuple[str, ...] = ()
    terminal: bool = False


class CommandViews(CallModel):
    commands: tuple[CommandView, ...]


class AskOutput(CallModel):
    """The next output past a place in each stream. The command may be one of the contract's, too: then there is no
    session to be named."""

    command_id: CommandId
    session_id: SessionId | None = None
    stdout: Offset = 0
    stderr: Offset = 0
    limit: Annotated[int, Field(ge=1, le=PIECE_BYTES)] = PIECE_BYTES
    wait_ms: WaitMs = 0


class OutputPiece(CallModel):
    """Some bytes of a stream; they lie in the frame's `data`, piece after piece."""

    stream: Annotated[int, Field(ge=1, le=2)]
    offset: int
    """Where it begins in the whole stream. Beyond what was asked for: what lies between is gone."""
    length: int


class Output(CallModel):
    """An empty one says that nothing came in time. The end is told only when nothing is left to be read."""

    pieces: tuple[OutputPiece, ...] = ()
    ended: CommandView | None = None


class SendInput(CommandRef):
    """`data` is what comes at `offset`. What was taken before is skipped."""

    offset: Offset
    eof: bool = False


class InputTaken(CallModel):
    stdin_bytes: int


class ResizeTerminal(CommandRef):
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    columns: Annotated[int, Field(ge=1, le=MOST_ROWS)]


class SendSignal(CommandRef):
    signal: Annotated[int, Field(ge=1, le=64)]
    everything: bool = False
    """All that runs in the session, not the command's own processes alone."""


class Done(CallModel):
    """Nothing to tell but that it was done."""


# --- files -------------------------------------------------------------------------------------------------


class FileRef(CallModel):
    """stat_file, list_files. A path begins at the sandbox's root, or is one beneath `/workspace`."""

    session_id: SessionId
    path: FilePath


class ReadFile(FileRef):
    """A piece of it, in `data`."""

    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=PIECE_BYTES)] = PIECE_BYTES


class FilePiece(CallModel):
    offset: int
    size_bytes: int
    """Of the whole file, now."""
    mime_type: str = "application/octet-stream"


class WriteFile(FileRef):
    """The next piece of an upload, in `data`. The file is there with its last piece, all of it at once."""

    upload_id: CommandId
    offset: Offset
    last: bool
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    parents: bool = True


class Written(CallModel):
    received: int
    """Bytes of this upload so far."""


class RemoveFile(FileRef):
    recursive: bool = False


class MakeFolder(FileRef):
    parents: bool = True
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o755


class FileView(CallModel):
    name: str
    kind: str
    """`file`, `folder`, `link` or `other`."""
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_unix_ms: int


class FileViews(CallModel):
    files: tuple[FileView, ...]
    unnamed: int = 0
    """Entries beside these whose names are not UTF-8."""
