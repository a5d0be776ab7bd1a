"""`fumehood login` and `fumehood logout`: a server and its key, kept so that no command needs to be told.

A key is never an argument, since other users of a machine see those: it is asked for on the terminal without echo, or
comes from a file or stdin. It is tried before it is kept.
"""

from __future__ import annotations

import getpass
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from fumehood.cli import show
from fumehood.cli.client import Api, ApiError, InsecureHttp
from fumehood.cli.completing import contexts as context_names
from fumehood.cli.exits import CommandError, UsageError
from fumehood.cli.show import Json
from fumehood.sdk.connection import DEFAULT_URL, connection_to
from fumehood.sdk.context_store import ContextStore
from fumehood.sdk.contexts import Contexts, KeptIn, check_name, same_address
from fumehood.sdk.own_dev import own_dev
from fumehood.settings import ClientSettings, is_token
from fumehood.settings.base import is_loopback
from fumehood.settings.client import is_address
from fumehood.settings.token_file import TokenFile

STDIN = "-"
LONGEST_KEY = 4096
CALLER_PATH = "/v1/caller"

Server = Annotated[
    str | None,
    typer.Argument(
        metavar="URL", help="The server; else that of the context, FUMEHOOD_URL, this machine's.", show_default=False
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=context_names,
        help="What to call it; else as the server is called that it leads to.",
    ),
]
KeyFrom = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help="A file (mode 0600) with the key, or - for stdin; else it asks."),
]


def login(
    url: Server = None,
    name: Name = None,
    key_file: KeyFrom = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="For a server that asks for none.")] = False,
    no_keyring: Annotated[
        bool, typer.Option("--no-keyring", help="Keep the key in a file (mode 0600), though there is a keyring.")
    ] = False,
    insecure_http: InsecureHttp = False,
    as_json: Json = False,
) -> None:
    """Keep a server and its key as a context, and make it the current one. The key is asked for, tried, and kept in
    the keyring (with the extra `keyring`), or else in a file that only you can read."""
    if no_key and key_file is not None:
        raise UsageError("--no-key and --key-file: give one of them")
    store = ContextStore()
    known, settings = store.read(), ClientSettings.load()
    address = _address(url, name, known, settings)
    called = name or _called(address, known)
    check_name(called)  # before somebody types a key in vain
    key = None if no_key else _key(key_file, address)
    who = _tried(address, key, insecure_http or settings.insecure_http)
    kept = store.log_in(called, address, key, insecure_http=insecure_http, in_file=no_keyring)
    facts = {"context": called, "url": address, "key": kept.kept_in.value, "caller": who}
    if as_json:
        show.document(facts)
    else:
        show.console().print(f"logged in to {address} {_whom(who)}", soft_wrap=True)
        show.console().print(f"context {called}, {_where(kept.kept_in)}", soft_wrap=True)
    _warn_of(settings)


