"""A person's own `fumehood dev`, so that the first hour needs neither an address nor a key.

`dev` leaves word of where its server listens, and as which process. Both the word and the token outlive a `dev` that is
killed: they count only while that very process listens there, and nobody else does. Whoever takes the port meanwhile,
be it another user or a tunnel of one's own, is not handed the token.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

STATE = Path("~/.local/state/fumehood")
"""Where `dev` keeps everything unless told otherwise."""
WORD = "dev.json"
"""In that folder: the server's `url` and `pid`."""
RECEIPT_ROOT, RECEIPT_KEYS = "receipt-root.pub", "receipt-keys.json"
"""In that folder: the public key that signs the list of receipt keys, and that list."""
HOST = "127.0.0.1"
PROCESSES = Path("/proc")
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class OwnDev:
    """A `dev` that runs."""

    url: str
    token_file: Path | None
    """None: it was configured with another token than its own."""


def own_dev(*, state: Path = STATE, processes: Path = PROCESSES) -> OwnDev | None:
    """The one whose state is where it is by default, if it is ours, and so is who listens there."""
    folder = state.expanduser()
    try:
        told = json.loads((folder / WORD).read_text(encoding="utf-8")) if _is_ours(folder / WORD) else {}
        url, pid = str(told["url"]), int(told["pid"])
        parts = urlsplit(url)
        there = _listening(processes, parts.port or 80)
        if parts.scheme != "http" or parts.hostname != HOST or not there or not there <= _sockets(processes, pid):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    file = folder / "api.token"
    return OwnDev(url, file if _is_ours(file) else None)


def own_receipts(*, state: Path = STATE) -> tuple[Path, Path] | None:
    """The root and the list of keys of one's own `dev`, whether it runs or not: they were written by nobody else."""
    files = (state.expanduser() / RECEIPT_ROOT, state.expanduser() / RECEIPT_KEYS)
    return files if all(map(_is_ours, files)) else None


def _is_ours(file: Path) -> bool:
    try:
        return file.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _listening(processes: Path, port: int) -> set[str]:
    """The sockets that take connections at this port of the loopback address, as the kernel knows them."""
    native = int.from_bytes(IPv4Address(HOST).packed, sys.byteorder)
    places = {f"{native:08X}:{port:04X}", f"00000000:{port:04X}"}
    fields = (line.split() for line in (processes / "net/tcp").read_text(encoding="ascii").splitlines())
    return {f"socket:[{field[9]}]" for field in fields if field[1] in places and field[3] == _LISTENS}


def _sockets(processes: Path, pid: int) -> set[str]:
    """What a process has open, as the kernel names it. One of another user does not let us look."""
    found = set()
    for file in (processes / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(file.readlink()))
    return found
