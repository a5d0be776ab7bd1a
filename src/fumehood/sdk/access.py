"""From an address and the names of files to a connection. No secret is kept where it could be printed.

A worker's user name also decides where answers come in: the generated configuration of the broker lets `NAME` listen
to `_INBOX_NAME` and to nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict
from urllib.parse import SplitResult, unquote, urlsplit

from fumehood.broker import names
from fumehood.broker.connection import ConnectionOptions
from fumehood.errors import ConfigurationError

SCHEMES = ("nats", "tls")
DEFAULT_PORT = 4222


class Access(TypedDict, total=False):
    """How a worker proves who it is. User and password may also stand in the address."""

    user: str
    password_file: str | Path
    nkey_seed_file: str | Path
    credentials_file: str | Path
    tls_ca_file: str | Path
    tls_cert_file: str | Path
    tls_key_file: str | Path
    inbox_prefix: str


def connection_options(url: str, name: str | None, access: Access) -> ConnectionOptions:
    """`url` is one address or several with commas between. `name`: the worker's, where one was given."""
    unknown = access.keys() - Access.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    parts = [_split(one.strip()) for one in url.split(",")]
    user = access.get("user") or next((unquote(part.username) for part in parts if part.username), None)
    who = user or name
    return ConnectionOptions(
        tuple(f"{part.scheme}://{_host(part)}:{part.port or DEFAULT_PORT}" for part in parts),
        name=who or "fumehood-worker",
        user=user,
        password=_password(parts, access),
        nkey_seed_file=_path(access.get("nkey_seed_file")),
        credentials_file=_path(access.get("credentials_file")),
        tls_ca_file=_path(access.get("tls_ca_file")),
        tls_cert_file=_path(access.get("tls_cert_file")),
        tls_key_file=_path(access.get("tls_key_file")),
        inbox_prefix=access.get("inbox_prefix") or (f"_INBOX_{_token(who)}" if who is not None else "_INBOX"),
    )


def _split(url: str) -> SplitResult:
    """The address is never repeated in an error: it may hold a password."""
    try:
        part = urlsplit(url if "://" in url else f"nats://{url}")
        usable = part.scheme in SCHEMES and bool(part.hostname) and (part.port or DEFAULT_PORT) > 0
    except ValueError:
        usable = False
    else:
        if usable:
            return part
    raise ConfigurationError("the broker's address is not nats://HOST:PORT or tls://HOST:PORT")


def _host(part: SplitResult) -> str:
    host = part.hostname or ""
    return f"[{host}]" if ":" in host else host


def _token(who: str) -> str:
    if not names.is_token(who):
        raise ConfigurationError("a user's or worker's name has 1 to 128 letters, digits, `-` and `_`")
    return who


def _password(parts: list[SplitResult], access: Access) -> str | None:
    file = access.get("password_file")
    if file is None:
        return next((unquote(part.password) for part in parts if part.password), None)
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the password file {file} cannot be read") from error


def _path(file: str | Path | None) -> Path | None:
    if file is None:
        return None
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    return path
