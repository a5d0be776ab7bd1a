"""Is an address this machine's own? The kernel says it, for the table that it would send by: at this very moment, for
IPv4 and IPv6, and for whole ranges that were given to the machine without being on any interface.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address
from typing import Final

from fumehood.sandbox.network.addresses import Address

_ASK_ROUTE: Final = 26
_ERROR: Final = 2
_REQUEST: Final = 1
_DESTINATION: Final = 1
_ELSEWHERE: Final = 1
"""The one kind of route that leads to another machine (unicast)."""

_HEADER: Final = struct.Struct("=IHHII")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NO_WAY: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH})
SECONDS: Final = 2.0


def is_own(address: Address) -> bool:
    """Would the kernel keep what is sent there? `OSError` when it does not tell."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    kind, body = _ask(_question(family, address.packed))
    if kind != _ERROR:
        return int(_ROUTE.unpack_from(body)[7]) != _ELSEWHERE
    (number,) = struct.unpack_from("=i", body)
    if -number in _NO_WAY:
        return False  # nor can anybody be reached there
    raise OSError(-number, os.strerror(-number))


def _question(family: int, packed: bytes) -> bytes:
    route = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    body = route + _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _DESTINATION) + packed
    return _HEADER.pack(_HEADER.size + len(body), _ASK_ROUTE, _REQUEST, 1, 0) + body


def _ask(question: bytes) -> tuple[int, bytes]:
    """The kind of the answer, and what is in it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(SECONDS)
        kernel.bind((0, 0))
        kernel.sendto(question, (0, 0))
        answer, (sender, _) = kernel.recvfrom(4096)
    if sender != 0 or len(answer) < _HEADER.size + _ROUTE.size:
        raise OSError(errno.EBADMSG, "an answer about routes that is none")
    return int(_HEADER.unpack_from(answer)[1]), answer[_HEADER.size :]
