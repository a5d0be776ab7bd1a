"""Which addresses count as public: those that nobody but the internet at large answers at. Pure.

The tables are the IANA registries of special-purpose addresses, written out, because a library's idea of "global" has
changed between versions. For IPv6 only the block that is given to the public at all counts, and what embeds another
address in it (6to4, Teredo; NAT64 and IPv4-mapped lie outside of the block) does not: that would be a way around the
table for IPv4.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address

SPECIAL_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' own (and a metadata service, 100.100.100.200)
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # looks public, and is a cloud's own service to its machines
        "169.254.0.0/16",  # link-local, most metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments (and a metadata service, 192.0.0.192)
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)

PUBLIC_V6: Final = IPv6Network("2000::/3")
SPECIAL_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address) -> bool:
    """May a sandbox be connected to this address at all?"""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in SPECIAL_V4)
    if address.scope_id is not None:
        return False
    return address in PUBLIC_V6 and not any(address in network for network in SPECIAL_V6)
