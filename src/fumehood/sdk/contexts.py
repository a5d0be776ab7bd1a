"""The servers that a person works with, by names of their own: what `fumehood login` writes and every command reads.

A context says where a server is and where its key is kept, never the key itself. This is the model alone; what touches
files and the keyring is in `context_store.py`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fumehood.errors import ConfigurationError
from fumehood.settings.base import NAME_RULE, is_name
from fumehood.settings.client import is_address

VERSION = 1
MOST_CONTEXTS = 1000
"""More than anybody has; a file with more was not written by us."""


class KeptIn(StrEnum):
    """Where the key of a context is."""

    KEYRING = "keyring"
    FILE = "file"
    NOWHERE = "nowhere"
    """It has none: the server asks for no key, or the key is given with each command."""


@dataclass(frozen=True, slots=True)
class Context:
    """One server. Its key goes to this address and to no other."""

    url: str
    kept_in: KeptIn
    insecure_http: bool = False
    """Whether the key may go over http:// to another machine, as whoever logged in has said."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them, and which one counts where nothing is said."""

    current: str | None = None
    entries: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """`ConfigurationError` where there is none, with the nearest that there is."""
        try:
            return self.entries[name]
        except KeyError:
            raise ConfigurationError(_unknown(name, list(self.entries))) from None

    def with_entry(self, name: str, context: Context) -> Contexts:
        """With one more, or another one under its name; it is the current one from now on."""
        check_name(name)
        entries = {**self.entries, name: context}
        if len(entries) > MOST_CONTEXTS:
            raise ConfigurationError(f"there are {MOST_CONTEXTS} contexts already: `fumehood context rm` removes one")
        return Contexts(name, entries)

    def without(self, name: str) -> Contexts:
        """Where it was the current one, none is."""
        self.named(name)
        entries = {other: context for other, context in self.entries.items() if other != name}
        return Contexts(None if self.current == name else self.current, entries)

    def using(self, name: str | None) -> Contexts:
        """With another current one, or none."""
        if name is not None:
            self.named(name)
        return replace(self, current=name)


def same_address(one: str, other: str) -> bool:
    """Whether two texts name the same server: a slash at the end makes no difference, and everything else does."""
    return one.rstrip("/") == other.rstrip("/")


def dump(contexts: Contexts) -> str:
    """As the file has it."""
    entries = {
        name: {"url": one.url, "key": one.kept_in.value, "insecure_http": one.insecure_http}
        for name, one in sorted(contexts.entries.items())
    }
    return json.dumps({"version": VERSION, "current": contexts.current, "contexts": entries}, indent=2)


def parse(text: str) -> Contexts:
    """`ConfigurationError` for whatever `dump` has not written: half an understanding could send a key elsewhere."""
    try:
        told = json.loads(text)
        if not isinstance(told, dict):
            raise ValueError
        if told["version"] != VERSION:
            raise ConfigurationError("it is written by another version of fumehood")
        entries = {_checked(name): _context(entry) for name, entry in told["contexts"].items()}
        current = told["current"]
        if len(entries) > MOST_CONTEXTS or not (current is None or current in entries):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError("it is not as `fumehood login` writes it") from None
    return Contexts(current, entries)


def _context(entry: Any) -> Context:
    url, insecure = entry["url"], entry["insecure_http"]
    if entry.keys() != {"url", "key", "insecure_http"} or type(insecure) is not bool:
        raise ValueError
    if not isinstance(url, str) or not is_address(url):
        raise ValueError
    return Context(url, KeptIn(entry["key"]), insecure)


def _checked(name: str) -> str:
    if not is_name(name):
        raise ValueError
    return name


def check_name(name: str) -> None:
    """`ConfigurationError` for what cannot be one."""
    if not is_name(name):
        raise ConfigurationError(f"a context's name {NAME_RULE}")


def _unknown(name: str, known: list[str]) -> str:
    if not known:
        return f"there is no context {name!r}: `fumehood login URL --context {name!r}` makes one"
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "`fumehood context ls` lists those that there are"
    return f"there is no context {name!r}: {hint}"
