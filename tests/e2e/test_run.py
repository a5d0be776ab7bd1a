"""`fumehood run` as somebody uses it: a real command, server, broker, node and sandbox, of which some are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli.processes import held_port
from fumehood.verify.receipt import Statement
from tests.conformance.broker_bench import NODE, NatsServer
from tests.node_process import NodeProcess, write_token
from tests.receipt_check import checked, sha256
from tests.server_process import ServerProcess

PATIENCE = 420.0
RUN_ID = re.compile(r"[0-9a-f]{32}")


class Cell:
    """A broker, a server that comes back where it was, a node, and the command line for them."""

    def __init__(self, folder: Path, nats: NatsServer, server: ServerProcess, node: NodeProcess, image: str) -> None:
        self.nats, self.server, self.node, self.image = nats, server, node, image
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "FUMEHOOD_URL": server.url,
            "FUMEHOOD_API_KEY": server.token,
        }

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "fumehood", *words],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # `communicate` passes by what `readline` took ahead
        )

    def type(self, *words: str) -> tuple[int, bytes, str]:
        """Exit code, stdout, stderr."""
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE)
        assert b"Traceback" not in err, err.decode()
        return process.returncode, out, err.decode()

    def run(self, *words: str) -> tuple[int, bytes, str]:
        return self.type("run", self.image, *words)

    def checked(self, receipt: Path) -> Statement:
        """What the node signed, by its key."""
        return checked(json.loads(receipt.read_bytes()), self.node.state_dir, self.node.signs_as)

    def shell(self, script: str, *options: str) -> tuple[int, bytes, str]:
        return self.run(*options, "--", "bash", "-c", script)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, base_image: str) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("cell")
    nats = NatsServer(folder / "nats", 1)
    nats.start()
    options = nats.options(NODE)
    write_token(folder / "node.password", str(options.password))
    env = {
        "FUMEHOOD_NATS_SERVERS": options.servers[0],
        "FUMEHOOD_NATS_USER": NODE.name,
        "FUMEHOOD_NATS_PASSWORD_FILE": str(folder / "node.password"),
    }
    try:
        with ServerProcess(folder, nats, port=held_port()) as server, NodeProcess(folder, env=env) as node:
            yield Cell(folder, nats, server, node, base_image)
    finally:
        nats.kill()


def lines(process: subprocess.Popen[bytes], many: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(many)]


# --- what comes out ----------------------------------------------------------------------------------------


def test_streams_and_exit_code_are_those_of_the_command(cell: Cell) -> None:
    code, out, err = cell.shell("printf 'häh\\n\\ttab no end'; echo oh >&2; exit 42")
    assert (code, out, err) == (42, "häh\n\ttab no end".encode(), "oh\n")


def test_arguments_and_variables_arrive_as_they_were_typed(cell: Cell) -> None:
    code, out, _ = cell.run("--env", "GREETING=a  b=c", "--", "bash", "-c", 'echo "$GREETING" "$@"', "-", "--cpu", "*")
    assert (code, out) == (0, b"a  b=c --cpu *\n")


@pytest.mark.parametrize(
    ("script", "options", "code", "words"),
    [
        ("sleep 600", ["--timeout", "1s"], 124, "took longer than its --timeout"),
        ("tail /dev/zero", ["--memory", "64"], 137, "more memory than --memory gave it"),
        ("kill -ABRT $$", [], 134, "ended by a signal"),
    ],
)
def test_other_ends_are_told(cell: Cell, script: str, options: list[str], code: int, words: str) -> None:
    ended, out, err = cell.shell(script, *options)
    assert (ended, out) == (code, b"")
    assert words in err.splitlines()[-1]


def test_what_cannot_be_started_says_so(cell: Cell) -> None:
    code, _, err = cell.run("--", "no-such-program")
    assert (code, 'did not start: "no-such-program" was not found' in err) == (127, True)


def test_a_denial_is_told_in_words(cell: Cell) -> None:
    code, out, err = cell.type("run", "registry.invalid/x:1")
    assert (code, out) == (125, b"")
    assert "✗ the registry: " in err
    assert err.splitlines()[0].endswith("(registry_not_allowed)")
    assert len(err.splitlines()) == 3


def test_for_programs_everything_is_in_one_document(cell: Cell) -> None:
    code, out, err = cell.shell("echo a; echo b >&2; exit 3", "--json")
    found = json.loads(out)
    assert (code, err) == (3, "")
    assert (found["exit_code"], found["stdout"], found["stderr"], found["reason"]) == (3, "a\n", "b\n", "exit")


def test_a_receipt_is_of_all_that_was_printed(cell: Cell, tmp_path: Path) -> None:
    """Also where that is more than anybody keeps."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x; echo oh >&2; exit 3"
    code, _, _ = cell.shell(script, "--receipt", str(tmp_path / "receipt.json"))
    found = cell.checked(tmp_path / "receipt.json")
    assert code == 3
    assert found.digest_of("stdout") == sha256(b"x" * 3_000_000)
    assert found.digest_of("stderr") == sha256(b"oh\n")
    assert found.digest_of("stdout.returned") == sha256(b"x" * 65_536)
    claim = found.predicate
    assert (claim.outcome.status, claim.outcome.exit_code) == ("failed", 3)
    assert claim.image is not None
    assert claim.image.evidence["resolved_digest"] == claim.image.digest
    assert claim.observed["isolation"]["network"] == "none"
    again = cell.type("runs", "receipt", str(claim.task["run_id"]), "-o", str(tmp_path / "again.json"))
    assert again == (0, b"", "")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "receipt.json").read_bytes()
    shown = cell.type("runs", "receipt", str(claim.task["run_id"]), "run")
    assert shown == (0, (tmp_path / "receipt.json").read_bytes(), "")


