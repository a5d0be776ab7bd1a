"""Words of contract 5: what workers can do, and why a command failed."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CONNECT_METHOD: Final = "/fumehood.console.v1.ConsoleService/Connect"

MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
"""Of one frame: two streams of the largest output, each byte of it escaped, fit into it."""
MAX_INFLIGHT: Final = 4
"""Of each capability that a worker declares."""
MAX_SESSION_CALLS: Final = 256
MOST_SESSIONS: Final = 1024
"""That one worker keeps."""
SESSION_CALL: Final = "session."
"""What the name of a session call begins with."""
PIECE_BYTES: Final = 512 * 1024
"""Of `data` in one frame: small enough to pass through the broker beside other messages."""


class Capability(StrEnum):
    """What the contract's worker declares, all of it and nothing else."""

    ECHO = "echo"
    PYTHON_EXEC = "pythonExec"
    TERMINAL_EXEC = "terminalExec"
    TERMINAL_RESOURCE = "terminalResource"


class Reason(StrEnum):
    """Why a command failed."""

    INVALID_PAYLOAD = "invalid_payload"
    UNSUPPORTED_CAPABILITY = "unsupported_capability"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    EXECUTION_FAILED = "execution_failed"
    """It could not be run, or nothing is known of how it ended."""
    POLICY_DENIED = "policy_denied"
    """The worker's policy does not let it run: this image, with this network, or so large. Nothing was made."""
    IMAGE_UNAVAILABLE = "image_unavailable"
    """The worker cannot fetch the image: there is none, its registry does not answer, or the worker may not read it.
    Nothing was made."""
    NO_WORKER = "no_worker"
    """None that could do it is connected."""
    NO_CAPACITY = "no_capacity"
    """All that could do it have as much as they take."""
    WORKER_LOST = "worker_lost"
    """Its worker went away and did not come back. Nothing of a command runs any more; a call to a session may have been
    carried out."""
    WORKER_REPLACED = "worker_replaced"
    """Another connection of its worker took over, and knows nothing of it."""
    SESSION_NOT_FOUND = "session_not_found"
    SESSION_BUSY = "session_busy"
    COMMAND_NOT_FOUND = "command_not_found"
    FILE_NOT_FOUND = "file_not_found"
    PATH_IS_DIRECTORY = "path_is_directory"
    FILE_TOO_LARGE = "file_too_large"
    FILE_ERROR = "file_error"
    """A file could not be read, written or removed for another reason; the message names it."""


RETRYABLE: Final = frozenset(
    {Reason.NO_WORKER, Reason.NO_CAPACITY, Reason.WORKER_LOST, Reason.WORKER_REPLACED, Reason.SESSION_BUSY}
)
"""The same command may succeed later."""
