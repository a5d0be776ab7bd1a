"""Who owns a state directory: one node at a time, always under the same name.

Two nodes on one ledger would each take the other's sandboxes for orphans and kill them.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from fumehood.storage.lock import take_lock

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
    taken = "state_dir belongs to another node that is running: give each its own"
    return take_lock(state_dir / LOCK_FILE, folder=f"state_dir {state_dir}", taken=taken)


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