def test_where_there_is_no_receipt_somebody_says_so(cell: Cell, tmp_path: Path) -> None:
    code, _, err = cell.run("--receipt", str(tmp_path / "none" / "receipt.json"), "--", "true")
    assert (code, "its folder is not there" in err) == (2, True)
    run_id = cell.shell("sleep 600", "--detach")[1].decode().strip()
    code, _, err = cell.type("runs", "receipt", run_id)
    assert (code, "has not ended" in err) == (1, True)
    assert cell.type("runs", "stop", run_id, "--wait")[0] == 0


def test_the_same_key_is_the_same_run(cell: Cell) -> None:
    words = ("--idempotency-key", "e2e-once", "--detach", "--", "date", "+%N")
    first, second = cell.run(*words), cell.run(*words)
    assert first == second
    run_id = first[1].decode().strip()
    assert RUN_ID.fullmatch(run_id)
    shown = [cell.run("--idempotency-key", "e2e-once", "--", "date", "+%N")[1] for _ in range(2)]
    assert shown[0] == shown[1] != b""
    assert cell.type("runs", "logs", run_id)[1] == shown[0]


# --- whatever is killed ------------------------------------------------------------------------------------

COUNT = "for n in $(seq 1 40); do echo $n; echo e$n >&2; sleep 0.2; done"


@pytest.mark.parametrize("victim", ["server", "broker"])
def test_nothing_is_missed_or_repeated_when_somebody_dies(cell: Cell, victim: str) -> None:
    process = cell.start("run", cell.image, "--", "bash", "-c", COUNT)
    first = lines(process, 3)
    if victim == "server":
        cell.server.kill()
        cell.server.launch()
        cell.server.wait()
    else:
        cell.nats.kill()
        cell.nats.start()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    assert (b"".join(first) + out).split() == [str(n).encode() for n in range(1, 41)]
    assert [line for line in err.decode().splitlines() if not line.startswith("fumehood:")] == [
        f"e{n}" for n in range(1, 41)
    ]


# --- Ctrl-C ------------------------------------------------------------------------------------------------

POLITE = "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM; echo here; while :; do sleep 0.1; done"


def test_an_interrupt_stops_the_run_and_shows_its_last_words(cell: Cell, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    process = cell.start("run", cell.image, "--receipt", str(receipt), "--", "bash", "-c", POLITE)
    assert lines(process, 1) == [b"here\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, b"bye\n"), err.decode()
    assert cell.checked(receipt).digest_of("stdout") == sha256(b"here\nbye\n"), "nobody took its report, but its log"
    said = err.decode().splitlines()
    assert said[0].endswith("Ctrl-C again does not wait for its end")
    assert said[-1].endswith("was stopped")


def test_a_second_interrupt_does_not_wait(cell: Cell) -> None:
    process = cell.start("run", cell.image, "--", "bash", "-c", STUBBORN)
    assert lines(process, 1) == [b"here\n"]
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    first = process.stderr.readline().decode()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err.decode().count("not waiting")) == (130, 1)
    found = RUN_ID.search(first)
    assert found is not None
    assert cell.type("runs", "stop", found[0], "--wait")[1] == f"{found[0]} has ended: stopped\n".encode()


# --- beside it ---------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_is_followed_and_stopped(cell: Cell) -> None:
    _, out, _ = cell.shell("echo here; sleep 600", "--detach")
    run_id = out.decode().strip()
    following = cell.start("runs", "logs", run_id, "--follow")
    assert lines(following, 1) == [b"here\n"]
    assert cell.type("runs", "stop", run_id)[1] == f"{run_id} was asked to end\n".encode()
    assert following.communicate(timeout=PATIENCE)[0] == b""
    assert following.returncode == 0


def test_a_node_is_seen_by_whoever_looks(cell: Cell) -> None:
    """Moments after it is ready."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + PATIENCE
    while not found and time.monotonic() < end:
        workers = json.loads(cell.type("worker", "ls", "--json")[1])["workers"]
        found = [one for one in workers if "fumehood.sandbox" in one["task_types"]]
    assert [(node["worker_id"], node["max_tasks"] > 0) for node in found] == [(NODE.name, True)]
