"""A server that answers as it is told, on a real socket, and remembers what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Answer:
    """`body` is sent as JSON, `pieces` as they are; after those the connection is cut, unless `whole`."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[bytes, ...] | None = None
    whole: bool = True


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    body = {"type": f"urn:fumehood:problem:{code}", "status": status, "detail": detail, "instance": "req-1", **more}
    return Answer(body, status, {"content-type": "application/problem+json"})


@dataclass
class ApiServer:
    """Answers are by method and path; a list of them is used up one by one, and the last one stays."""

    url: str = ""
    answers: dict[str, Answer | list[Answer] | Callable[[Asked], Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            found = self.answers.get(f"{asked.method} {asked.path}")
            if found is None:
                return problem(404, "not-found", "there is no such thing")
            if isinstance(found, list):
                return found.pop(0) if len(found) > 1 else found[0]
        return found if isinstance(found, Answer) else found(asked)


def whole_body(request: BaseHTTPRequestHandler) -> bytes:
    """All of it: what is left unread would be taken for the next request on this connection."""
    if request.headers.get("transfer-encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("content-length", 0)))
    body = b""
    while size := int(request.rfile.readline(), 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


@contextmanager
def api_server(tls: ssl.SSLContext | None = None) -> Iterator[ApiServer]:
    made = ApiServer()

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = whole_body(self)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = made.answer(Asked(self.command, parts.path, parse_qsl(parts.query), headers, body))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.pieces is not None:
                self._stream(answer)
                return
            content = b"" if answer.body is None else json.dumps(answer.body).encode()
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, answer: Answer) -> None:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in answer.pieces or ():
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if answer.whole:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the standard library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client may go before its answer. A traceback would be read as output of the test's command."""

    with Server(("127.0.0.1", 0), Door) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
