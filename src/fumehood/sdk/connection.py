"""Which server to speak to, and as whom: one answer for the SDK, the command line and the MCP server.

In falling order: what the caller says; the settings (`FUMEHOOD_URL`, `FUMEHOOD_API_KEY`, `FUMEHOOD_API_KEY_FILE`); the
context that is named or current, made by `fumehood login`; one's own running `fumehood dev`; the usual address on this
machine. The key of a context and the token of `dev` go to where they belong and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fumehood.errors import ConfigurationError
from fumehood.sdk.context_store import ContextStore
from fumehood.sdk.contexts import Context, same_address
from fumehood.sdk.own_dev import OwnDev, own_dev
from fumehood.settings import ClientSettings, is_token
from fumehood.settings.client import is_local
from fumehood.settings.token_file import TokenFile

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `fumehood server` listens unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A server, and the key to show it."""

    url: str
    key: str | None = field(repr=False)
    direct: bool
    """Without the proxies that the environment names: the server is on this machine, and no proxy needs to know."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A context, and what it is called."""

    name: str
    context: Context


def find_connection(
    *,
    url: str | None = None,
    key: str | None = None,
    key_file: Path | None = None,
    context: str | None = None,
    insecure_http: bool | None = None,
) -> Connection:
    """`ConfigurationError` for whatever is wrong with what was said, or would show a key to others."""
    if key is not None and key_file is not None:
        raise ConfigurationError("a key and a key file are both given: give one of them")
    if key is not None and not is_token(key):
        raise ConfigurationError("the key must be visible ASCII characters: look for a blank or a line break in it")
    settings = ClientSettings.load(
        url=url, client_token=key, client_token_file=key_file, insecure_http=insecure_http or None, context=context
    )
    store = ContextStore()
    named = _named(store, context)
    if named is not None:
        return _of_context(store, named, settings, url, given=key is not None or key_file is not None)
    own = own_dev()
    chosen = _chosen(store, settings) if settings.url is None or not _has_key(settings) else None
    if settings.url is not None:
        address = settings.url
    elif chosen is not None:
        address = chosen.context.url
    else:
        address = own.url if own is not None else DEFAULT_URL
    if chosen is not None and not same_address(chosen.context.url, address):
        chosen = None
    if _has_key(settings):
        if chosen is not None and key is None and key_file is None:
            raise ConfigurationError(
                f"a key is set without its address, and the context {chosen.name} is {address}: set FUMEHOOD_URL, too, "
                "or unset FUMEHOOD_API_KEY and FUMEHOOD_API_KEY_FILE"
            )
        return connection_to(address, _key_of(settings), settings.insecure_http)
    insecure = settings.insecure_http or (chosen is not None and chosen.context.insecure_http)
    return connection_to(address, _kept_key(store, chosen, own, address), insecure)


def _named(store: ContextStore, name: str | None) -> _Named | None:
    return None if name is None else _Named(name, store.read().named(name))


def _chosen(store: ContextStore, settings: ClientSettings) -> _Named | None:
    """The context that the settings name, or the current one."""
    contexts = store.read()
    name = settings.context or contexts.current
    return None if name is None else _Named(name, contexts.named(name))


def _of_context(
    store: ContextStore, named: _Named, settings: ClientSettings, url: str | None, *, given: bool
) -> Connection:
    """The context that the caller names stands for the address and the key, whatever the environment says of either:
    only what the caller names beside it counts."""
    context = named.context
    if url is not None and not same_address(url, context.url):
        raise ConfigurationError(
            f"the context {named.name} is {context.url}, and another address is given beside it: give one of them"
        )
    if given:
        return connection_to(context.url, _key_of(settings), settings.insecure_http)
    return connection_to(context.url, store.key(named.name, context), settings.insecure_http or context.insecure_http)


def _has_key(settings: ClientSettings) -> bool:
    return settings.client_token is not None or settings.client_token_file is not None


def _key_of(settings: ClientSettings) -> str | None:
    if settings.client_token_config is not None:  # read anew: others may be able to read that file
        return TokenFile(settings.client_token_config, key="client_token", noun="key").read()[0]
    if settings.client_token is not None:
        return settings.client_token
    file = settings.client_token_file
    return TokenFile(file.expanduser(), noun="key").read()[0] if file is not None else None


def _kept_key(store: ContextStore, chosen: _Named | None, own: OwnDev | None, url: str) -> str | None:
    if chosen is not None:
        return store.key(chosen.name, chosen.context)
    if own is not None and own.token_file is not None and same_address(own.url, url):
        return TokenFile(own.token_file, noun="key").read()[0]
    return None


def connection_to(url: str, key: str | None, insecure_http: bool) -> Connection:
    """`ConfigurationError` where others could read the key on its way."""
    local = is_local(url)
    if key is not None and url.startswith("http:") and not local and not insecure_http:
        raise ConfigurationError(
            f"{url} is on another machine, and over http:// others could read the key: use https:// or a tunnel from "
            "this machine; where the network is safe, say --insecure-http or FUMEHOOD_INSECURE_HTTP=1"
        )
    return Connection(url.rstrip("/"), key, direct=local)
