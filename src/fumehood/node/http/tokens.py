"""Which bearer tokens open the door.

A token comes from the environment (for good), or from a file: one of its own, or the node's configuration file.
Replacing the file rotates the token: the new one counts at once, the old one for an overlap. Whatever is doubtful
closes the door. No token means that nobody comes in; a file that others may read is refused; a file that vanishes
or turns to nonsense lets the last good token live for the overlap and then nobody. After a restart only what the
file says now is known. Replace the file by renaming another one over it, so that no half of a token is ever read.

Only hashes are kept, and a presented token is compared with every one of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings, is_loopback, is_token

_LONGEST_FILE = 1024 * 1024


class Posture(StrEnum):
    """How the door stands; said in the log at start-up."""

    INSECURE = "insecure"
    CLOSED = "closed"
    STATIC = "static"
    FILE = "file"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Posture.INSECURE: "whoever can connect may run jobs: this node asks for no token",
    Posture.CLOSED: "no token is configured, so every job is refused: name a file with --token-file, or in the "
    "configuration with worker_api_token_file",
    Posture.STATIC: "jobs need the token of the configuration, which stays the same until a restart",
    Posture.FILE: "jobs need the token of a file; replacing the file rotates it",
}


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a token. `key` names it inside a TOML file; None: the token is all there is."""

    path: Path
    key: str | None = None

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
            raise ConfigurationError(f"the token file {self.path} cannot be read: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            self._check_private(status)
            return self._token_in(os.read(fd, _LONGEST_FILE)), _signature(status)
        finally:
            os.close(fd)

    def _token_in(self, data: bytes) -> str:
        try:
            text = data.decode()
            token = text.strip() if self.key is None else tomllib.loads(text).get(self.key)
        except ValueError as error:
            raise ConfigurationError(f"the token file {self.path} cannot be understood") from error
        if not isinstance(token, str) or not is_token(token):
            raise ConfigurationError(f"the token file {self.path} holds no token")
        return token

    def _check_private(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"the token file {self.path} is not a regular file")
        if status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise ConfigurationError(
                f"the token file {self.path} is accessible to others than its owner (mode {mode}): "
                f"chmod 600 {self.path}"
            )


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class TokenSource:
    """The tokens that are valid now."""

    def __init__(
        self,
        token: str | None = None,
        file: TokenFile | None = None,
        *,
        overlap_seconds: float = 300.0,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._overlap_seconds = overlap_seconds
        self._insecure = insecure
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._old: list[tuple[bytes, float]] = []
        if file is not None:
            token, self._seen = file.read()
        self._current = _digest(token) if token is not None else None

    @classmethod
    def from_settings(cls, settings: NodeSettings, *, clock: Callable[[], float] = time.monotonic) -> TokenSource:
        """The source that the settings describe. `ConfigurationError` when it cannot be trusted or read."""
        if settings.insecure and not is_loopback(settings.host):
            raise ConfigurationError("insecure is allowed only on a loopback host")
        return cls(
            settings.worker_api_token,
            _file_of(settings),
            overlap_seconds=settings.token_overlap_seconds,
            insecure=settings.insecure,
            clock=clock,
        )

    @property
    def posture(self) -> Posture:
        if self._insecure:
            return Posture.INSECURE
        if self._file is not None:
            return Posture.FILE
        return Posture.CLOSED if self._current is None else Posture.STATIC

    def announce(self) -> None:
        """Say at start-up how the door stands."""
        quiet = self.posture in (Posture.STATIC, Posture.FILE)
        log = structlog.get_logger()
        said = {"posture": self.posture.value, "notice": self.posture.sentence}
        (log.info if quiet else log.warning)("worker_api.authentication", **said)

    def accepts(self, authorization: str | None) -> bool:
        """Whether the value of an `Authorization` header opens the door."""
        if self._insecure:
            return True
        self._refresh()
        presented = _digest(_bearer(authorization))
        fits = False
        for valid in self._valid():
            fits |= hmac.compare_digest(valid, presented)
        return fits

    def _valid(self) -> list[bytes]:
        now = self._clock()
        self._old = [(digest, end) for digest, end in self._old if now < end]
        old = [digest for digest, _ in self._old]
        return old if self._current is None else [self._current, *old]

    def _refresh(self) -> None:
        """Look at the file; one `stat` is all that this costs while nothing changes."""
        if self._file is None or (seen := self._file.signature()) == self._seen:
            return
        try:
            token, self._seen = self._file.read()
        except ConfigurationError as error:
            self._seen = seen
            self._replace(None)
            structlog.get_logger().warning("worker_api.token_file_refused", reason=error.detail)
        else:
            self._replace(_digest(token))
            structlog.get_logger().info("worker_api.rotated", overlap_seconds=self._overlap_seconds)

    def _replace(self, new: bytes | None) -> None:
        if self._current is not None and self._current != new:
            self._old.append((self._current, self._clock() + self._overlap_seconds))
        self._current = new


def _file_of(settings: NodeSettings) -> TokenFile | None:
    if settings.worker_api_token_file is not None:
        return TokenFile(settings.worker_api_token_file)
    if settings.worker_api_token_config is not None:
        return TokenFile(settings.worker_api_token_config, key="worker_api_token")
    return None


def _bearer(authorization: str | None) -> str:
    """The token in a header's value, or something that no token can equal: tokens hold no blanks."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else " "


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
