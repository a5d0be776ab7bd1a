"""Closing the connection below a stream, where gRPC has no way to do so.

A server ends a stream with a status, which queues up behind what the client has not read: a client that reads nothing
keeps its stream, and a frame in our memory, for as long as it likes. Its connection answers all the while.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_PEER = re.compile(r"ipv[46]:(?P<host>[^ ]+):(?P<port>[0-9]{1,5})")


def hang_up(peer: str, port: int) -> bool:
    """Close the connection of a peer, as gRPC names it, with a port of ours. False: there is none (any more).

    A descriptor is looked at through a copy of it, so that one that gRPC closes meanwhile is never mistaken.
    """
    wanted = _parsed(peer)
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()] if wanted is not None else []
    for number in descriptors:
        with contextlib.suppress(OSError), _copied(number) as candidate:
            if _ends(candidate) == (wanted, port):
                candidate.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _parsed(peer: str) -> tuple[str, int] | None:
    """`ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    match = _PEER.fullmatch(unquote(peer))
    return (match["host"].strip("[]"), int(match["port"])) if match is not None else None


@contextlib.contextmanager
def _copied(number: int) -> Iterator[socket.socket]:
    copy = os.dup(number)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with found:
        yield found


def _ends(one: socket.socket) -> tuple[tuple[str, int], int] | None:
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        return None
    there, here = one.getpeername(), one.getsockname()
    return (there[0].removeprefix("::ffff:"), there[1]), here[1]
