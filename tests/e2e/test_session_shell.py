"""Sessions as somebody uses them: the real command line in a real terminal (tmux), two servers behind one address, a
worker, and containers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.console_process import ConsoleCell, WorkerProcess
from tests.receipt_check import checked, sha256
from tests.server_process import ServerProcess
from tests.waiting import wait_until

SECONDS = 60.0
ROWS, COLUMNS = 30, 100
PROMPT = "here> "
SCOPES = ["sandboxes:read", "sandboxes:write"]


class Balancer:
    """One address for all servers: a connection goes to the first one that takes it."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self._servers = servers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            for server in self._servers:
                host, _, port = server.url.removeprefix("http://").partition(":")
                try:
                    far = socket.create_connection((host, int(port)))
                except OSError:
                    continue
                with far:
                    back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                    back.start()
                    _pump(near, far)
                    back.join()
                return


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Place:
    """Where the command line is used."""

    cell: ConsoleCell
    worker: WorkerProcess
    folder: Path
    env: dict[str, str]

    def run(self, *words: str, code: int = 0, given: bytes | None = None) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "fumehood", "session", *words],
            cwd=self.folder, env=self.env, input=given, stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-2000:])
        assert b"Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, base_image: str) -> Iterator[Place]:
    if shutil.which("tmux") is None:
        unavailable("no tmux: scripts/services up installs it")
    folder = tmp_path_factory.mktemp("place")
    with ConsoleCell(folder / "cell", base_image, servers=2, worker_env={"FUMEHOOD_RUNTIME": "runc"}) as cell:
        worker = cell.worker()
        key = cell.ask("POST", "/v1/keys", json={"name": "shell", "tenant": "acme", "scopes": SCOPES})
        balancer = Balancer(cell.servers)
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "FUMEHOOD_URL": balancer.url,
            "FUMEHOOD_API_KEY": key["key"],
        }
        yield Place(cell, worker, folder, env)
        balancer.close()


@pytest.fixture(scope="module")
def session(place: Place) -> Iterator[str]:
    """One for all: whoever leaves a shell leaves it running, and nobody minds."""
    made = place.run("new", "--lease", "10m").decode().strip()
    yield made
    place.run("rm", made)


class Tmux:
    """A terminal with a shell of this machine in it."""

    def __init__(self, place: Place) -> None:
        self._socket = f"fumehood-{secrets.token_hex(6)}"
        self._env = place.env
        self.printed = place.folder / f"{self._socket}.out"
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-s", "main", "bash --norc --noprofile")
        self._tmux("pipe-pane", "-o", f"cat >> {self.printed}")
        self.type(f"PS1='{PROMPT}'; clear")
        self.until(lambda shown: shown.rstrip("\n").startswith(PROMPT.rstrip()))

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._socket, *words]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True).stdout

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def shown(self, *, colours: bool = False) -> str:
        """The screen, and what has rolled out of it."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-500", *(["-e"] if colours else []))

    def until(self, holds: Callable[[str], bool], *, colours: bool = False, seconds: float = SECONDS) -> str:
        shown = ""

        def look() -> bool:
            nonlocal shown
            shown = self.shown(colours=colours)
            return holds(shown)

        wait_until(look, seconds, what=lambda: shown)
        return shown

    def sees(self, text: str) -> str:
        """On a line of its own, so that what was typed does not count."""
        return self.until(lambda shown: any(line.rstrip() == text for line in shown.splitlines()))

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@pytest.fixture
def tmux(place: Place) -> Iterator[Tmux]:
    made = Tmux(place)
    yield made
    made.close()


@pytest.fixture
def inside(tmux: Tmux, session: str) -> Tmux:
    """A shell in the session."""
    tmux.type("stty -a | sha256sum")
    tmux.until(lambda shown: re.search(r"^[0-9a-f]{64} ", shown, re.MULTILINE) is not None)
    tmux.type(f"fumehood session shell {session}; echo left with $?")
    begin(tmux)
    return tmux


def begin(tmux: Tmux) -> None:
    """Whatever the shell's prompt is, it answers."""
    mark = secrets.token_hex(4)
    tmux.until(lambda shown: re.search(r"[$#] ?$", shown.rstrip("\n").splitlines()[-1]) is not None)
    tmux.type(f"PS1='there> '; echo {mark[:4]}''{mark[4:]}")
    tmux.sees(mark)


