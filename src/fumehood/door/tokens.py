"""Which bearer tokens open the door.

A token comes from the environment (for good), or from a file: one of its own, or the configuration file.
Replacing the file rotates the token: the new one counts at once, the old one for an overlap. Whatever is doubtful
closes the door. No token means that nobody comes in; a file that others may read is refused; a file that vanishes
or turns to nonsense lets the last good token live for the overlap and then nobody. After a restart only what the
file says now is known. Replace the file by renaming another one over it, so that no half of a token is ever read.

Only hashes are kept, and a presented token is compared with every one of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from enum import StrEnum

import structlog

from fumehood.errors import ConfigurationError
from fumehood.settings import Access
from fumehood.settings.token_file import TokenFile


class Posture(StrEnum):
    """How the door stands; said in the log at start-up."""

    INSECURE = "insecure"
    CLOSED = "closed"
    STATIC = "static"
    FILE = "file"


_SENTENCES = {
    Posture.INSECURE: "whoever can connect comes in: no token is asked for",
    Posture.CLOSED: "no token is configured, so every request is refused: name a file with {option}, or in the "
    "configuration with {name}_token_file",
    Posture.STATIC: "requests need the token of the configuration, which stays the same until a restart",
    Posture.FILE: "requests need the token of a file; replacing the file rotates it",
}


class TokenSource:
    """The tokens that are valid now."""

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`ConfigurationError` when the file that it names cannot be trusted or read."""
        self._name, self._option = access.name, access.option
        self._file = _file_of(access)
        self._overlap_seconds = access.overlap_seconds
        self._insecure = access.insecure
        self._clock = clock
        self._log = structlog.get_logger(door=access.name)
        self._seen: tuple[int, ...] | None = None
        self._old: list[tuple[bytes, float]] = []
        token = access.token
        if self._file is not None:
            token, self._seen = self._file.read()
        self._current = _digest(token) if token is not None else None

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
        notice = _SENTENCES[self.posture].format(name=self._name, option=self._option)
        say = self._log.info if quiet else self._log.warning
        say("door.authentication", posture=self.posture.value, notice=notice)

    def accepts(self, authorization: str | None) -> bool:
        """Whether the value of an `Authorization` header opens the door."""
        if self._insecure:
            return True
        self._refresh()
        presented = _digest(bearer(authorization))
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
            self._log.warning("door.token_file_refused", reason=error.detail)
        else:
            self._replace(_digest(token))
            self._log.info("door.token_rotated", overlap_seconds=self._overlap_seconds)

    def _replace(self, new: bytes | None) -> None:
        if self._current is not None and self._current != new:
            self._old.append((self._current, self._clock() + self._overlap_seconds))
        self._current = new


def _file_of(access: Access) -> TokenFile | None:
    if access.file is not None:
        return TokenFile(access.file)
    if access.config is not None:
        return TokenFile(access.config, key=f"{access.name}_token")
    return None


def bearer(authorization: str | None) -> str:
    """The token in a header's value, or something that no token can equal: tokens hold no blanks."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else " "


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
