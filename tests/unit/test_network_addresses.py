"""Which addresses count as public: the registries' tables, spelled out once more and independently."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.sandbox.network.addresses import SPECIAL_V4, is_public

NOT_PUBLIC = [
    "0.0.0.0",
    "0.255.255.255",
    "10.0.0.0",
    "10.255.255.255",
    "100.64.0.0",
    "100.127.255.255",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.0",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::ffff:8.8.8.8",
    "::ffff:10.0.0.1",
    "::8.8.8.8",
    "64:ff9b::8.8.8.8",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:1:2::3",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:0a00:0001::1",
    "2002:0808:0808::1",
    "3fff::1",
    "3fff:fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.0.3.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "168.63.129.15",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "2a00:1450::1",
    "2600::1",
    "2001:200::1",
    "3ffe::1",
]


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_special_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_the_addresses_beside_them_are(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.sampled_from(SPECIAL_V4), st.data())
def test_every_address_of_a_special_network_is_special(network: IPv4Network, data: st.DataObject) -> None:
    number = data.draw(st.integers(int(network.network_address), int(network.broadcast_address)))
    assert not is_public(IPv4Address(number))


@given(st.integers(0, 2**32 - 1))
def test_an_address_of_the_other_family_hides_nothing(number: int) -> None:
    """However an IPv4 address is put into an IPv6 one, it is not a way around the table."""
    for prefix in ("::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::"):
        assert not is_public(IPv6Address(int(IPv6Address(prefix)) + number))
    assert not is_public(IPv6Address((0x2002 << 112) | (number << 80)))
    assert not is_public(IPv6Address((0x20010000 << 96) | number))


@given(st.ip_addresses(v=4))
def test_what_is_public_here_is_global_for_the_library_too(address: IPv4Address) -> None:
    if is_public(address):
        assert address.is_global
