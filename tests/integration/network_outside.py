"""The world outside, in a network namespace of its own: `python network_outside.py NET CERT KEY ADDRESS…`.

NET is `a.b.c`. Addresses NET.2 and NET.3 both answer names (UDP and TCP 53), HTTP (80), TLS (443) and echo (TCP and UDP
7777); the further addresses, which are not public ones, HTTP alone. It prints one line when all listen. Names end in
`.test`; what they lead to is in `names`.
"""

from __future__ import annotations

import collections
import http.server
import socket
import socketserver
import ssl
import struct
import sys
import threading

A, TXT, AAAA = 1, 16, 28
asked: collections.Counter[tuple[str, int]] = collections.Counter()


def names(net: str, name: str, kind: int) -> list[bytes]:
    """What answers a question; beneath `rebind` it is public when first asked, and private ever after."""
    here, there = f"{net}.2", f"{net}.3"
    v4 = {
        "allowed.test": [here],
        "www.beneath.test": [here],
        "other.test": [there],
        "private.test": ["10.1.2.3"],
        "mixed.test": [here, "192.168.7.7"],
        "meta.test": ["169.254.169.254"],
        "loop.test": ["127.0.0.1"],
        "gone.test": [f"{net}.77"],
        "hidden.test": [here],
        "self.test": [f"{net}.1"],
    }
    v6 = {"hidden.test": ["::ffff:10.0.0.1"], "six.test": ["fd00:ec2::254"]}
    if name.endswith(".rebind.test"):
        v4[name] = [here] if asked[name, kind] == 1 else ["127.0.0.1"]
    if kind == A:
        return [socket.inet_aton(text) for text in v4.get(name, ())]
    if kind == AAAA:
        return [socket.inet_pton(socket.AF_INET6, text) for text in v6.get(name, ())]
    if kind == TXT and name == "large.test":
        return [bytes([200]) + b"x" * 200 for _ in range(20)]
    return []


def answer(net: str, query: bytes, room: int) -> bytes:
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    name, kind = ".".join(labels).lower(), int.from_bytes(query[at + 1 : at + 3], "big")
    asked[name, kind] += 1
    records = names(net, name, kind)
    body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(one)) + one for one in records)
    question = query[12 : at + 5]
    if 12 + len(question) + len(body) > room:
        return query[:2] + struct.pack(">HHHHH", 0x8380, 1, 0, 0, 0) + question
    return query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0) + question + body


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._say(f"outside {self.headers['Host']} {self.path}".encode())

    def do_POST(self) -> None:
        self._say(b"got %d" % len(self.rfile.read(int(self.headers["Content-Length"]))))

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Tls(http.server.ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address, Web)
        self._context = context

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)


def serve(net: str, address: str, context: ssl.SSLContext) -> None:
    class DnsUdp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            room = 1232 if int.from_bytes(data[10:12], "big") else 512
            sock.sendto(answer(net, data, room), self.client_address)

    class DnsTcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while length := self.rfile.read(2):
                said = answer(net, self.rfile.read(int.from_bytes(length, "big")), 65535)
                self.wfile.write(len(said).to_bytes(2, "big") + said)

    class EchoUdp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request[1].sendto(self.request[0], self.client_address)

    class EchoTcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while data := self.connection.recv(65536):
                self.connection.sendall(data)

    class Threading(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    servers: list[socketserver.BaseServer] = [
        socketserver.ThreadingUDPServer((address, 53), DnsUdp),
        socketserver.ThreadingUDPServer((address, 7777), EchoUdp),
        Threading((address, 53), DnsTcp),
        Threading((address, 7777), EchoTcp),
        http.server.ThreadingHTTPServer((address, 80), Web),
        Tls((address, 443), context),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    net, certificate, key, *inside = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for last in (2, 3):
        serve(net, f"{net}.{last}", context)
    for address in inside:
        server = http.server.ThreadingHTTPServer((address, 80), Web)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()  # until whoever started this goes away


if __name__ == "__main__":
    main()
