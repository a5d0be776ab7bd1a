"""A person's own `fumehood dev`, so that the first hour needs neither an address nor a key.

`dev` leaves word of where its server listens, and as which process. Both the word and the token outlive a `dev` that is
killed: they count only while that very process listens there, and nobody else does. Whoever takes the port meanwhile,
be it another user or a tunnel of one's own, is not handed the token.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

STATE = Path("~/.local/state/fumehood")
"""Where `dev` keeps everything unless told otherwise."""
WORD = "dev.json"
"""In that folder: the server's `url` and `pid`, and the broker's `nats_url` and `nats_pid`."""
WORKER = "worker"
"""Whom `dev` lets take tasks at its broker."""
WORKER_PASSWORD = f"nats/{WORKER}.password"
"""In that folder: that user's password."""
RECEIPT_ROOT, RECEIPT_KEYS = "receipt-root.pub", "receipt-keys.json"
"""In that folder: the public key that signs the list of receipt keys, and that list."""
HOST = "127.0.0.1"
PROCESSES = Path("/proc")
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """Its broker, and who may take tasks there."""

    url: str
    user: str
    password_file: Path


@dataclass(frozen=True, slots=True)
class OwnDev:
    """A `dev` that runs."""

    url: str
    token_file: Path | None
    """None: it was configured with another token than its own."""
    broker: OwnBroker | None = None
    """None: it does not say, or somebody else listens there."""


def own_dev(*, state: Path = STATE, processes: Path = PROCESSES) -> OwnDev | None:
    """The one whose state is where it is by default, if it is ours, and so is who listens there."""
    folder = state.expanduser()
    try:
        told = json.loads((folder / WORD).read_text(encoding="utf-8")) if _is_ours(folder / WORD) else {}
        url = str(told["url"])
        if not _is_its_own(processes, url, "http", int(told["pid"])):
            return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    file = folder / "api.token"
    return OwnDev(url, file if _is_ours(file) else None, _own_broker(folder, told, processes))


def _own_broker(folder: Path, told: Mapping[str, object], processes: Path) -> OwnBroker | None:
    file = folder / WORKER_PASSWORD
    try:
        url, pid = str(told["nats_url"]), int(str(told["nats_pid"]))
        found = _is_ours(file) and _is_its_own(processes, url, "nats", pid)
    except (OSError, ValueError, LookupError):
        return None
    return OwnBroker(url, WORKER, file) if found else None


def _is_its_own(processes: Path, url: str, scheme: str, pid: int) -> bool:
    """Whether this very process listens there, and nobody else."""
    parts = urlsplit(url)
    there = _listening(processes, parts.port or 80)
    return parts.scheme == scheme and parts.hostname == HOST and bool(there) and there <= _sockets(processes, pid)


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
