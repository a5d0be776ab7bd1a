"""What the command line keeps for receipts: the root's private key with whoever runs the servers, and with everybody
else which root is relied on, and the last list of keys that was fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli.dev_key import own_receipts
from fumehood.cli.exits import CommandError, UsageError
from fumehood.cli.serving import write_private
from fumehood.errors import ConfigurationError, UnverifiedError
from fumehood.settings import ClientSettings
from fumehood.verify.dsse import LARGEST_FILE, SigningKey, from_file, to_file
from fumehood.verify.keylist import KeyList, read_published, root_key

FOLDER = Path("~/.config/fumehood")
ROOT_KEY = FOLDER / "root.key"
PIN = FOLDER / "receipt-root"
KEYS = FOLDER / "receipt-keys.json"

Root = Annotated[
    str | None,
    typer.Option("--root", metavar="HEX", help="The root's public key, that you rely on; else FUMEHOOD_RECEIPT_ROOT."),
]
RootKeyFile = Annotated[
    Path, typer.Option("--root-key", metavar="FILE", help="The file (mode 0600) that `receipts init` wrote.")
]

HOW_TO_PIN = (
    "give --root HEX, set FUMEHOOD_RECEIPT_ROOT, or pin it for good with `fumehood receipts fetch --root HEX`; HEX is "
    "what `fumehood receipts init` told whoever runs the servers"
)


class RefusedError(CommandError):
    """Something is not what it says it is."""

    code = "unverified"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"refused: {detail} ({reason})")
        self.reason = reason


# --- the root, from outside --------------------------------------------------------------------------------


def pinned(given: str | None) -> bytes | None:
    """The root that is relied on: as it was typed, as the settings have it, or as it was pinned before; else that of
    one's own `dev`."""
    if given is not None:
        return _root(given, "--root")
    setting = ClientSettings.load().receipt_root
    if setting is not None:
        return _root(setting, "FUMEHOOD_RECEIPT_ROOT")
    path, own = PIN.expanduser(), own_receipts()
    if path.exists():
        return pinned_in(path)
    return None if own is None else pinned_in(own[0])


def relied_on(given: str | None) -> bytes:
    """The same where nothing goes without one."""
    root = pinned(given)
    if root is None:
        raise UsageError(f"no root is pinned, and a list of keys cannot vouch for itself: {HOW_TO_PIN}")
    return root


def pin(root: bytes) -> Path:
    """For good. Another one that is pinned already is not replaced: that is for people to do, who know why."""
    path = PIN.expanduser()
    if path.exists() and pinned_in(path) != root:
        raise UsageError(f"another root is pinned in {path}: remove that file if the root really is another one now")
    _folder(path)
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
        raise UsageError(
            f"{where}: a root is a public key of 64 digits of 0-9 and a-f, not {len(text)} others"
        ) from None


# --- the list ----------------------------------------------------------------------------------------------


def keys_of(given: Path | None, root: bytes) -> tuple[KeyList, Path]:
    """The list for checking offline, and where it was found."""
    path = given or ClientSettings.load().receipt_keys_file or _usual_keys(root)
    if not path.exists():
        raise UsageError(
            f"there is no list of keys at {path}: `fumehood receipts fetch` writes it, and --keys FILE names another"
        )
    try:
        return read_published(document_in(path), root), path
    except UnverifiedError as error:
        raise RefusedError(error.reason, f"{path}: {error.detail}") from None


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
        raise RefusedError("older_list", f"the server's list has version {now}, and the one in {path} {before}")
    if out is None:
        _folder(path)
    try:
        write_private(path, to_file(document).decode().removesuffix("\n"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return path


def document_in(path: Path) -> Any:
    """One JSON document of a file. `UnverifiedError` where it is none."""
    try:
        with path.open("rb") as file:
            return from_file(file.read(LARGEST_FILE + 1))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


# --- the root, from inside ---------------------------------------------------------------------------------


def new_root(path: Path) -> SigningKey:
    """`UsageError` where one is there: whoever has signed with it would be locked out."""
    from fumehood.cli.once import new_file

    path = path.expanduser()
    _folder(path)
    root = SigningKey.generate()
    with new_file(path) as file:
        file.write(root.seed.hex() + "\n")
    return root


def root_in(path: Path) -> SigningKey:
    from fumehood.door.tokens import TokenFile

    path = path.expanduser()
    if not path.exists():
        raise UsageError(f"there is no root key at {path}: name it with --root-key FILE; `receipts init` makes one")
    text = TokenFile(path, noun="root key").read()[0]
    try:
        return SigningKey.from_seed(root_key(text))
    except UnverifiedError:
        raise ConfigurationError(f"the root key file {path} is not one that `fumehood receipts init` wrote") from None


def _folder(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be made: {error.strerror}") from None
