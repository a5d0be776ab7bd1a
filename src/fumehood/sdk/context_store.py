"""Contexts on disk, and their keys in the keyring or in files of their own.

The folder and everything in it are for their owner alone: what others can read is refused, not used. Changes are made
under a lock and whole or not at all. A key is kept under its context's name and address together, so that whoever
changes an address in the file gets no key with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from fumehood.errors import ConfigurationError
from fumehood.sdk.contexts import Context, Contexts, KeptIn, dump, parse
from fumehood.settings.base import config_folder
from fumehood.settings.token_file import TokenFile, check_private, write_private

T = TypeVar("T")

FILE = "contexts.json"
KEYS = "keys"
SERVICE = "fumehood"
"""Under which the keyring lists our keys."""
LARGEST_FILE = 1024 * 1024
RING_SECONDS = 60.0
"""For somebody to unlock the keyring."""
LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.02


class Ring(Protocol):
    """A keyring: what of the package `keyring` is used."""

    def get_password(self, service: str, username: str) -> str | None: ...
    def set_password(self, service: str, username: str, password: str) -> None: ...
    def delete_password(self, service: str, username: str) -> None: ...


class RingError(Exception):
    """The keyring is locked, gone or broken. Why is its own business, and may hold anything: it is not repeated."""


class ContextStore:
    """The contexts of one person."""

    def __init__(self, folder: Path | None = None, ring: Callable[[], Ring | None] | None = None) -> None:
        self._folder = config_folder() if folder is None else folder
        self._ring = desktop_ring if ring is None else ring

    @property
    def path(self) -> Path:
        return self._folder / FILE

    def read(self) -> Contexts:
        """None at all where nobody has logged in. `ConfigurationError` for a file that others can read."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Contexts()
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be read: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            check_private(os.fstat(fd), self.path, str(self.path))
            data = file.read(LARGEST_FILE + 1)
        try:
            return parse(data.decode() if len(data) <= LARGEST_FILE else "")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self.path} is not UTF-8") from None
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self.path} cannot be understood, {error.detail}: remove it, and log in again"
            ) from None

    # --- keys ----------------------------------------------------------------------------------------------

    def key(self, name: str, context: Context) -> str | None:
        """The key that was kept for this name at this address. One that is gone is an error, not "no key": without it
        the caller would ask as somebody else."""
        match context.kept_in:
            case KeptIn.NOWHERE:
                return None
            case KeptIn.FILE:
                return TokenFile(self._key_file(name, context.url), noun="key").read()[0]
            case KeptIn.KEYRING:
                return self._from_ring(name, context.url)

    def _from_ring(self, name: str, url: str) -> str:
        ring = self._ring()
        if ring is None:
            raise ConfigurationError(
                f"the key of the context {name} is in a keyring that cannot be used here: unlock it, install "
                "`fumehood[keyring]`, or log in again"
            )
        try:
            found = _asked(lambda: ring.get_password(SERVICE, _username(name, url)))
        except RingError:
            raise ConfigurationError(f"the keyring does not give the key of the context {name}: unlock it") from None
        if found is None:
            raise ConfigurationError(
                f"the keyring has no key for the context {name} at {url}: `fumehood login {url} --context {name}`"
            )
        return found

    def _kept(self, name: str, url: str, key: str, *, in_file: bool) -> KeptIn:
        """In the keyring where there is one that takes it, else in a file."""
        ring = None if in_file else self._ring()
        if ring is not None:
            try:
                _asked(lambda: ring.set_password(SERVICE, _username(name, url), key))
            except RingError:
                pass  # a file will do
            else:
                return KeptIn.KEYRING
        file = self._key_file(name, url)
        _make_folder(file.parent)
        try:
            write_private(file, key)
        except OSError as error:
            raise ConfigurationError(f"the key cannot be kept in {file.parent}: {error.strerror}") from None
        return KeptIn.FILE

    def _forget(self, name: str, context: Context) -> bool:
        """Whether the key is really gone."""
        match context.kept_in:
            case KeptIn.NOWHERE:
                return True
            case KeptIn.FILE:
                try:
                    self._key_file(name, context.url).unlink(missing_ok=True)
                except OSError:
                    return False
                return True
            case KeptIn.KEYRING:
                return self._forget_in_ring(name, context.url)

    def _forget_in_ring(self, name: str, url: str) -> bool:
        ring, user = self._ring(), _username(name, url)
        if ring is None:
            return False
        try:
            if _asked(lambda: ring.get_password(SERVICE, user)) is not None:
                _asked(lambda: ring.delete_password(SERVICE, user))
        except RingError:
            return False
        return True

    def _key_file(self, name: str, url: str) -> Path:
        return self._folder / KEYS / f"{name}-{hashlib.sha256(_same(url).encode()).hexdigest()[:16]}"

    # --- changing ------------------------------------------------------------------------------------------

    def log_in(
        self, name: str, url: str, key: str | None, *, insecure_http: bool = False, in_file: bool = False
    ) -> Context:
        """Remember a server, and its key; whatever stood under this name before is forgotten."""
        with self._changing() as before:
            before.with_entry(name, Context(url, KeptIn.NOWHERE))  # says what is wrong before a key is written
            kept = KeptIn.NOWHERE if key is None else self._kept(name, url, key, in_file=in_file)
            context = Context(url, kept, insecure_http)
            self._write(before.with_entry(name, context))
            old = before.entries.get(name)
            if old is not None and (_same(old.url), old.kept_in) != (_same(url), kept):
                self._forget(name, old)
            return context

    def log_out(self, name: str) -> bool:
        """Forget a server and its key. False: the key could not be removed from where it is."""
        with self._changing() as before:
            context = before.named(name)
            gone = self._forget(name, context)
            self._write(before.without(name))
            return gone

    def use(self, name: str | None) -> None:
        """Make one the current one, or none."""
        with self._changing() as before:
            self._write(before.using(name))

    def _write(self, contexts: Contexts) -> None:
        try:
            write_private(self.path, dump(contexts))
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be written: {error.strerror}") from None

    @contextmanager
    def _changing(self) -> Iterator[Contexts]:
        """What is there now, which nobody else of us changes meanwhile."""
        _make_folder(self._folder)
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(fd, self._folder)
            yield self.read()
        finally:
            os.close(fd)


