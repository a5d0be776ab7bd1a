"""How one node uses its Docker Engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fumehood.images.egress import EgressRules

Credentials = Callable[[str], Mapping[str, str] | None]
"""Gives the engine's auth document for a registry host, or nothing."""


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """Everything about the engine that an operator may choose."""

    node_id: str
    state_dir: Path
    socket: Path = Path("/var/run/docker.sock")
    runtime: str | None = None
    """A runtime by name; `None`: gVisor where it works, else the engine's default."""
    orphan_seconds: float = 30.0
    """How long a sandbox lives without its node. Longer than a restart or upgrade of the node takes."""
    concurrent_starts: int = 4
    """Starts saturate at about two for each core; more only makes all of them slower."""
    pull_seconds: float = 600.0
    credentials: Credentials = field(default=lambda _host: None)
    egress: Callable[[], EgressRules] = EgressRules
    """To which names sandboxes with the network `restricted` may connect, asked anew for each connection: a policy may
    be reloaded. Nothing, unless somebody says so."""
    dns_upstreams: tuple[str, ...] = ()
    """Who answers sandboxes' questions for names, `ADDRESS` or `ADDRESS:PORT`; empty: whom the host itself asks."""
