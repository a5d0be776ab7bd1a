"""A server with sessions whose commands are played by a test, on a real socket: it counts bytes as a real one does, and
loses requests, answers and connections as it is told."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

AT, LATER = "2026-01-02T12:00:00.000Z", "2126-01-02T12:10:00.000Z"
PIECE = 128 * 1024


class Cut(Exception):  # noqa: N818 - not an error: it is what the test wants
    """The connection goes, without an answer."""


@dataclass
class Command:
    """One command: what it printed, what it got, and how it ended."""

    command_id: str
    asked: dict[str, Any]
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    kept_from: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    stdin: bytearray = field(default_factory=bytearray)
    eof: bool = False
    sizes: list[tuple[int, int]] = field(default_factory=list)
    signals: list[Any] = field(default_factory=list)
    end: dict[str, Any] | None = None
    change: threading.Condition = field(default_factory=threading.Condition)
    on_input: Callable[[Command, bytes], None] = lambda command, data: None
    on_signal: Callable[[Command, Any], None] = lambda command, signal: None

    def print(self, data: bytes, stream: str = "stdout") -> None:
        with self.change:
            getattr(self, stream).extend(data)
            self.change.notify_all()

    def ends(self, status: str = "exited", **more: Any) -> None:
        with self.change:
            self.end = {"status": status, "exit_code": 0 if status == "exited" else None, **more}
            self.change.notify_all()

    def take(self, offset: int, data: bytes, eof: bool) -> int:
        with self.change:
            assert offset <= len(self.stdin), "input with a hole in it"
            new = data[len(self.stdin) - offset :]
            self.stdin += new
            self.eof = self.eof or eof
            self.change.notify_all()
        if new:
            self.on_input(self, new)
        return len(self.stdin)

    def until(self, look: Callable[[Command], bool], seconds: float = 60.0) -> None:
        with self.change:
            assert self.change.wait_for(lambda: look(self), seconds), "it did not come to that"

    def view(self) -> dict[str, Any]:
        return {
            "command_id": self.command_id, "sandbox_id": "s-1", "status": "running", "exit_code": None, "signal": None,
            "detail": "", "started_at": AT, "ended_at": None, "command": self.words, "terminal": self.has_terminal,
            "stdout_bytes": len(self.stdout), "stderr_bytes": len(self.stderr), "stdin_bytes": len(self.stdin),
            **(self.end or {}),
        }  # fmt: skip

    @property
    def words(self) -> list[str]:
        said = self.asked.get("command", [])
        return ["sh", "-c", said] if isinstance(said, str) else said

    @property
    def has_terminal(self) -> bool:
        return "terminal" in self.asked


@dataclass
class SessionServer:
    """`faults` is asked before each answer, with `before` or `after` what was asked for was done; it may raise `Cut`,
    or give a status to answer with."""

    url: str = ""
    commands: dict[str, Command] = field(default_factory=dict)
    chosen: dict[str, Command] = field(default_factory=dict)
    """By the name that was asked for."""
    files: dict[str, bytes | dict[str, Any]] = field(default_factory=dict)
    """By path; what is no bytes is a folder, or something else, as `list` shows it."""
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    faults: Callable[[str, str, str], int | None] = lambda when, method, path: None
    cut_every: int | None = None
    """Bytes of output after which each stream breaks."""
    overlap: int = 0
    """Bytes before those that were asked for, with which each stream begins."""
    on_start: Callable[[Command], None] = lambda command: None

    def add(self, **asked: Any) -> Command:
        made = Command(f"c-{len(self.commands) + 1}", asked)
        self.commands[made.command_id] = made
        return made


SESSION = {
    "sandbox_id": "s-1", "image": "base:1", "image_digest": "sha256:" + "a" * 64, "created_at": AT,
    "lease_expires_at": LATER, "network": "deny-all", "runtime": "runsc", "running_commands": 1, "worker_id": "w-1",
}  # fmt: skip
LISTED = {name: SESSION[name] for name in ("sandbox_id", "image", "created_at", "lease_expires_at", "worker_id")}
_COMMAND = re.compile(r"/v1/sandboxes/s-1/commands/([\w-]+)((?:/|:)\w+)?")
_PLAIN = {"/v1/sandboxes", "/v1/sandboxes/s-1", "/v1/sandboxes/s-1:extend"}


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    made: SessionServer

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        body = self._body()
        self.made.asked.append((self.command, self.path, body))
        try:
            status = self.made.faults("before", self.command, parts.path)
            if status is not None:
                self._send(*_problem(status))
                return
            answer = self._route(parts.path, body)
            self.made.faults("after", self.command, parts.path)
            if answer is not None:
                self._send(*answer)
        except (Cut, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _route(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        if path in _PLAIN:
            return self._sessions(path)
        if path.startswith("/v1/sandboxes/s-1/files"):
            return self._files(path.rpartition("/")[2], body)
        if path == "/v1/sandboxes/s-1/commands":
            return self._commands(body)
        found = _COMMAND.fullmatch(path)
        if found is None or found[1] not in self.made.commands:
            return _problem(404, "there is no such thing")
        return self._one(self.made.commands[found[1]], found[2] or "", body)

    def _sessions(self, path: str) -> tuple[int, bytes]:
        if self.command == "DELETE":
            return 204, b""
        listed = path == "/v1/sandboxes" and self.command == "GET"
        return 200, _json({"sandboxes": [LISTED], "next": None} if listed else SESSION)

    def _commands(self, body: bytes) -> tuple[int, bytes]:
        if self.command == "GET":
            return 200, _json({"commands": [one.view() for one in self.made.commands.values()]})
        asked = json.loads(body)
        chosen = asked.pop("command_id")
        command = self.made.chosen.get(chosen)
        if command is None:
            command = self.made.chosen[chosen] = self.made.add(**asked)
            self.made.on_start(command)
            self.made.started.release()
        return 202, _json(command.view())

    def _one(self, command: Command, verb: str, body: bytes) -> tuple[int, bytes] | None:
        match verb:
            case "":
                return 200, _json(command.view())
            case "/output":
                self._stream(command)
                return None
            case "/stdin":
                taken = command.take(int(self.query["offset"]), body, self.query.get("eof") == "true")
                return 200, _json({"stdin_bytes": taken})
            case ":resize":
                asked = json.loads(body)
                with command.change:
                    command.sizes.append((asked["rows"], asked["columns"]))
                    command.change.notify_all()
            case ":signal":
                with command.change:
                    command.signals.append(json.loads(body)["signal"])
                    command.change.notify_all()
                command.on_signal(command, command.signals[-1])
        return 204, b""

    def _files(self, what: str, body: bytes) -> tuple[int, bytes] | None:
        path, files = self.query.get("path", ""), self.made.files
        match self.command, what:
            case "PUT", "content":
                files[path] = body
                return 200, _json({"path": path, "size_bytes": len(body)})
            case "POST", "folders":
                files[path] = {"kind": "folder"}
                return 204, b""
            case "GET", "content" if isinstance(files.get(path), bytes):
                return 200, files[path]  # type: ignore[return-value]
            case "GET", "stat" if path in files:
                return 200, _json(info(path, files[path]))
            case "GET", "list" if path in files:
                inside = [name for name in files if name.rpartition("/")[0] == path.rstrip("/") and name != path]
                return 200, _json({"files": [info(name, files[name]) for name in inside]})
        return _problem(404, "there is no such file")

    # --- answers -----------------------------------------------------------------------------------------------

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, command: Command) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b": hello\n\n")
        asked = {name: int(self.query.get(name, 0)) for name in ("stdout", "stderr")}
        places = {name: max(0, place - self.made.overlap) for name, place in asked.items()}
        sent = 0
        while True:
            stream, offset, data, end = self._following(command, places)
            if end is not None:
                self._event("end", end)
                return
            if self.made.cut_every is not None:
                data = data[: max(1, self.made.cut_every - sent)]
            sent += len(data)
            places[stream] = offset + len(data)
            self._event("output", {"stream": stream, "offset": offset, "data": base64.b64encode(data).decode()})
            if self.made.cut_every is not None and sent >= self.made.cut_every:
                self.wfile.write(b'id: 1\nevent: output\ndata: {"stream": "std')
                raise Cut

    def _event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\n".encode() + b"data: " + _json(data) + b"\n\n")
        self.wfile.flush()

    def _following(self, command: Command, places: dict[str, int]) -> tuple[str, int, bytes, dict[str, Any] | None]:
        """Waits for what comes next."""
        with command.change:
            while True:
                for stream, place in places.items():
                    whole: bytearray = getattr(command, stream)
                    begin = max(place, command.kept_from[stream])
                    if begin < len(whole):
                        return stream, begin, bytes(whole[begin : begin + PIECE]), None
                if command.end is not None:
                    return "", 0, b"", command.view()
                if not command.change.wait(0.2):
                    self.wfile.write(b": alive\n\n")

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the standard library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        pass


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _problem(status: int, detail: str = "not now") -> tuple[int, bytes]:
    body = {"type": "urn:fumehood:problem:trouble", "status": status, "detail": detail, "instance": "req-1"}
    return status, _json(body)


def info(path: str, what: bytes | dict[str, Any]) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    said = {"kind": "file", "size_bytes": len(what)} if isinstance(what, bytes) else what
    return {"name": name, "mode": "0644", "size_bytes": 0, "uid": 0, "gid": 0, "modified_at": AT, **said}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes is what these tests are about."""


@contextmanager
def session_server() -> Iterator[SessionServer]:
    made = SessionServer()
    door = type("Door", (_Door,), {"made": made})
    with _Server(("127.0.0.1", 0), door) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
