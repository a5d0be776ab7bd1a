"""Which runtime runs a sandbox that has a network. Pure.

gVisor brings a network stack of its own, which its versions before 2024 do not get to work here, and which an
operator may have turned off (`--network=none`), or replaced by the host's (`--network=host`). Then there is no
network on that runtime; the same gVisor may be there a second time, with one, under a name that begins with the same
word (`runsc-net`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fumehood.errors import NetworkUnavailableError

GVISOR: Final = "runsc"
FIRST_WITH_NETWORK: Final = 20240101

_VERSION = re.compile(r"(?:release-|0\.0~)(\d{8})\.\d+")


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What the engine and the runtime's own binary say."""

    name: str
    arguments: tuple[str, ...] = ()
    version: str = ""
    """What `--version` prints; empty: it could not be asked."""


def network_trouble(facts: RuntimeFacts) -> str | None:
    """Why sandboxes of this runtime have no network; `None`: they may have one."""
    if not facts.name.startswith(GVISOR):
        return None
    if (mode := network_mode(facts.arguments)) != "sandbox":
        return f"runtime {facts.name} is configured with --network={mode}"
    found = _VERSION.search(facts.version)
    if found is None:
        return f"runtime {facts.name} does not tell its version, and old ones have no network that works"
    if int(found[1]) < FIRST_WITH_NETWORK:
        return f"runtime {facts.name} is gVisor of {found[1][:4]}, whose network does not work: 2024 or later is needed"
    return None


def network_mode(arguments: Sequence[str]) -> str:
    """The last `--network` among a runtime's arguments, as its flags are read; `sandbox` is gVisor's own default."""
    mode = "sandbox"
    words = iter(arguments)
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "network":
            mode = value if equals else next(words, "")
    return mode


def with_network(asked: str, troubles: Mapping[str, str | None]) -> str:
    """The runtime for a sandbox with a network: the one asked for, or the same kind with one; never a weaker."""
    if asked not in troubles:
        raise NetworkUnavailableError(f"the engine has no runtime {asked}: name another one")
    trouble = troubles[asked]
    if trouble is None:
        return asked
    siblings = sorted(name for name, why in troubles.items() if name.startswith(GVISOR) and why is None)
    if not siblings:
        raise NetworkUnavailableError(
            f"{trouble}; register gVisor of 2024 or later with --network=sandbox, or run without a network (deny-all)"
        )
    return siblings[0]
