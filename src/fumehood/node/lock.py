"""Who owns a state directory: one node at a time, always under the same name.

Two nodes on one ledger would each take the other's sandboxes for orphans and kill them. The lock is the
kernel's (`flock`), so that it ends with the process however that ends, and no stale file can block a restart.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path

from fumehood.errors import ConfigurationError

LOCK_FILE = "node.lock"
ID_FILE = "node-id"


class StateLock:
    """The exclusive hold on a state directory, kept until `release` or the end of the process."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._fd: int | None = _take(state_dir)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> StateLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _take(state_dir: Path) -> int:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(f"state_dir {state_dir} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigurationError("state_dir belongs to another node that is running: give each its own") from error
    return fd


def load_node_id(lock: StateLock) -> str:
    """The random name of this state directory's node, made at the first start. Taking the lock proves the right."""
    path = lock.state_dir / ID_FILE
    try:
        return path.read_text(encoding="ascii").strip() or _make_node_id(path)
    except FileNotFoundError:
        return _make_node_id(path)


def _make_node_id(path: Path) -> str:
    """Written aside, synced and renamed: after a crash there is the whole id or none, never another one."""
    node_id = f"node-{uuid.uuid4().hex[:12]}"
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="ascii") as file:
        file.write(node_id + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return node_id
