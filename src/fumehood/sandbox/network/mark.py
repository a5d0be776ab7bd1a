"""A sign that a node lives, which goes away with its process however that ends, and which its networks are known by.

A file that the kernel locks (`flock`), in a folder of the machine's that nobody but its owner can enter: who could
lock it for a node that is dead, or before one that starts, could keep its networks from it. All that is done there is
done one after the other, so that nobody who only looks is taken for a holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fumehood.errors import NetworkUnavailableError

FOLDER: Final = Path("/run/fumehood-networks")
"""The same for all nodes of a machine, whatever their state folders are."""


class Sign:
    """Held until it is closed."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    def close(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError), _alone(self._path.parent):  # a file that stays says nothing
            self._path.unlink()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def take(mark: str, *, folder: Path = FOLDER) -> Sign | None:
    """Hold the sign of a node; `None`: a living process holds it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder):
            fd = os.open(folder / mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if _lock(fd):
                return Sign(folder / mark, fd)
            os.close(fd)
            return None
    except OSError as error:
        raise NetworkUnavailableError(
            f"the node cannot keep its sign of life in {folder} ({error.strerror}): sandbox networks need a folder "
            "there that belongs to the node's own user (root), and that nobody else can enter (0700)"
        ) from error


def is_alive(mark: str, *, folder: Path = FOLDER) -> bool:
    """Whether a living process holds it. What cannot be told, because the folder is not ours, counts as living."""
    try:
        with _alone(folder):
            fd = os.open(folder / mark, os.O_RDWR | os.O_NOFOLLOW)
            try:
                return not _lock(fd)
            finally:
                os.close(fd)
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """In the folder, while no other process is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(errno.EPERM, "others can enter it")  # and so lock it, for as long as they like
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
