"""To which names a sandbox with the profile `restricted` may connect: the operator's list, as a value. Pure.

A rule is a name and a port (`pypi.org:443`), or everything beneath a name (`*.example.com:443`, which is not
`example.com` itself). Names are compared in lower case, without a dot at the end, in their ASCII form (`xn--…`): any
other form is not guessed at. Addresses never match, however they are spelled. Whoever connects must still look at the
address that a name leads to: a name says nothing about that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, final

MAX_NAME: Final = 253
MAX_RULES: Final = 1024

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_BENEATH = "*."


@final
@dataclass(frozen=True, slots=True)
class EgressRule:
    """One name, or everything beneath it, at one port. Every value is valid; a `ValueError` says why not."""

    name: str
    port: int
    beneath: bool = False
    """Subdomains of any depth, and not the name itself."""

    def __post_init__(self) -> None:
        if plain_name(self.name) != self.name:
            raise ValueError(
                "the name is no host name with a dot in it, in ASCII (`xn--…`) and lower case; addresses are not names"
            )
        if not 1 <= self.port <= 65_535:
            raise ValueError("the port is not a number from 1 to 65535")

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME:PORT` or `*.NAME:PORT`."""
        name, colon, port = text.rpartition(":")
        if not colon or not _PORT.fullmatch(port):
            raise ValueError("it is not NAME:PORT, such as pypi.org:443 or *.example.com:443")
        beneath = name.startswith(_BENEATH)
        found = plain_name(name.removeprefix(_BENEATH))
        return cls(found if found is not None else name, int(port), beneath)

    def matches(self, name: str, port: int) -> bool:
        """For a name that went through `plain_name`."""
        return port == self.port and (name.endswith(f".{self.name}") if self.beneath else name == self.name)

    def __str__(self) -> str:
        return f"{_BENEATH if self.beneath else ''}{self.name}:{self.port}"


@final
@dataclass(frozen=True, slots=True)
class EgressRules:
    """All rules together. Without any, nothing is allowed."""

    allow: tuple[EgressRule, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        return cls(tuple(EgressRule.parse(text) for text in texts))

    def allows(self, host: str, port: int) -> str | None:
        """The first rule that matches, for the evidence; `None`: it is not allowed."""
        name = plain_name(host)
        if name is None:
            return None
        return next((str(rule) for rule in self.allow if rule.matches(name, port)), None)

    def __bool__(self) -> bool:
        return bool(self.allow)


def plain_name(host: str) -> str | None:
    """The one spelling in which names are compared; `None` for an address, and for what is no public host name."""
    if len(host) > MAX_NAME + 1 or not host.isascii():
        return None
    labels = host.lower().removesuffix(".").split(".")
    if len(labels) < 2 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    name = ".".join(labels)
    # a last label that is a number makes resolvers read the whole as an IPv4 address: 10.1, 0x7f.1, 127.0.0.1
    return None if _NUMERIC_LABEL.fullmatch(labels[-1]) or len(name) > MAX_NAME else name
