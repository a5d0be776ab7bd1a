"""The sentences of the command line that need no engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fumehood.cli import dev, doctor, engine_access
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.node import _listen
from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings


def test_an_engine_that_answers_is_no_trouble(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        assert engine_trouble(tmp_path / "s") is None


def test_no_engine_and_a_dead_one_are_told_apart(tmp_path: Path) -> None:
    absent = engine_trouble(tmp_path / "none")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "dead"))
    dead = engine_trouble(tmp_path / "dead")
    assert absent is not None
    assert dead is not None
    assert "apt-get install docker.io" in absent.sentence
    assert "Connection refused" in dead.sentence
    assert not absent.denied
    assert not dead.denied


def test_a_socket_that_we_may_not_open_is_another_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(engine_access, "_connect", refused)
    trouble = engine_trouble(Path("/var/run/docker.sock"))
    assert trouble is not None
    assert trouble.denied
    assert "group `docker`" in trouble.sentence


def test_a_taken_port_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as caught:
            _listen(NodeSettings(port=port))
    assert caught.value.detail == f"cannot listen on 127.0.0.1, port {port}: Address already in use"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"), [(3, 3, "ended with 3"), (-9, 137, "was killed by signal 9"), (0, 0, "ended with 0")]
)
def test_how_a_node_ended(code: int, exit_code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev._ended(code) == exit_code
    assert said in capsys.readouterr().err


@pytest.fixture
def not_ready() -> Iterator[int]:
    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"runtime nonsuch cannot run a sandbox")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
            pass

    with HTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_dev_asks_the_node_why_it_is_not_ready(not_ready: int) -> None:
    assert dev._why_not(not_ready) == "runtime nonsuch cannot run a sandbox"


def test_a_node_that_does_not_listen_yet_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert dev._why_not(port) == ""


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("security", ["name=seccomp", "name=cgroupns"], "name=seccomp, name=cgroupns"),
        ("security", [], "none"),
        ("storage", None, "not known"),
        ("workspace_inodes", 0, "no limit"),
        ("workspace_inodes", 65536, "65536"),
        ("core_bytes", 0, "0"),
        ("pids", "max", "no limit"),
        ("cpu_quota_us", "-1", "no limit"),
        ("cpu_quota_us", "100000 100000", "100000 100000"),
    ],
)
def test_doctor_speaks_no_python(name: str, value: object, shown: str) -> None:
    assert doctor._plain(name, value) == shown
