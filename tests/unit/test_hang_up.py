"""A connection is closed by its two ends, and no other one."""

from __future__ import annotations

import socket

import pytest

from fumehood.control.rpc.hangup import hang_up


def pair(family: socket.AddressFamily, host: str) -> tuple[socket.socket, socket.socket, int]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.socket(family)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        client.settimeout(10)
        return client, accepted, accepted.getsockname()[1]


@pytest.mark.parametrize(
    ("family", "host", "peer"),
    [(socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:{}"), (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:{}")],
)
def test_the_connection_of_a_peer_is_closed(family: socket.AddressFamily, host: str, peer: str) -> None:
    client, accepted, port = pair(family, host)
    other, other_accepted, other_port = pair(family, host)
    with client, accepted, other, other_accepted:
        number = client.getsockname()[1]
        assert not hang_up(peer.format(number), other_port), "a port of ours that it is not connected with"
        assert hang_up(peer.format(number), port)
        assert client.recv(1) == b""
        other_accepted.sendall(b"x")
        assert other.recv(1) == b"x"
    assert not hang_up(peer.format(number), port), "there is none any more"


@pytest.mark.parametrize("peer", ["", "unix:/tmp/x", "ipv4:", "ipv4:127.0.0.1", "nonsense"])
def test_what_is_no_peer_closes_nothing(peer: str) -> None:
    assert not hang_up(peer, 1)
