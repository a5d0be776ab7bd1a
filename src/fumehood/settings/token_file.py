"""A file that holds a secret: a token, a key, a password.

It counts only where nobody but its owner may read it. Both sides of a door need it: the server that compares a token,
and the caller who presents one.
"""

from __future__ import annotations

import os
import secrets
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fumehood.errors import ConfigurationError
from fumehood.settings.base import is_token

_LONGEST_FILE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a token. `key` names it inside a TOML file; None: the token is all there is. `noun` is what people
    call it."""

    path: Path
    key: str | None = None
    noun: str = "token"

    def signature(self) -> tuple[int, ...] | None:
        """Changes whenever the file is replaced or written; None when there is none."""
        try:
            return _signature(self.path.stat())
        except OSError:
            return None

    def read(self) -> tuple[str, tuple[int, ...]]:
        """The token and the signature of the very file that it was read from."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ConfigurationError(f"the {self.noun} file {self.path} cannot be read: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            check_private(status, self.path, f"the {self.noun} file {self.path}")
            return self._token_in(os.read(fd, _LONGEST_FILE)), _signature(status)
        finally:
            os.close(fd)

    def _token_in(self, data: bytes) -> str:
        try:
            text = data.decode()
            token = text.strip() if self.key is None else tomllib.loads(text).get(self.key)
        except ValueError as error:
            raise ConfigurationError(f"the {self.noun} file {self.path} cannot be understood") from error
        if not isinstance(token, str) or not is_token(token):
            raise ConfigurationError(f"the {self.noun} file {self.path} holds no {self.noun}")
        return token


def check_private(status: os.stat_result, path: Path, what: str) -> None:
    """`ConfigurationError` for whatever others than its owner can get at."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{what} is not a regular file")
    if status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise ConfigurationError(f"{what} is accessible to others than its owner (mode {mode}): chmod 600 {path}")


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and only for its owner. The folder may be anybody's: whatever lies there under the draft's
    name was put there by somebody else, and is not written to."""
    draft = path.with_name(f".{secrets.token_hex(16)}")
    # Not the file's own name in it: that may be as long as names can be.
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
