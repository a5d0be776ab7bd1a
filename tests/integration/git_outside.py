"""A git server in the world outside, for `network_world.namespace`: `python git_outside.py NET FOLDER CERT KEY`.

NET is `a.b.c`. On NET.2 it answers names (UDP 53), HTTP (80) and HTTPS (443). Repositories beneath FOLDER are served
over the real protocol by git's own `http-backend` under `/smart/`, and as plain files under `/dumb/`; `/moved/` leads
to another name.
"""

from __future__ import annotations

import http.server
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
from pathlib import Path

BACKEND = "/usr/lib/git-core/git-http-backend"


def dns_answer(net: str, query: bytes) -> bytes:
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    name, kind = ".".join(labels).lower(), int.from_bytes(query[at + 1 : at + 3], "big")
    led = {"git.test": f"{net}.2", "other.test": f"{net}.2", "private.test": "10.1.2.3", "meta.test": "169.254.169.254"}
    found = led.get(name) if kind == 1 else None
    body = b""
    if found:
        body = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + bytes(map(int, found.split(".")))
    return query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(bool(found)), 0, 0) + query[12 : at + 5] + body


class Git(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/dumb/"):
            file = self.folder / path.removeprefix("/dumb/")
            self._say(200, file.read_bytes()) if file.is_file() else self._say(404, b"")
        elif path.startswith("/moved/"):
            self._say(302, b"", [("Location", f"http://other.test/smart/{self.path.removeprefix('/moved/')}")])
        else:
            self._backend(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._backend(body)

    def _backend(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        env = {
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.removeprefix("/smart"),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run([BACKEND], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = [line.decode().split(": ", 1) for line in head.split(b"\r\n") if line]
        status = next((int(value.split()[0]) for name, value in fields if name == "Status"), 200)
        self._say(status, content, [(name, value) for name, value in fields if name != "Status"])

    def _say(self, status: int, body: bytes, fields: list[tuple[str, str]] | None = None) -> None:
        self.send_response(status)
        for name, value in fields or []:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Tls(http.server.ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[Git], context: ssl.SSLContext) -> None:
        super().__init__(address, handler)
        self._context = context

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        with self._context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)


def main() -> None:
    net, folder, certificate, key = sys.argv[1:]

    class Dns(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            sock.sendto(dns_answer(net, data), self.client_address)

    class Served(Git):
        pass

    Served.folder = Path(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    servers: list[socketserver.BaseServer] = [
        socketserver.ThreadingUDPServer((f"{net}.2", 53), Dns),
        http.server.ThreadingHTTPServer((f"{net}.2", 80), Served),
        Tls((f"{net}.2", 443), Served, context),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()  # until whoever started this goes away


if __name__ == "__main__":
    main()
