"""What a sandbox is given so that it can use its network. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from fumehood.sandbox.network.ruleset import PROXY_PORT
from fumehood.sandbox.spec import Network

NOBODY: Final = "127.0.0.1"
"""A resolver in the sandbox's own loopback, where none is: look-ups fail at once."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """One network, as the container's plan needs it."""

    profile: Network
    network: str
    """The engine's name of it."""
    resolver: str
    resolv_conf: Path
    """Placed over the image's own. The engine's names a resolver of the engine's, which knows the neighbours' names."""
    env: tuple[str, ...] = ()


def resolver_of(profile: Network, gateway: IPv4Address) -> str:
    return NOBODY if profile is Network.RESTRICTED else str(gateway)


def resolv_conf_text(resolver: str) -> str:
    return f"nameserver {resolver}\noptions timeout:5 attempts:2\n"


def proxy_env(profile: Network, gateway: IPv4Address) -> tuple[str, ...]:
    """How programs are told of the proxy; those that read none of these have no network."""
    if profile is not Network.RESTRICTED:
        return ()
    url, here = f"http://{gateway}:{PROXY_PORT}", "localhost,127.0.0.1,::1"
    values = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": here}
    return tuple(f"{name}={value}" for key, value in values.items() for name in (key, key.lower()))
