"""Sandboxes on one bridge do not see each other: every port of it is isolated, which lets it talk to the node alone.

This is done by the bridge itself, below addresses, so that it holds for ARP, IPv6 and whatever else is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fumehood.errors import NetworkUnavailableError

SYSFS: Final = Path("/sys/class/net")


def exists(interface: str, *, sysfs: Path = SYSFS) -> bool:
    return (sysfs / interface / "bridge").exists()


def isolate(interface: str, *, sysfs: Path = SYSFS) -> None:
    """All ports that the bridge has now. A port that is gone by then needs nothing."""
    for port in (sysfs / interface / "brif").iterdir():
        flag = port / "isolated"
        try:
            if flag.read_text().strip() != "1":
                flag.write_text("1")
                isolated = flag.read_text().strip() == "1"
            else:
                isolated = True
        except FileNotFoundError:
            isolated = not port.exists()
        except OSError:
            isolated = False
        if not isolated:
            raise NetworkUnavailableError(
                "sandboxes cannot be kept apart from each other: the node must be able to write to /sys/class/net, "
                "and the kernel must be 4.18 or later"
            )