def desktop_ring() -> Ring | None:
    """The desktop's keyring. None: the package is not installed, or finds none that it would trust with a secret."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return None
    try:
        found = keyring.get_keyring()
    except Exception:  # noqa: BLE001 - backends are others' code, and a file will do
        return None
    usable = not isinstance(found, fail.Keyring | null.Keyring) and found.priority > 0
    return found if usable else None


def _asked(call: Callable[[], T]) -> T:
    """Backends raise whatever their desktop raises, and one that waits for somebody to unlock it may wait for ever:
    after a while its thread is left behind."""
    answers: queue.Queue[T | RingError] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(call())
        except Exception:  # noqa: BLE001 - whatever it is, the keyring gave no answer
            answers.put(RingError())

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=RING_SECONDS)
    except queue.Empty:
        raise RingError from None
    if isinstance(answer, RingError):
        raise answer
    return answer


def _username(name: str, url: str) -> str:
    return f"{name} {_same(url)}"


def _same(url: str) -> str:
    return url.rstrip("/")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}") from None
    if mode & 0o022:
        raise ConfigurationError(
            f"others may write to {folder} (mode {stat.S_IMODE(mode):04o}), and could put theirs there: "
            f"chmod 700 {folder}"
        )


def _lock(fd: int, folder: Path) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise ConfigurationError(f"another fumehood is changing {folder}: try again when it is done") from None
            time.sleep(_LOCK_POLL_SECONDS)
