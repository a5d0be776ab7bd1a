"""The key that a node, a worker or a provider signs its receipts with: one file in its state folder, its owner's alone.

Rotation gives it another key. Of the old one only the public half stays, with the time until which it counted: nobody
who reads the file later can sign in its name.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fumehood.errors import ConfigurationError
from fumehood.storage.lock import take_lock
from fumehood.verify.dsse import SigningKey, key_id
from fumehood.wire.base import UtcTime

KEY_FILE = "receipt-key.json"
LOCK_FILE = "receipt-key.lock"
LARGEST_FILE = 1024 * 1024
MOST_RETIRED = 1000
"""Older ones are forgotten here. The list of keys that receipts are checked with still has them."""

Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RetiredKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    public_key: Hex
    since: UtcTime
    until: UtcTime

    @property
    def key_id(self) -> str:
        return key_id(bytes.fromhex(self.public_key))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    seed: Annotated[Hex, Field(repr=False)]
    since: UtcTime
    retired: Annotated[tuple[RetiredKey, ...], Field(max_length=MOST_RETIRED)] = ()

    @property
    def key(self) -> SigningKey:
        return SigningKey.from_seed(bytes.fromhex(self.seed))


class ReceiptKeys:
    """The keys of one state folder. Use `load`. Whoever holds it signs with a new key from the rotation on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY_FILE
        self._folder = folder
        self._known, self._mark = _read(self._path)
        self._key = self._known.key

    @classmethod
    def load(cls, folder: Path) -> ReceiptKeys:
        """Makes the key at the first start. `ConfigurationError` for a file that others could read, or that is none of
        ours."""
        if not os.path.lexists(folder / KEY_FILE):
            with _alone(folder):
                if not os.path.lexists(folder / KEY_FILE):  # nobody was quicker
                    _write(folder / KEY_FILE, _File(seed=secrets.token_hex(32), since=dt.datetime.now(dt.UTC)))
        return cls(folder)

    @property
    def current(self) -> SigningKey:
        self._look()
        return self._key

    @property
    def public_key_hex(self) -> str:
        return self.current.public_key.hex()

    @property
    def since(self) -> dt.datetime:
        self._look()
        return self._known.since

    @property
    def retired(self) -> tuple[RetiredKey, ...]:
        """Oldest first."""
        self._look()
        return self._known.retired

    def rotate(self) -> SigningKey:
        """Another key from now on, also for a process that runs; the old one is recorded as retired."""
        with _alone(self._folder):
            known, _ = _read(self._path)
            now = dt.datetime.now(dt.UTC)
            old = RetiredKey(public_key=known.key.public_key.hex(), since=known.since, until=now)
            retired = (*known.retired, old)[-MOST_RETIRED:]
            _write(self._path, _File(seed=secrets.token_hex(32), since=now, retired=retired))
        return self.current

    def _look(self) -> None:
        """Has somebody rotated? A file that cannot be read now does not keep a result from its receipt."""
        with contextlib.suppress(OSError, ConfigurationError):
            if _mark(self._path.stat()) != self._mark:
                self._known, self._mark = _read(self._path)
                self._key = self._known.key


def rotate(folder: Path) -> ReceiptKeys:
    """For the operator: another key for the state folder of a node, worker or provider, which must have one already."""
    keys = ReceiptKeys(folder)
    keys.rotate()
    return keys


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    taken = f"the receipt key in {folder} is being changed by another process: try again"
    lock = take_lock(folder / LOCK_FILE, folder=f"the state folder {folder}", taken=taken)
    try:
        yield
    finally:
        os.close(lock)


def _read(path: Path) -> tuple[_File, tuple[int, ...]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigurationError(f"the receipt key {path} cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        _check_private(path, status)
        data = file.read(LARGEST_FILE)
    try:
        return _File.model_validate(json.loads(data)), _mark(status)
    except (ValueError, ValidationError):
        raise ConfigurationError(f"the receipt key {path} is not one that fumehood wrote") from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"the receipt key {path} is not a regular file")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"the receipt key {path} is accessible to others than its owner (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): somebody may have it; fumehood makes another where there is none"
        )


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _write(path: Path, content: _File) -> None:
    """Written aside, synced and renamed: after a crash there is the old key or the new one, whole."""
    draft = path.with_name(f".{secrets.token_hex(16)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise ConfigurationError(f"the receipt key {path} cannot be written: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
