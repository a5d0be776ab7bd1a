"""The command line as somebody uses it: real commands, a real server, a real broker."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.broker_bench import NatsServer
from tests.http_worker import EVERY_KIND, FRAGILE, HttpWorker
from tests.server_process import ServerProcess
from tests.typed import typed
from tests.waiting import wait_until

PATIENCE = 180.0


class Proxy:
    """Stands before a server, and can cut all connections at once."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Cell:
    """A server with a worker, and the command line for it."""

    def __init__(self, server: ServerProcess, worker: HttpWorker, folder: Path) -> None:
        self.server, self.worker, self.folder = server, worker, folder
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "FUMEHOOD_URL": server.url,
            "FUMEHOOD_API_KEY": server.token,
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fumehood", *words]

    def run(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        done = typed(*words, folder=self.folder, env=self.env | dict(env or {}))
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 or done.stdout else done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))

    def start(self, *words: str, url: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.env | {"FUMEHOOD_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, run_id: str, look: Callable[[dict[str, Any]], bool]) -> None:
        with self.server.client() as client:
            wait_until(lambda: look(client.get(f"/v1/runs/{run_id}").raise_for_status().json()))


def waits(run: dict[str, Any]) -> bool:
    """For people: everything else that can be done is done."""
    statuses = {name: step["status"] for name, step in run["steps"].items()}
    return (statuses.get("ask"), statuses.get("paid"), statuses.get("pack")) == (
        "awaiting_approval",
        "listening",
        "completed",
    )


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("cell")
    nats = NatsServer(folder / "nats", 1)
    nats.start()
    try:
        with ServerProcess(folder, nats) as server, HttpWorker(server) as worker:
            made = Cell(server, worker, folder)
            (folder / "order.yaml").write_text(EVERY_KIND)
            (folder / "fragile.yaml").write_text(FRAGILE)
            made.run("workflow", "apply", "order.yaml", "fragile.yaml")
            yield made
    finally:
        nats.kill()


INPUT = json.dumps({"who": "you", "items": ["cup", "plate"]})


def test_a_run_from_its_start_to_its_output(cell: Cell) -> None:
    started = cell.run("workflow", "run", "order", "--input", INPUT, "--label", "team=core", "--key", "k-1")
    run_id = started.strip()
    assert cell.run("workflow", "run", "order", "--input", INPUT, "--label", "team=core", "--key", "k-1") == started
    cell.until(run_id, waits)
    assert "waits for somebody: ship it?" in cell.run("runs", "show", run_id)
    cell.run("runs", "signal", run_id, "paid", "--data", '{"euros": 3}')
    cell.run("runs", "approve", run_id, "--comment", "fine")
    ended = cell.json("workflow", "run", "order", "--input", INPUT, "--label", "team=core", "--key", "k-1", "--wait")
    assert ended["output"] == {
        "said": "hello the hello you",
        "paid": {"euros": 3},
        "packed": ["hello cup", "hello plate"],
    }
    told = cell.run("runs", "logs", run_id, "ask")
    assert [line.split("  ")[-1].strip() for line in told.splitlines()] == [
        "waits for an approval",
        "approved by admin: fine",
    ]
    found = cell.json("runs", "ls", "--workflow", "order", "--label", "team=core", "--since", "1h")
    assert [run["run_id"] for run in found["runs"]] == [run_id]


def test_a_run_that_fails_is_found_repaired_and_goes_on(cell: Cell) -> None:
    cell.worker.is_bad.set()
    ended = cell.json("workflow", "run", "fragile", "--wait", code=1)
    run_id = ended["run_id"]
    assert (ended["status"], ended["error"]["code"]) == ("failed", "bad_mood")
    dead = cell.json("runs", "dead-letters")["runs"]
    assert [(run["run_id"], run["failed_step"]) for run in dead] == [(run_id, "break")]
    cell.worker.is_bad.clear()
    lines = cell.run("runs", "retry", run_id, "--reason", "slept well", "--watch").splitlines()
    assert lines[-1].endswith("  succeeded")
    assert sum("before" in line and "completed" in line for line in lines) == 1
    assert any("retried by admin: slept well" in line for line in lines)
    assert cell.json("runs", "dead-letters")["runs"] == []


def test_whoever_watches_sees_each_event_once_however_often_the_line_breaks(cell: Cell) -> None:
    proxy = Proxy(cell.server.url)
    run_id = cell.run("workflow", "run", "order", "--input", INPUT).strip()
    watching = cell.start("runs", "watch", run_id, "--json", url=proxy.url)
    seen: list[dict[str, Any]] = []
    try:
        assert watching.stdout is not None
        for line in watching.stdout:
            seen.append(json.loads(line))
            proxy.cut()
            if seen[-1]["type"] == "approval.requested":
                cell.run("runs", "signal", run_id, "paid")
                cell.run("runs", "approve", run_id, "ask")
        assert watching.wait(PATIENCE) == 0
    finally:
        watching.kill()
        watching.communicate()
        proxy.close()
    with cell.server.client() as client:
        records = client.get(f"/v1/runs/{run_id}/history").json()["records"]
    told = [(record["seq"], event["type"]) for record in records for event in record["events"]]
    assert [(event["seq"], event["type"]) for event in seen] == told
    assert told[-1][1] == "run.succeeded"


def test_an_interrupted_watch_leaves_the_run_alone(cell: Cell) -> None:
    run_id = cell.run("workflow", "run", "order", "--input", INPUT).strip()
    watching = cell.start("runs", "watch", run_id, url=cell.server.url)
    assert watching.stdout is not None
    assert "started" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, f"{run_id} goes on" in errors) == (130, True)
    cell.until(run_id, waits)
    assert cell.run("runs", "stop", run_id, "--reason", "enough", "--wait") == f"{run_id} has ended: cancelled\n"


def test_a_key_opens_what_it_may_and_nothing_when_it_is_revoked(cell: Cell) -> None:
    made = cell.json("key", "create", "reader", "--scope", "runs:read", "--out", "key")
    file = cell.folder / "key"
    assert "key" not in made
    as_reader = {"FUMEHOOD_API_KEY": file.read_text().strip()}
    assert json.loads(cell.run("runs", "ls", "--json", env=as_reader)) == cell.json("runs", "ls")
    assert "forbidden" in cell.run("workflow", "run", "order", code=1, env=as_reader)
    assert made["id"] in cell.run("key", "ls")
    cell.run("key", "revoke", made["id"])
    refused = cell.run("runs", "ls", code=1, env=as_reader)
    assert "rejected this key" in refused
    assert as_reader["FUMEHOOD_API_KEY"] not in refused

    def actions() -> set[str]:
        return {entry["action"] for entry in cell.json("audit", "--target", made["id"])["entries"]}

    wait_until(lambda: actions() >= {"key.created", "key.revoked"})


def test_schedules_workers_tenants_and_the_index(cell: Cell) -> None:
    made = cell.json(
        "schedule", "set", "nightly", "--workflow", "fragile", "--cron", "0 3 * * *", "--timezone", "Asia/Tokyo"
    )
    assert (made["cron"], made["timezone"], made["paused"]) == ("0 3 * * *", "Asia/Tokyo", False)
    assert cell.json("schedule", "set", "nightly", "--cron", "@daily")["timezone"] == "Asia/Tokyo"
    assert cell.json("schedule", "pause", "nightly")["paused"]
    run_id = cell.run("schedule", "trigger", "nightly").strip()
    cell.until(run_id, lambda run: run["status"] == "succeeded")
    cell.run("schedule", "rm", "nightly")
    assert cell.json("schedule", "ls")["schedules"] == []
    assert cell.run("worker", "limit", "greet", "100/s", "--burst", "5") == "greet: 100/s, 5 at once\n"
    assert [one["task_type"] for one in cell.json("worker", "ls")["task_types"]] == ["greet"]
    cell.run("worker", "limit", "greet", "none")
    assert cell.json("tenant", "set", "acme", "--max-runs", "5") == {"tenant": "acme", "max_runs": 5}
    assert cell.json("runs", "reindex", "--wait")["state"] == "ready"


def test_no_server_and_a_wrong_name_are_one_line_each(cell: Cell) -> None:
    assert cell.run("workflow", "show", "ordre", code=1) == "fumehood: no such workflow: ordre; did you mean order?\n"
    away = cell.run("runs", "ls", code=3, env={"FUMEHOOD_URL": "http://127.0.0.1:1"})
    assert len(away.splitlines()) == 1


def test_words_are_completed(cell: Cell) -> None:
    env = {"_FUMEHOOD_COMPLETE": "complete_bash", "COMP_WORDS": "fumehood runs dea", "COMP_CWORD": "2"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fumehood"))],
        env=cell.env | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["dead-letters"]


# --- a real terminal ---------------------------------------------------------------------------------------

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MOVES = re.compile(r"\x1b\[[0-9;?]*[ABCDEFGHJKhl]")


def in_terminal(cell: Cell, width: int, *words: str, during: Callable[[], None]) -> tuple[int, str]:
    """The exit code and everything that a terminal of this width was sent."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = cell.env | {"TERM": "xterm-256color"}
    process = subprocess.Popen(cell.command(*words), cwd=cell.folder, env=env, stdin=far, stdout=far, stderr=far)
    os.close(far)
    sent, told, end = b"", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            if not select.select([near], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(near, 65_536)
            except OSError:  # the other end is closed
                break
            sent += data
            if not told and b"ship it?" in sent:
                told = True
                during()
        return process.wait(PATIENCE), sent.decode()
    finally:
        process.kill()
        process.wait()
        os.close(near)


@pytest.mark.parametrize("width", [80, 200])
def test_the_screen_of_watch_in_a_terminal(cell: Cell, width: int) -> None:
    run_id = cell.run("workflow", "run", "order", "--input", INPUT).strip()

    def decide() -> None:
        with cell.server.client() as client:
            client.post(f"/v1/runs/{run_id}/signals/paid", json={}).raise_for_status()
            client.post(f"/v1/runs/{run_id}/steps/ask:approve", json={}).raise_for_status()

    code, sent = in_terminal(cell, width, "runs", "watch", run_id, during=decide)
    assert code == 0
    assert MOVES.search(sent), "the screen was drawn anew in its place"
    assert "\x1b[32m" in sent, "a terminal has colours"
    last = ESCAPE.sub("", sent[[found.end() for found in MOVES.finditer(sent)][-1] :])
    lines = last.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= width
    kinds = ["task greet", "map greet", "approval", "signal paid", "task greet"] if width > 140 else [""] * 5
    wanted = [("✓", "find"), ("├─✓", "pack"), ("├─│─✓", "ask"), ("✓ │ │", "paid"), ("✓─┴─╯", "ship")]
    shown = [line for line in lines if "completed" in line][:5]
    for line, (rail, name), kind in zip(shown, wanted, kinds, strict=True):
        assert line.startswith(f"{rail:<7}{name}"), line
        assert kind in line
    assert lines[0].startswith("order  succeeded")
