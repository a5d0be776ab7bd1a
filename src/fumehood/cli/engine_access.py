"""Whether this user can talk to the Docker Engine at all: the most common first-hour failure, in sentences."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fumehood.settings.base import said_under

CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What stands in the way, and what to do about it."""

    sentence: str
    denied: bool
    """An engine may well be there, and we may not use it: waiting will not help."""


def engine_trouble(address: Path) -> Trouble | None:
    """Connect to the engine's socket; None when somebody answers."""
    try:
        _connect(address)
    except PermissionError:
        return Trouble(
            f"you may not use the Docker Engine at {address}: add yourself to the group `docker` "
            "(sudo usermod -aG docker $USER) and log in again, or become root",
            denied=True,
        )
    except FileNotFoundError:
        return Trouble(
            f"there is no Docker Engine at {address}: install one (Debian: apt-get install docker.io) and start it, "
            f"or say where it is with FUMEHOOD_DOCKER_SOCKET{_elsewhere(address)}; "
            "in a checkout, scripts/services up does both",
            denied=False,
        )
    except OSError as error:
        why = error.strerror or ("no answer in time" if isinstance(error, TimeoutError) else str(error))
        return Trouble(
            f"no Docker Engine answers at {address} ({why}): start it "
            "(systemctl start docker); in a checkout, scripts/services up does it",
            denied=False,
        )
    return None


def _elsewhere(address: Path) -> str:
    """The socket that Docker's own programs would use: used only in the message, never to connect."""
    path = said_under("DOCKER_HOST").get("DOCKER_HOST", "").removeprefix("unix://")
    return f"={path}, as DOCKER_HOST has it" if path.startswith("/") and Path(path) != address else ""


def _connect(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_SECONDS)
        probe.connect(str(address))
