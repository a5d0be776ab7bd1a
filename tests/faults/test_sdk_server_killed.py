"""A program that uses the SDK, while the only server dies without a word and comes back: every byte once, both ways."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood import Client, Sandbox
from tests.console_process import ConsoleCell
from tests.server_process import ServerProcess

LINES = 80
COUNT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.1; done"
PATIENCE = 240.0


@pytest.fixture(scope="module")
def cell(docker_socket: Path, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleCell]:
    with ConsoleCell(tmp_path_factory.mktemp("sdk"), python_image, servers=1) as made:
        made.worker()
        yield made


@pytest.fixture
def sandbox(cell: ConsoleCell) -> Iterator[Sandbox]:
    server = cell.servers[0]
    with Client(server.url, key=server.token) as client, Sandbox.create(client=client, lease_seconds=600) as made:
        yield made


def killed_and_started_again(server: ServerProcess) -> None:
    """At the same addresses."""
    server.kill()
    server._words[1] = server.url.rpartition(":")[2]
    server._env["FUMEHOOD_GRPC_PORT"] = server.grpc_target.rpartition(":")[2]
    server.launch()
    server.wait()


@pytest.mark.storm
def test_whoever_reads_along_misses_nothing_and_reads_nothing_twice(cell: ConsoleCell, sandbox: Sandbox) -> None:
    heard: list[str] = []
    some = threading.Event()

    def hear(text: str) -> None:
        heard.append(text)
        if "line 10\n" in "".join(heard):
            some.set()

    results = []
    thread = threading.Thread(target=lambda: results.append(sandbox.commands.run(COUNT, on_stdout=hear)))
    thread.start()
    assert some.wait(PATIENCE)
    killed_and_started_again(cell.servers[0])
    thread.join(PATIENCE)
    (result,) = results
    assert (result.status, result.exit_code, result.stdout_truncated) == ("exited", 0, False)
    assert result.stdout == "".join(heard) == "".join(f"line {number}\n" for number in range(LINES))


@pytest.mark.storm
def test_what_is_sent_meanwhile_arrives_once(cell: ConsoleCell, sandbox: Sandbox) -> None:
    command = sandbox.commands.start("cat", stdin=True)
    command.send("before ")
    dying = threading.Thread(target=killed_and_started_again, args=(cell.servers[0],))
    dying.start()
    for number in range(20):
        command.send(f"{number} ", timeout=PATIENCE)
        time.sleep(0.1)  # so that some of them meet a server that is away
    dying.join(PATIENCE)
    command.close_stdin()
    result = command.wait(timeout=PATIENCE)
    assert result.stdout == "before " + "".join(f"{number} " for number in range(20))
