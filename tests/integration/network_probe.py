"""What a program inside a sandbox tries on its network: `python3 -c <this> ATTEMPTS`, a JSON object of name to
attempt.

Each attempt is a list: what to do, and with what. It prints a JSON object of name to what came of it; all that went
wrong is the name of an exception. Standard library only, one file: it is handed to an interpreter inside of the
sandbox.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import socket
import ssl
import struct
import sys
import urllib.request

PATIENCE = 90.0
IMPATIENCE = 2.0
"""For what must not come; a drop looks the same after any time."""


def tcp(host: str, port: int, family: int = socket.AF_INET) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(IMPATIENCE)
        one.connect((host, port))
        return "connected"


def tcp6(host: str, port: int) -> str:
    return tcp(host, port, socket.AF_INET6)


def on_device(host: str, port: int) -> str:
    """Past the routing table: the interface is named, so that every address counts as a neighbour's."""
    with socket.socket() as one:
        one.settimeout(IMPATIENCE)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        one.connect((host, port))
        return "connected"


def echo_tcp(host: str, port: int) -> str:
    with socket.create_connection((host, port), PATIENCE) as one:
        one.sendall(b"hello")
        return one.recv(100).decode()


def echo_udp(host: str, port: int, patience: float = IMPATIENCE) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(patience)
        one.connect((host, port))
        one.send(b"hello")
        return one.recv(100).decode()


def flood(host: str, port: int, count: int) -> str:
    """As fast as it goes; nobody answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((host, port))
        return str(sum(bool(one.send(b"hello")) for _ in range(count)))


def icmp(host: str) -> str:
    """An echo request, as unprivileged programs may send it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as one:
        one.settimeout(IMPATIENCE)
        one.sendto(struct.pack(">BBHHH", 8, 0, 0xF7FF - 1, 0, 1), (host, 0))
        one.recv(100)
        return "answered"


def icmp6(host: str) -> str:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6) as one:
        one.settimeout(IMPATIENCE)
        one.sendto(struct.pack(">BBHHH", 128, 0, 0, 0, 1), (host, 0))
        one.recv(100)
        return "answered"


def raw(family: int, protocol: int) -> str:
    socket.socket(family, socket.SOCK_RAW, protocol).close()
    return "made"


def broadcast(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(IMPATIENCE)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        one.sendto(b"hello", ("255.255.255.255", port))
        return one.recv(100).decode()


def dns(server: str, name: str, kind: int = 1, over_tcp: bool = False, patience: float = PATIENCE) -> str:
    """`RCODE ADDRESS…`, or with a T when cut short."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = os.urandom(2) + struct.pack(">HHHHH", 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM) as one:
        one.settimeout(patience)
        one.connect((server, 53))
        one.sendall(len(query).to_bytes(2, "big") + query if over_tcp else query)
        data = b""
        if over_tcp:
            with one.makefile("rb") as said:
                data = said.read(int.from_bytes(said.read(2), "big"))
        else:
            data = one.recv(65535)
    assert data[:2] == query[:2]
    flags, _, count = struct.unpack_from(">HHH", data, 2)
    at, found = len(query), []
    for _ in range(count):
        length = int.from_bytes(data[at + 10 : at + 12], "big")
        content = data[at + 12 : at + 12 + length]
        found.append(socket.inet_ntoa(content) if length == 4 else f"{length} bytes")
        at += 12 + length
    return " ".join([str(flags & 15), *(["T"] if flags & 0x200 else []), *found])


def no_dns(server: str, name: str, over_tcp: bool = False) -> str:
    return dns(server, name, 1, over_tcp, IMPATIENCE)


def lookup(name: str) -> str:
    """As programs do it, through the C library and /etc/resolv.conf."""
    return socket.gethostbyname(name)


def fetch(url: str) -> str:
    """As programs do it, through the environment's proxy."""
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE, context=context) as said:
            return f"{said.status} {said.read(200).decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read(300).decode()}"


def post(url: str, size: int) -> str:
    with urllib.request.urlopen(url, data=b"x" * size, timeout=PATIENCE) as said:
        return f"{said.status} {said.read(200).decode()}"


def _proxy() -> http.client.HTTPConnection:
    address = os.environ["http_proxy"].removeprefix("http://")
    return http.client.HTTPConnection(address, timeout=PATIENCE)


def ask(method: str, target: str) -> str:
    """A request of any shape to the proxy itself."""
    host, _, port = os.environ["http_proxy"].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as one:
        one.sendall(f"{method} {target} HTTP/1.1\r\nHost: allowed.test\r\n\r\n".encode())
        return one.recv(1000).decode().split(" ", 2)[1]


def tls(host: str, port: int, name: str | None) -> str:
    """CONNECT to a host, and TLS that names another one, or none, or is none at all."""
    proxy, _, number = os.environ["http_proxy"].removeprefix("http://").partition(":")
    with socket.create_connection((proxy, int(number)), PATIENCE) as one:
        one.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = one.recv(1000).decode()
        if " 200 " not in head:
            return head.split(" ", 2)[1]
        if name == "plain":
            one.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return one.recv(100).decode() or "closed"
        context = ssl._create_unverified_context()
        with context.wrap_socket(one, server_hostname=name) as secure:
            secure.sendall(f"GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            with secure.makefile("rb") as said:
                return said.read().decode().rpartition("\r\n")[2]


def attempt(words: list[object]) -> str:
    try:
        return str(globals()[str(words[0])](*words[1:]))
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever went wrong is what was asked for
        return type(error).__name__


def main() -> None:
    attempts = json.loads(sys.argv[1])
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = dict(zip(attempts, threads.map(attempt, attempts.values()), strict=True))
    print(json.dumps(found))


main()
