"""Files that an operator may replace while we run: read whole and bounded, and remembered until they change."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import final

Signature = tuple[int, ...]


class UnfitFileError(OSError):
    """There is a file, and it is not one that we take."""


@final
class OperatorFiles:
    """What was read together. `changed` tells whether anything of it did: a content, a file that came or went."""

    def __init__(self) -> None:
        self._seen: dict[Path, Signature | None] = {}

    def read(self, path: Path, limit: int) -> bytes:
        """The content, or `OSError`, whose text is for the operator and names the file."""
        self._seen[path] = None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnfitFileError(f"{path} cannot be read: {error.strerror}") from None
        try:
            status = os.fstat(fd)
            self._seen[path] = _signature(status)
            _check(path, status)
            with os.fdopen(fd, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        finally:
            os.close(fd)
        if len(content) > limit:
            raise UnfitFileError(f"{path} is larger than {limit} bytes")
        return content

    def changed(self) -> bool:
        """One `stat` for each file."""
        return any(_now(path) != seen for path, seen in self._seen.items())


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFileError(f"{path} is not a regular file")
    if status.st_mode & stat.S_IWOTH:
        raise UnfitFileError(f"{path} can be written by everybody, so nothing in it can be relied on: chmod o-w {path}")


def _now(path: Path) -> Signature | None:
    try:
        return _signature(path.stat())
    except OSError:
        return None


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)
