"""Who may come in from a browser: nobody but a page of this server's own, or of a name that its settings name.

A page anywhere can make its visitor's browser ask a server on the visitor's machine, and a name of its own can be made
to lead there (DNS rebinding). A page of another port of this machine is somebody else's, too. Programs send no
`Origin`; browsers always do, and always a true `Host`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from fumehood.settings import is_loopback


@dataclass(frozen=True, slots=True)
class Origins:
    """Which names count. `local`: the server listens on loopback. `hosts`: under which others it is reached, with a
    port where that is not any."""

    local: bool
    hosts: tuple[str, ...] = ()

    def trouble(self, hosts: Sequence[str], origins: Sequence[str]) -> str | None:
        """Why a request with these headers is refused; None: it is not."""
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return "this server is not known under the name in the header Host; mcp_hosts of its settings names others"
        if not origins:
            return None
        if len(origins) != 1 or not self._is_same(origins[0], hosts[0]):
            return "pages of other origins have no business here"
        return None

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        return _is_local(name) or self._is_named(name, host) or (not self.local and not self.hosts)

    def _is_same(self, origin: str, host: str) -> bool:
        scheme, separator, rest = origin.partition("://")
        name = _name(rest)
        if scheme not in ("http", "https") or not separator or name is None:
            return False
        return rest.lower() == host.lower() or self._is_named(name, rest)

    def _is_named(self, name: str, host: str) -> bool:
        known = {one.lower() for one in self.hosts}
        return name in known or host.lower() in known


def _name(host: str) -> str | None:
    """Without its port; None: it is no such thing."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


def _is_local(name: str) -> bool:
    return name == "localhost" or is_loopback(name)
