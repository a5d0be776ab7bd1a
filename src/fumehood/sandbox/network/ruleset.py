"""The firewall of one node's sandbox networks, as text for `nft`. Pure.

One table of our own for each node, replaced as a whole in one transaction. Its chains come before those of others
(priority −10) and only ever drop: what they accept still passes the operator's own firewall. The bridges of all
profiles are in it from the start, whether they exist yet or not, so that there is no moment in which one is open.

What arrives from a sandbox's bridge is dropped but for the one port that its profile needs, from an address of that
bridge, to the bridge's own address, so many a second from each; IPv6 always. What would go on to other machines is
dropped, but for `full`: there it may go to public addresses. Nobody connects to a sandbox from outside. That sandboxes
on one bridge do not see each other is done at the bridge (`ports.py`), since not every kernel shows bridged frames to
these chains; where one does, the chain `forward` drops them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from fumehood.sandbox.network.addresses import SPECIAL_V4
from fumehood.sandbox.spec import Network

DNS_PORT: Final = 53
PROXY_PORT: Final = 3128

QUESTIONS_A_SECOND: Final = 200
QUESTIONS_AT_ONCE: Final = 400
CONNECTIONS_A_SECOND: Final = 100
CONNECTIONS_AT_ONCE: Final = 200
"""What of one sandbox gets as far as the node: well above what it is served (`accounts.py`, `proxy.py`), and well below
what would keep the node's loop busy with refusing it."""
_METERED: Final = 4096
"""Addresses at a time; a bridge of the kernel's has 1024 ports."""

TABLE_PREFIX: Final = "fumehood_"
_LETTERS: Final = {Network.DNS_ONLY: "d", Network.RESTRICTED: "r", Network.FULL: "f"}
PROFILES: Final = tuple(_LETTERS)
"""The networks that need an interface."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """One network as the engine made it."""

    profile: Network
    interface: str
    subnet: IPv4Network
    gateway: IPv4Address


def node_mark(node_id: str) -> str:
    """A node's id in the few characters that an interface's name has room for."""
    return hashlib.sha256(node_id.encode()).hexdigest()[:10]


def table_name(mark: str) -> str:
    return TABLE_PREFIX + mark


def interface_name(mark: str, profile: Network) -> str:
    return f"fh{mark}{_LETTERS[profile]}"


def ruleset(mark: str, bridges: Iterable[Bridge]) -> str:
    """The whole table; `bridges` are those that exist."""
    known = {bridge.profile: bridge for bridge in bridges}
    ours = "{ " + ", ".join(f'"{interface_name(mark, profile)}"' for profile in PROFILES) + " }"
    special = ", ".join(str(network) for network in SPECIAL_V4)
    table = f"table inet {table_name(mark)}"
    lines = [
        table,  # make it, so that the next line cannot fail
        f"delete {table}",
        f"{table} {{",
        f"set special {{ type ipv4_addr; flags interval; elements = {{ {special} }} }}",
        *_meters(),
        "chain input { type filter hook input priority filter - 10; policy accept;",
        f"iifname {ours} jump to_node",
        "}",
        "chain forward { type filter hook forward priority filter - 10; policy accept;",
        f"iifname {ours} jump outward",
        f"oifname {ours} jump inward",
        "}",
        "chain to_node {",
        *(line for bridge in known.values() for line in _service(bridge)),
        "drop",
        "}",
        "chain outward {",
        *_outward(known.get(Network.FULL), ours),
        "drop",
        "}",
        "chain inward {",
        *_inward(known.get(Network.FULL)),
        "drop",
        "}",
        "}",
    ]
    return "\n".join(lines) + "\n"


WITHIN_SANDBOX: Final = """table inet fumehood
delete table inet fumehood
table inet fumehood {
chain output { type filter hook output priority -400; policy accept;
ip daddr 127.0.0.11 drop
}
}
"""
"""In a sandbox's own network, where programs cannot change it: the engine's resolver listens there, and would tell the
names of all other sandboxes to whoever asks for their addresses. It serves nobody; `resolv.conf` names our own."""


def _meters() -> list[str]:
    """How often each address came, forgotten a while after it last did."""
    kind = f"{{ type ipv4_addr; size {_METERED}; flags dynamic, timeout; timeout 1m; }}"
    return [f"set asking {kind}", f"set calling {kind}"]


def _service(bridge: Bridge) -> list[str]:
    """Too many are dropped before they are accepted; of TCP, what begins a connection counts."""
    ours = f'iifname "{bridge.interface}" ip saddr {bridge.subnet} ip daddr {bridge.gateway}'
    port = PROXY_PORT if bridge.profile is Network.RESTRICTED else DNS_PORT
    calling = _beyond("calling", CONNECTIONS_A_SECOND, CONNECTIONS_AT_ONCE)
    lines = [
        f"{ours} tcp dport {port} tcp flags & (fin | syn | rst | ack) == syn {calling} drop",
        f"{ours} tcp dport {port} accept",
    ]
    if bridge.profile is not Network.RESTRICTED:
        asking = _beyond("asking", QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)
        lines += [f"{ours} udp dport {port} {asking} drop", f"{ours} udp dport {port} accept"]
    return lines


def _beyond(meter: str, a_second: int, at_once: int) -> str:
    return f"update @{meter} {{ ip saddr limit rate over {a_second}/second burst {at_once} packets }}"


def _outward(full: Bridge | None, ours: str) -> list[str]:
    if full is None:
        return []
    return [f'iifname "{full.interface}" oifname != {ours} ip saddr {full.subnet} ip daddr != @special accept']


def _inward(full: Bridge | None) -> list[str]:
    """Answers only."""
    if full is None:
        return []
    return [f'oifname "{full.interface}" ip saddr != @special ct state established,related accept']
