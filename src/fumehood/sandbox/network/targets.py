"""What a client asks the proxy for: the name and the port in a request's target. Pure, and strict.

Two forms only, as RFC 9112 has them for proxies: `CONNECT name:port`, and `http://name[:port]/path`. Anything else,
and anything that two programs could read differently (user info, white space, another spelling of a port), is
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fumehood.images.egress import plain_name

HTTP_PORT = 80
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_PRINTABLE = re.compile(r"[\x21-\x7e]*")
_SCHEME = "http://"


class BadTargetError(Exception):
    """The target cannot be served; the text is for the client."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a client wants to go."""

    host: str
    """In the spelling that names are compared in."""
    port: int
    path: str = ""
    """For the server; empty with CONNECT."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def connect_target(text: str) -> Target:
    """The target of `CONNECT`."""
    host, port = _authority(text, default=None)
    if port == HTTP_PORT:
        raise BadTargetError("port 80 is not tunnelled to, since it is plain HTTP: ask for http://name/path")
    return Target(host, port)


def absolute_target(text: str) -> Target:
    """The target of any other method."""
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise BadTargetError("this is a proxy: ask for http://name/path, or CONNECT name:443 for https")
    if not _PRINTABLE.fullmatch(text) or "#" in text or "\\" in text:
        raise BadTargetError("the address has characters that an address cannot have")
    rest = text[len(_SCHEME) :]
    cut = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    host, port = _authority(rest[:cut], default=HTTP_PORT)
    path = rest[cut:]
    return Target(host, port, path if path.startswith("/") else f"/{path}")


def shown_target(text: str) -> str:
    """Of a target that was refused: the part that says where to, without anything that may be a secret."""
    place = text.rpartition("://")[2]
    return re.split(r"[/?#\\]", place, maxsplit=1)[0].rpartition("@")[2][:100]


def _authority(text: str, *, default: int | None) -> tuple[str, int]:
    if "@" in text:
        raise BadTargetError("user names and passwords in an address are not passed on: send them as a header")
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, port = text, ""
    if colon and not text.endswith("]") and not _PORT.fullmatch(port):
        raise BadTargetError("the port is not a number from 1 to 65535")
    if not port and default is None:
        raise BadTargetError("a port is missing: CONNECT name:443")
    number = int(port) if port else int(default or 0)
    if number > 65_535:
        raise BadTargetError("the port is not a number from 1 to 65535")
    host = plain_name(name)
    if host is None:
        raise BadTargetError("only names can be asked for, with a dot in them and in ASCII; addresses are refused")
    return host, number
