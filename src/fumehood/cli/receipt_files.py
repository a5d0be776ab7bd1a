"""What the command line keeps for receipts: the root's private key with whoever runs the servers, and with everybody
else which root is relied on, and the last list of keys that was fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli.exits import CommandError, UsageError
from fumehood.errors import CannotVerifyError, ConfigurationError, UnverifiedError
from fumehood.sdk import receipt_keys
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, root_key

ROOT_KEY = receipt_keys.FOLDER / "root.key"

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
    """The root that is relied on, wherever it was found: see `sdk/receipt_keys.py`."""
    with _told():
        return receipt_keys.pinned(given, "--root")


def relied_on(given: str | None) -> bytes:
    """The same where nothing goes without one."""
    root = pinned(given)
    if root is None:
        raise UsageError(f"{receipt_keys.NO_ROOT}: {HOW_TO_PIN}")
    return root


def pin(root: bytes) -> Path:
    """For good."""
    with _told():
        return receipt_keys.pin(root)


# --- the list ----------------------------------------------------------------------------------------------


def keys_of(given: Path | None, root: bytes) -> tuple[KeyList, Path]:
    """The list for checking offline, and where it was found."""
    with _told():
        try:
            return receipt_keys.keys_of(given, root)
        except CannotVerifyError as error:
            raise UsageError(f"{error.detail}: {error.remedy}, and --keys FILE names another") from None


def keep_keys(document: Any, out: Path | None, root: bytes) -> Path:
    """For good, unless a newer one is there."""
    with _told():
        return receipt_keys.keep_keys(document, out, root)


def document_in(path: Path) -> Any:
    """One JSON document of a file. `UnverifiedError` where it is none."""
    try:
        return receipt_keys.document_in(path)
    except ConfigurationError as error:
        raise UsageError(error.detail) from None


@contextmanager
def _told() -> Iterator[None]:
    """In the words of commands."""
    try:
        yield
    except ConfigurationError as error:
        raise UsageError(error.detail) from None
    except UnverifiedError as error:
        raise RefusedError(error.reason, error.detail) from None


# --- the root, from inside ---------------------------------------------------------------------------------


def new_root(path: Path) -> SigningKey:
    """`UsageError` where one is there: whoever has signed with it would be locked out."""
    from fumehood.cli.once import new_file

    path = path.expanduser()
    with _told():
        receipt_keys.make_folder(path)
    root = SigningKey.generate()
    with new_file(path) as file:
        file.write(root.seed.hex() + "\n")
    return root


def root_in(path: Path) -> SigningKey:
    from fumehood.settings.token_file import TokenFile

    path = path.expanduser()
    if not path.exists():
        raise UsageError(f"there is no root key at {path}: name it with --root-key FILE; `receipts init` makes one")
    text = TokenFile(path, noun="root key").read()[0]
    try:
        return SigningKey.from_seed(root_key(text))
    except UnverifiedError:
        raise ConfigurationError(f"the root key file {path} is not one that `fumehood receipts init` wrote") from None
