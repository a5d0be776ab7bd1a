"""Where an index lies: a private folder of its own for each process, below the one that the operator named.

The folder is locked by the kernel (`flock`) for as long as its process lives, however that ends; what a killed server
left behind is taken away by the next one that starts there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from fumehood.errors import ConfigurationError

PREFIX = "fumehood-index-"
LOCK_FILE = "lock"
TRIES = 5
"""Against others who take a new folder for one that was left behind, in the moment before it is locked."""


class IndexFolder:
    """Use `IndexFolder.make(base)`, and `remove()` at the end."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._files = 0

    @classmethod
    def make(cls, base: Path | None) -> IndexFolder:
        """A fresh folder below `base`, or where temporary files belong."""
        try:
            if base is not None:
                base.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = base or Path(tempfile.gettempdir())
            for left in where.glob(f"{PREFIX}*"):
                _remove_if_left(left)
            for _ in range(TRIES):
                path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
                lock = _locked(path, os.O_CREAT)
                if lock is not None:
                    return cls(path, lock)
        except OSError as error:
            raise ConfigurationError(f"index_dir cannot be used: {error.strerror}") from error
        raise ConfigurationError("index_dir cannot be used: it is emptied by somebody else")

    def new_file(self) -> Path:
        """A name that was not used before."""
        self._files += 1
        return self.path / f"index-{self._files}.sqlite"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(folder: Path, create: int = 0) -> int | None:
    """The hold on a folder; `None` where it is somebody else's, or gone by now."""
    path = folder / LOCK_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | create, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == path.stat().st_ino:
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _remove_if_left(folder: Path) -> None:
    """Only a folder of our own user's that nobody holds; one whose lock is not there yet is being made."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