def logout(
    name: Annotated[
        str | None,
        typer.Argument(metavar="CONTEXT", help="Else the current one.", autocompletion=context_names),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forget a server and its key. The key itself still opens the server: `fumehood key revoke` ends that."""
    store = ContextStore()
    forgotten = name or store.read().current
    if forgotten is None:
        raise UsageError("no context is the current one: name one; `fumehood context ls` lists them")
    forget(store, [forgotten], as_json=as_json)


def forget(store: ContextStore, names: list[str], *, as_json: bool) -> None:
    """Each with its key. A key that could not be removed is an error: somebody relies on its being gone."""
    known = store.read()
    for name in names:
        known.named(name)  # all of them, before the first is gone
    left = [name for name in names if not store.log_out(name)]
    if as_json:
        show.document({"forgotten": names, "keys_left_in_keyring": left})
    else:
        for name in names:
            show.console().print(f"{name} is forgotten")
    if left:
        raise CommandError(
            f"the key of {', '.join(left)} could not be removed from the keyring: remove it there, under `fumehood`"
        )


# --- which server ------------------------------------------------------------------------------------------


def _address(url: str | None, name: str | None, known: Contexts, settings: ClientSettings) -> str:
    if url is not None:
        if not is_address(url):
            bare = "://" not in url and is_address(f"https://{url}")
            scheme = "http" if is_loopback(url.rpartition(":")[0] or url) else "https"
            hint = f"did you mean {scheme}://{url}?" if bare else "write it like https://HOST:PORT"
            raise UsageError(f"URL is no address of a server: {hint}")
        return url.rstrip("/")
    if name is not None and name in known.entries:
        return known.entries[name].url
    if settings.url is not None:
        return settings.url.rstrip("/")
    again = settings.context or known.current
    if name is None and again is not None and again in known.entries:
        return known.entries[again].url
    own = own_dev()
    return own.url if own is not None else DEFAULT_URL


def _called(address: str, known: Contexts) -> str:
    """As before, or as its host is called."""
    for name, context in known.entries.items():
        if same_address(context.url, address):
            return name
    parts = urlsplit(address)
    text = f"{parts.hostname}-{parts.port}" if parts.port is not None else str(parts.hostname)
    made = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:64] or "server"
    return _free(made, known)


def _free(name: str, known: Contexts) -> str:
    """http and https, or two paths, of one host are two servers."""
    number, made = 2, name
    while made in known.entries:
        made, number = f"{name[:60]}-{number}", number + 1
    return made


# --- which key ---------------------------------------------------------------------------------------------


def _key(source: str | None, address: str) -> str:
    if source == STDIN:
        return _held_to_form(sys.stdin.readline(LONGEST_KEY + 2).strip(), "stdin")
    if source is not None:
        return TokenFile(Path(source).expanduser(), noun="key").read()[0]
    own = own_dev()
    if own is not None and own.token_file is not None and same_address(own.url, address):
        return TokenFile(own.token_file, noun="key").read()[0]
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask for the key: give --key-file FILE, --key-file - or --no-key")
    return _held_to_form(_typed(address), "what was typed")


def _typed(address: str) -> str:
    """Without echo, or not at all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(f"Key for {address}: ").strip()
    except (getpass.GetPassWarning, EOFError):
        raise UsageError("the key cannot be asked for without showing it here: give --key-file FILE") from None


def _held_to_form(key: str, where: str) -> str:
    if not is_token(key):
        raise UsageError(f"{where} is no key: visible ASCII characters without a blank, at most {LONGEST_KEY}")
    return key


# --- trying it ---------------------------------------------------------------------------------------------


def _tried(address: str, key: str | None, insecure_http: bool) -> dict[str, Any] | None:
    """Who the server takes us for; None: it knows the key, and is too old to tell whose it is."""
    found = connection_to(address, key, insecure_http)
    api = Api(found.url, found.key, direct=found.direct)
    try:
        who: dict[str, Any] = api.get(CALLER_PATH)
    except ApiError as error:
        if error.status == 404:  # a stranger would have been told 401
            return None
        if error.status == 401:
            raise _not_taken(address, key) from None
        raise
    finally:
        api.close()
    return who


def _not_taken(address: str, key: str | None) -> CommandError:
    if key is None:
        return CommandError(f"{address} asks for a key: leave --no-key out")
    return CommandError(
        f"{address} rejected this key, and nothing was kept: it is misspelt, revoked, or another server's; "
        "whoever runs the server makes one with `fumehood key create`"
    )


# --- telling it --------------------------------------------------------------------------------------------


def _whom(who: dict[str, Any] | None) -> str:
    if who is None:
        return "(it does not tell as whom)"
    scopes = " ".join(map(str, who.get("scopes", ())))
    until = show.local(who.get("expires_at"))
    may = "may do everything" if scopes == "*" else f"may {scopes}"
    told = f"as {who.get('name')} of {who.get('tenant')}, which {may}"
    return show.plain(told + (f", until {until}" if until else ""))


def _where(kept: KeptIn) -> str:
    return {
        KeptIn.KEYRING: "key in the keyring",
        KeptIn.FILE: "key in a file that only you can read",
        KeptIn.NOWHERE: "without a key",
    }[kept]


def _warn_of(settings: ClientSettings) -> None:
    """What will count more than the context from now on."""
    given: dict[str, object] = {"FUMEHOOD_URL": settings.url, "FUMEHOOD_API_KEY": settings.client_token}
    given |= {"FUMEHOOD_API_KEY_FILE": settings.client_token_file, "FUMEHOOD_CONTEXT": settings.context}
    stronger = [name for name, value in given.items() if value is not None]
    if stronger:
        verb = "is" if len(stronger) == 1 else "are"
        show.console(stderr=True).print(
            f"fumehood: {', '.join(stronger)} {verb} set, and counts more than the current context", soft_wrap=True
        )
