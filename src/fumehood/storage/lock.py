"""The hold of one process on a folder. It is the kernel's (`flock`), so that it ends with the process however that
ends, and no stale file can block a restart."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fumehood.errors import ConfigurationError


def take_lock(path: Path, *, folder: str, taken: str) -> int:
    """The open file that is the lock: to close it gives the folder back. The folder is made where there is none.

    `folder` is what errors call it, `taken` the error where another process has it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigurationError(taken) from error
    return lock