def test_a_command_has_its_receipt(place: Place, session: str) -> None:
    """Through two servers, from the worker that ran it."""
    command = place.run("exec", "--background", session, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    command_id = command.decode().strip()
    place.run("logs", "--follow", session, command_id)
    place.run("receipt", session, command_id, "-o", str(place.folder / "receipt.json"))
    receipt = json.loads((place.folder / "receipt.json").read_bytes())
    found = checked(receipt, place.worker.folder / "state", place.worker.worker_id)
    assert (found.digest_of("stdout"), found.digest_of("stderr")) == (sha256(b"out\n"), sha256(b"err\n"))
    assert (found.predicate.outcome.exit_code, found.predicate.request.tenant) == (3, "acme")
    body = {"capability": "terminalExec", "payload": {"command": "echo hi"}, "wait_ms": 60_000}
    said = place.cell.ask("POST", "/v1/commands", json=body)
    receipt = place.cell.ask("GET", f"/v1/commands/{said['command_id']}/receipt")
    found = checked(receipt, place.worker.folder / "state", place.worker.worker_id)
    assert found.digest_of("stdout") == found.digest_of("stdout.returned") == sha256(b"hi\n")
    listed = place.cell.ask("GET", "/v1/workers")["workers"]
    keys = {one["worker_id"]: one["metadata"].get("receipt_key") for one in listed}
    assert sha256(bytes.fromhex(keys[place.worker.worker_id])) == found.predicate.worker.key_id


def test_a_shell_has_colours_and_the_size_of_the_terminal(inside: Tmux) -> None:
    inside.type("printf '\\033[1;32mgreen\\033[0m\\n'; echo $TERM; tput colors 2>/dev/null || true")
    shown = inside.until(lambda shown: "green" in shown.replace("mgreen", "green") and "\x1b[1m" in shown, colours=True)
    assert re.search(r"\x1b\[(?:1m\x1b\[)?(?:1;)?32m?green", shown) or "\x1b[32mgreen" in shown
    assert "no name" not in shown
    inside.type("stty size")
    inside.sees(f"{ROWS} {COLUMNS}")
    inside.resize(120, 40)
    inside.type('until [ "$(stty size)" = "40 120" ]; do sleep 0.05; done; echo grown')
    inside.sees("grown")


def test_ctrl_c_goes_to_the_program_and_ctrl_d_ends_the_shell(inside: Tmux) -> None:
    inside.type("echo sleeping; sleep 600")
    inside.sees("sleeping")
    inside.press("C-c")
    inside.type("echo it said $?")
    inside.sees("it said 130")
    inside.type("(exit 7)")
    inside.press("C-d")
    inside.sees("left with 7")
    inside.type("stty -a | sha256sum")
    shown = inside.until(lambda shown: len(re.findall(r"^[0-9a-f]{64} ", shown, re.MULTILINE)) == 2)
    before, after = re.findall(r"^([0-9a-f]{64}) ", shown, re.MULTILINE)
    assert before == after, "the terminal is what it was"


def test_ten_megabytes_are_printed_whole(place: Place, inside: Tmux, session: str) -> None:
    lines = [f"{number:09d}" for number in range(1_048_576)]
    content = "".join(f"{line}\n" for line in lines).encode()
    assert len(content) == 10 * 1024 * 1024
    (place.folder / "big").write_bytes(content)
    place.run("cp", "big", f"{session}:big")
    inside.type("clear; cat big; sha256sum big")
    inside.until(lambda shown: hashlib.sha256(content).hexdigest() in shown)
    printed = inside.printed.read_bytes()
    assert content.replace(b"\n", b"\r\n") in printed, "every line came, once and in order"


def test_who_leaves_may_come_back(place: Place, inside: Tmux, session: str) -> None:
    inside.type("kept='still here'; echo before leaving")
    inside.sees("before leaving")
    inside.press("C-p", "C-q")
    shown = inside.sees("left with 0")
    found = re.search(rf"fumehood session attach {session} \S+?(?=`)", shown.replace("\n", ""))
    assert found is not None, shown
    assert b"running" in place.run("ps", session)
    inside.type("clear")
    inside.type(f"{found[0]}; echo left with $?")
    inside.sees("before leaving")
    inside.type("echo $kept")
    inside.sees("still here")
    inside.type("exit 3")
    inside.sees("left with 3")


@contextlib.contextmanager
def killed_server(place: Place) -> Iterator[None]:
    """The one that the connections go through, and that the worker dialled first."""
    place.cell.servers[0].kill()
    yield
    place.cell.servers[0].launch()
    place.cell.servers[0].wait()


@contextlib.contextmanager
def handed_over_worker(place: Place) -> Iterator[None]:
    assert place.worker.send(signal.SIGUSR2) == 0
    place.worker.start()
    yield


@pytest.mark.parametrize("trouble", [killed_server, handed_over_worker])
def test_what_happens_behind_it_is_not_noticed(
    place: Place, inside: Tmux, trouble: Callable[[Place], contextlib.AbstractContextManager[None]]
) -> None:
    """While a program prints and somebody types."""
    inside.type("clear; for n in $(seq 1 300); do echo line $n; sleep 0.02; done; read word; echo got $word")
    inside.until(lambda shown: "line 20\n" in shown)
    with trouble(place):
        inside.type("typed meanwhile")
        inside.sees("got typed meanwhile")
    told = re.findall(r"line (\d+)\n", inside.printed.read_text())  # what is typed is echoed between lines
    assert told == [str(number) for number in range(1, 301)], "nothing is lost, nothing is twice"


def test_commands_and_files_without_a_terminal(place: Place, session: str) -> None:
    assert place.run("exec", session, "--", "tr", "a-z", "A-Z", given=b"piped\n") == b"PIPED\n"
    assert place.run("exec", session, "--shell", "-n", "--", "echo out; exit 9", code=9) == b"out\n"
    data = os.urandom(3_000_000)
    assert place.run("exec", session, "--", "cat", given=data) == data
    assert place.run("exec", session, "--", "head", "-c", "3", given=data) == data[:3], "input that nobody reads"
    source = place.folder / secrets.token_hex(4)
    (source / "deep").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep/data").write_bytes(data)
    (source / "tool").write_text("#!/bin/sh\necho runs\n")
    (source / "tool").chmod(0o755)
    place.run("cp", "-r", str(source), f"{session}:things")
    assert place.run("exec", session, "--", "things/tool") == b"runs\n"
    place.run("exec", session, "--shell", "-n", "--", "ln -s /etc/passwd things/link; mkfifo things/fifo")
    place.run("cp", "-r", f"{session}:things", str(source) + "-back")
    back = {str(one.relative_to(str(source) + "-back")) for one in Path(str(source) + "-back").rglob("*")}
    assert back == {"deep", "deep/data", "empty", "tool"}
    assert (Path(str(source) + "-back") / "deep/data").read_bytes() == data
    place.run("cp", "-", f"{session}:/tmp/note", given=b"note")
    assert place.run("cp", f"{session}:/tmp/note", "-") == b"note"
    background = place.run("exec", session, "-d", "--", "sh", "-c", "echo begun; sleep 600").decode().strip()
    assert place.run("kill", session, background, "-s", "KILL") == f"SIGKILL was sent to {background}\n".encode()
    assert place.run("attach", session, background, code=137) == b"begun\n"
    assert place.run("logs", session, background) == b"begun\n"
    place.run("exec", session, "-n", "--timeout", "1s", "--", "sleep", "600", code=124)
    place.run("exec", session, "-n", "--", "no-such-program", code=125)
    assert session.encode() in place.run("ls")
