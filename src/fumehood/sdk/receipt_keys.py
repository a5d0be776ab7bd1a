"""Whose receipts count, for whoever checks them offline: which root is relied on, and the last list that it signed.

One answer for the SDK and for `fumehood verify`. The root is what was given, what the settings have, what was pinned,
or that of one's own `fumehood dev`; never what a server says of itself. Without one nothing is checked, and that is an
error: a list of keys cannot vouch for itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fumehood.errors import CannotVerifyError, ConfigurationError, UnverifiedError
from fumehood.sdk.own_dev import own_receipts
from fumehood.settings import ClientSettings
from fumehood.settings.token_file import write_private
from fumehood.verify.dsse import LARGEST_FILE, from_file, to_file
from fumehood.verify.keylist import KeyList, read_published, root_key

FOLDER = Path("~/.config/fumehood")
PIN = FOLDER / "receipt-root"
KEYS = FOLDER / "receipt-keys.json"
NO_ROOT = "no root is pinned, and a list of keys cannot vouch for itself"


# --- the root ----------------------------------------------------------------------------------------------


def pinned(given: str | None = None, where: str = "root") -> bytes | None:
    """The root that is relied on: as it was given, as the settings have it, or as it was pinned before; else that of
    one's own `dev`. `where` names what was given in errors."""
    if given is not None:
        return _root(given, where)
    setting = ClientSettings.load().receipt_root
    if setting is not None:
        return _root(setting, "FUMEHOOD_RECEIPT_ROOT")
    path, own = PIN.expanduser(), own_receipts()
    if path.exists():
        return pinned_in(path)
    return None if own is None else pinned_in(own[0])


def relied_on(given: str | None = None, where: str = "root") -> bytes:
    """The same where nothing goes without one."""
    root = pinned(given, where)
    if root is None:
        raise CannotVerifyError(NO_ROOT).advise()
    return root


def pin(root: bytes) -> Path:
    """For good. Another one that is pinned already is not replaced: that is for people to do, who know why."""
    path = PIN.expanduser()
    if path.exists() and pinned_in(path) != root:
        raise ConfigurationError(
            f"another root is pinned in {path}: remove that file if the root really is another one now"
        )
    make_folder(path)
    write_private(path, root.hex())
    return path


def pinned_in(path: Path) -> bytes:
    try:
        return _root(path.read_text(encoding="utf-8").removesuffix("\n"), str(path))
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(f"{path} cannot be read") from None


def _root(text: str, where: str) -> bytes:
    try:
        return root_key(text)
    except UnverifiedError:
        raise ConfigurationError(
            f"{where}: a root is a public key of 64 digits of 0-9 and a-f, not {len(text)} others"
        ) from None


# --- the list ----------------------------------------------------------------------------------------------


def keys_of(given: Path | None, root: bytes) -> tuple[KeyList, Path]:
    """The list for checking offline, and where it was found. `UnverifiedError` where it is not by this root."""
    path = given or ClientSettings.load().receipt_keys_file or _usual_keys(root)
    if not path.exists():
        raise CannotVerifyError(f"there is no list of keys at {path}").advise("`fumehood receipts fetch` writes it")
    try:
        return read_published(document_in(path), root), path
    except UnverifiedError as error:
        raise UnverifiedError(error.reason, f"{path}: {error.detail}") from None


def _usual_keys(root: bytes) -> Path:
    """What was fetched last; or that of one's own `dev`, where its root is the one that is relied on, and nothing newer
    was fetched."""
    kept, own = KEYS.expanduser(), own_receipts()
    if own is None or pinned_in(own[0]) != root or _version_in(kept, root) > _version_in(own[1], root):
        return kept
    return own[1]


def _version_in(path: Path, root: bytes) -> int:
    """0: there is no list of this root."""
    try:
        return read_published(document_in(path), root).version if path.exists() else 0
    except UnverifiedError:
        return 0


def keep_keys(document: Any, out: Path | None, root: bytes) -> Path:
    """An older list than the one that is there would make keys good again that were revoked since."""
    path = out or ClientSettings.load().receipt_keys_file or KEYS.expanduser()
    before, now = _version_in(path, root), read_published(document, root).version
    if before > now:
        raise UnverifiedError("older_list", f"the server's list has version {now}, and the one in {path} {before}")
    if out is None:
        make_folder(path)
    try:
        write_private(path, to_file(document).decode().removesuffix("\n"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return path


def document_in(path: Path) -> Any:
    """One JSON document of a file. `UnverifiedError` where it is none."""
    try:
        with path.open("rb") as file:
            return from_file(file.read(LARGEST_FILE + 1))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def make_folder(path: Path) -> None:
    """The one that a file is about to be written to."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path.parent} cannot be made: {error.strerror}") from None
