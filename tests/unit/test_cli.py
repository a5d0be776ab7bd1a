"""The sentences of the command line that need no engine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fumehood.cli import dev, dev_broker, doctor, engine_access, processes
from fumehood.cli.dev_ready import token_places
from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.processes import check_ports, held_port
from fumehood.cli.serving import clear_ready
from fumehood.door.server import listen
from fumehood.errors import ConfigurationError
from fumehood.settings import Access, NodeSettings, ServerSettings, Settings
from fumehood.settings.token_file import write_private
from tests.waiting import wait_until


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
            listen(NodeSettings(port=port))
    assert caught.value.detail == f"cannot listen on 127.0.0.1, port {port}: Address already in use"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"), [(3, 3, "ended with 3"), (-9, 137, "was killed by signal 9"), (0, 0, "ended with 0")]
)
def test_how_a_process_ended(code: int, exit_code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    how = f"exit {code}" if code >= 0 else f"kill -{-code} $$"
    child = processes.start("node", ["/bin/sh", "-c", how])
    assert processes.first_to_end([child], processes.Interrupts()) is child
    assert dev._ended(child) == exit_code
    assert said in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_is_heard_wherever_it_comes() -> None:
    """In a destructor, too, whose exceptions go nowhere."""
    interrupts, before = processes.Interrupts(), signal.getsignal(signal.SIGUSR1)

    class Leaving:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    child = processes.start("node", ["/bin/sleep", "600"])
    try:
        interrupts.take(signal.SIGUSR1)
        Leaving()
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt):
            processes.first_to_end([child], interrupts)
    finally:
        signal.signal(signal.SIGUSR1, before)
        child.process.kill()
        child.process.wait()


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


def test_all_ports_that_are_taken_are_named_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        one, other = first.getsockname()[1], second.getsockname()[1]
        with pytest.raises(ConfigurationError) as alone:
            check_ports({"--http-port": one, "--grpc-port": 0})
        with pytest.raises(ConfigurationError) as both:
            check_ports({"--http-port": one, "--nats-port": other})
        by = rf"is taken by `.+` \(process {os.getpid()}\)"
        assert re.fullmatch(
            rf"port {one} {by}: end that, or choose another one with --http-port \(0: any\)", alone.value.detail
        )
        assert re.fullmatch(
            rf"port {one} {by}, port {other} {by}: end that, or choose others with --http-port, --nats-port \(0: any\)",
            both.value.detail,
        )


def test_dev_takes_another_port_for_nats_if_the_usual_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(dev_broker, "PORT", port)
        assert dev_broker.choose_port(None) not in (0, port)
    free = held_port()
    assert dev_broker.choose_port(free) == free
    assert dev_broker.choose_port(None) == port
    assert dev_broker.choose_port(0) not in (0, port)


def test_one_folder_is_for_one_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "LOCK_SECONDS", 0.0)
    taken = pytest.raises(ConfigurationError, match="another `fumehood dev` runs in")
    with dev._locked(tmp_path), taken, dev._locked(tmp_path):
        pass
    with dev._locked(tmp_path):
        pass


def test_a_process_that_is_asked_to_stop_stops_and_says_nothing_more(tmp_path: Path) -> None:
    child = processes.start("sleeper", ["/bin/sh", "-c", "echo out; exec sleep 60"], log=tmp_path / "log")
    child.stop()
    assert child.process.poll() == -15
    child.stop()


def test_a_configured_token_is_kept_and_none_is_made(tmp_path: Path) -> None:
    configured = Access("bridge", "--bridge-token-file", token="abc")
    assert dev._token(configured, tmp_path / "own") == ("abc", [])
    assert not (tmp_path / "own").exists()
    token, words = dev._token(Access("api", "--token-file"), tmp_path / "own")
    assert words == ["--token-file", str(tmp_path / "own")]
    assert (tmp_path / "own").read_text().strip() == token
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0
    assert dev._token(Access("api", "--token-file"), tmp_path / "own")[0] == token


def test_dev_says_where_the_tokens_are_that_count(tmp_path: Path) -> None:
    own, bridge = tmp_path / "api.token", tmp_path / "bridge.token"
    assert token_places(tmp_path, [own, bridge], 2) == f"{tmp_path}/*.token"
    assert token_places(tmp_path, [own], 2) == f"{tmp_path}/*.token, your configuration"
    assert token_places(tmp_path, [Path("/etc/admin"), Path("/etc/bridge")], 2) == "/etc/admin, /etc/bridge"
    assert token_places(tmp_path, [], 2) == "your configuration"


def seen_by(kind: type[Settings] | None, tmp_path: Path) -> set[str]:
    child = processes.start("env", ["/usr/bin/env"], kind=kind, log=tmp_path / "log")
    assert child.process.wait(120) == 0
    return {line.partition("=")[0] for line in (tmp_path / "log").read_text().splitlines()}


def test_a_process_sees_no_settings_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, node = {"FUMEHOOD_API_TOKEN", "DAGNATS_BRIDGE_TOKEN"}, {"FUMEHOOD_WORKER_API_TOKEN"}
    both = {"FUMEHOOD_HOST"}
    for name in server | node | both:
        monkeypatch.setenv(name, "x")
    assert (server | node | both) & seen_by(ServerSettings, tmp_path) == server | both
    assert (server | node | both) & seen_by(NodeSettings, tmp_path) == node | both
    others = seen_by(None, tmp_path)
    assert "PATH" in others
    assert not {name for name in others if name.startswith(("FUMEHOOD_", "DAGNATS_"))}


FREE = ("--http-port", "0", "--grpc-port", "0")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--http-port", "70000"], "--http-port must be between 0 and 65535"),
        (["--http-port", "0", "--grpc-port", "70000"], "--grpc-port must be between 0 and 65535"),
        ([*FREE, "--nats-port", "-1"], "--nats-port must be between 0 and 65535"),
        ([*FREE, "--state", "/proc/nope"], "--state /proc/nope cannot be used: No such file or directory"),
        ([*FREE, "--ready-file", "/nowhere/x"], "the ready file /nowhere/x cannot be written"),
    ],
)
def test_what_dev_cannot_do_is_one_sentence(options: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "fumehood", "dev", "--no-node", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fumehood: {sentence}")
    assert len(done.stderr.splitlines()) == 1


def test_a_private_file_is_written_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    target = tmp_path / "ready"
    target.write_text("old")
    target.chmod(0o666)
    write_private(target, "new")
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new\n", 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


@pytest.mark.parametrize("link", [True, False], ids=["link", "file"])
def test_a_draft_that_somebody_planted_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    planted, victim = tmp_path / ".drawn", tmp_path / "victim"
    monkeypatch.setattr("fumehood.settings.token_file.secrets.token_hex", lambda _: "drawn")
    victim.write_text("")
    planted.symlink_to(victim) if link else planted.touch(0o666)
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "ready", "secret")
    assert (victim.read_text(), planted.read_text(), (tmp_path / "ready").exists()) == ("", "", False)


def test_nobody_can_guess_where_a_draft_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[str] = []
    replace = Path.replace

    def seen(self: Path, target: Path) -> Path:
        drafts.append(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    for _ in range(2):
        write_private(tmp_path / "ready", "secret")
    assert len(set(drafts)) == 2


def test_a_draft_that_cannot_be_used_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path / "ready", "secret")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_a_ready_file_of_an_earlier_process_is_taken_away(tmp_path: Path) -> None:
    stale = tmp_path / "ready"
    stale.write_text("{}")
    clear_ready(stale)
    assert not stale.exists()
    clear_ready(stale)
    clear_ready(None)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        clear_ready(tmp_path)


@pytest.mark.parametrize("command", ["server", "node"])
def test_a_process_that_does_not_start_leaves_no_stale_ready_file(tmp_path: Path, command: str) -> None:
    stale = tmp_path / "ready"
    stale.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = [sys.executable, "-m", "fumehood", command, "--ready-file", str(stale), "--port", "0"]
        words += ["--nats", f"nats://127.0.0.1:{silent.getsockname()[1]}"] if command == "server" else []
        words += ["--state", "/proc/nope"] if command == "node" else []
        child = processes.start(command, words, log=tmp_path / "log", stop_seconds=10)
        try:
            wait_until(lambda: not stale.exists())
        finally:
            child.stop()


def test_dev_asks_the_node_why_it_is_not_ready(not_ready: int) -> None:
    assert dev._why_not(not_ready) == "runtime nonsuch cannot run a sandbox"


def test_a_node_that_does_not_listen_yet_says_nothing() -> None:
    assert dev._why_not(held_port()) == ""


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
