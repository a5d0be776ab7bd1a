"""The console and its workers, with whatever holds them together killed in the middle of a command.

Two servers, one worker with real containers, as processes. What is asked goes through the server that does not hold the
worker's stream, unless the test says otherwise.
"""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import TimeBounds
from tests.console_process import ConsoleCell, WorkerProcess, docker

COUNT = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo $$ > /tmp/done"
COUNTED = "".join(f"line {number}\n" for number in range(60))
HOLDER, OTHER = 0, 1
"""Where workers connect first, and where callers go."""


@pytest.fixture(scope="module")
def cell(docker_socket: Path, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleCell]:
    with ConsoleCell(tmp_path_factory.mktemp("console"), python_image) as cell:
        yield cell


@pytest.fixture
def worker(cell: ConsoleCell) -> Iterator[WorkerProcess]:
    worker = cell.worker(HOLDER, OTHER)
    yield worker
    worker.remove()


def background(cell: ConsoleCell, session: str, command: str) -> dict[str, Any]:
    body = {"command": command, "background": True}
    return dict(cell.ask("POST", f"/v1/sandboxes/{session}/commands", server=OTHER, json=body))


def everything(
    cell: ConsoleCell, session: str, command_id: str, *, server: int = OTHER
) -> tuple[bytes, dict[str, Any]]:
    """All that a command in a session printed, read as its output comes, and its end."""
    out = bytearray()
    with cell.servers[server].client() as client:
        path = f"/v1/sandboxes/{session}/commands/{command_id}/output"
        with client.stream("GET", path, timeout=240) as answer:
            name = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data" and name == "output":
                    said = json.loads(value)
                    assert said["offset"] == len(out)
                    out += base64.b64decode(said["data"])
                elif field == "data" and name == "end":
                    return bytes(out), json.loads(value)
    raise AssertionError(f"the stream ended without an end, after {len(out)} bytes")


def running(cell: ConsoleCell, session: str) -> str:
    """A command under way in a session that is there already; its id."""
    body = {"capability": "terminalExec", "payload": {"command": COUNT, "session_id": session}, "wait_ms": 0}
    return str(cell.ask("POST", "/v1/commands", server=OTHER, json=body)["command_id"])


def test_a_command_reaches_a_worker_at_the_other_server(cell: ConsoleCell, worker: WorkerProcess) -> None:
    for server in (HOLDER, OTHER):
        assert cell.command("echo", {"a": "ä\n"}, server=server)["result"] == {"a": "ä\n"}
    made = cell.terminal("echo kept > note; id -u", server=OTHER)["result"]
    again = cell.terminal("cat note", server=HOLDER, session_id=made["session_id"])["result"]
    assert (made["created"], made["stdout"], again["created"], again["stdout"]) == (True, "65532\n", False, "kept\n")


@pytest.mark.storm
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR2], ids=["killed", "handed over"])
def test_the_next_worker_takes_over_what_runs(cell: ConsoleCell, worker: WorkerProcess, how: signal.Signals) -> None:
    """SIGKILL and SIGUSR2 while commands run: the next one goes on, and nothing of their output is missing."""
    session = cell.terminal("echo state > kept", server=OTHER)["result"]["session_id"]
    command = running(cell, session)
    beside = background(cell, session, COUNT)
    (container,) = worker.containers()
    show = f"/v1/sandboxes/{session}"
    cell.until(lambda: cell.ask("GET", show, server=OTHER)["running_commands"] == 2, "both run", worker)
    code = worker.send(how)
    assert code == (0 if how is signal.SIGUSR2 else -9)
    assert worker.containers() == [container]
    worker.start()
    done = cell.ended(command, server=OTHER)
    assert (done["status"], done["result"]["stdout"], done["result"]["exit_code"]) == ("succeeded", COUNTED, 0)
    out, end = everything(cell, session, beside["command_id"])
    assert (out.decode(), end["status"], end["exit_code"]) == (COUNTED, "exited", 0)
    assert cell.terminal("cat kept", server=OTHER, session_id=session)["result"]["stdout"] == "state\n"
    assert worker.containers() == [container]


@pytest.mark.storm
def test_a_worker_that_is_told_to_go_takes_everything_along(cell: ConsoleCell, worker: WorkerProcess) -> None:
    session = cell.terminal("true", server=OTHER)["result"]["session_id"]
    assert len(worker.containers()) == 1
    assert worker.send(signal.SIGTERM) == 0
    assert worker.containers() == []
    left = [one["sandbox_id"] for one in cell.ask("GET", "/v1/sandboxes", server=OTHER)["sandboxes"]]
    assert session not in left
    worker.start()
    cell.until(lambda: worker.worker_id in cell.workers(), "it is back")
    body = {"capability": "terminalExec", "payload": {"command": "true", "session_id": session}}
    answer = cell.try_ask("POST", "/v1/commands", server=OTHER, json=body)
    assert "session_not_found" in answer.text


@pytest.mark.storm
def test_a_session_that_is_gone_is_not_listed(cell: ConsoleCell, worker: WorkerProcess) -> None:
    """Its worker and its container died together: whoever comes back says so."""
    session = cell.terminal("true", server=OTHER)["result"]["session_id"]
    (container,) = worker.containers()
    worker.kill()
    docker("rm", "-f", container)
    worker.start()

    def listed() -> list[str]:
        return [one["sandbox_id"] for one in cell.ask("GET", "/v1/sandboxes", server=OTHER)["sandboxes"]]

    cell.until(lambda: session not in listed(), "it is not listed any more", worker)


@pytest.mark.storm
def test_a_timed_out_command_leaves_nothing_before_it_is_told(cell: ConsoleCell, worker: WorkerProcess) -> None:
    hostile = "setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' & trap '' TERM; sleep 600"
    done = cell.terminal(hostile, server=OTHER, timeout_ms=1500)
    left = worker.containers()
    assert (done["status"], done["error"]["code"]) == ("timed_out", "deadline_exceeded")
    assert left == []
    assert cell.command("echo", 1, server=OTHER)["result"] == 1


@pytest.mark.storm
def test_the_server_that_holds_the_stream_is_killed(
    cell: ConsoleCell, python_image: str, tmp_path: Path, time_bounds: TimeBounds
) -> None:
    """The worker is back within 5 s, its session lives on, and whoever waits at the other server gets the true end."""
    with ConsoleCell(tmp_path, python_image) as own:
        worker = own.worker(HOLDER, OTHER)
        session = own.terminal("echo state > kept", server=OTHER)["result"]["session_id"]
        command = running(own, session)
        answers: list[httpx.Response] = []
        body = {"capability": "echo", "payload": "x", "wait_ms": 10_000}
        asking = threading.Event()

        def ask_on() -> None:
            while not asking.is_set():
                answers.append(own.try_ask("POST", "/v1/commands", server=OTHER, json=body))

        caller = threading.Thread(target=ask_on)
        caller.start()
        own.until(lambda: len(answers) > 10, "callers are served")
        own.servers[HOLDER].kill()
        killed, before = time.monotonic(), len(answers)
        own.until(lambda: any(one.is_success for one in answers[before + 1 :]), "they are served again", worker)
        back = time.monotonic() - killed
        done = own.ended(command, server=OTHER)
        asking.set()
        caller.join()
        assert (done["status"], done["result"]["stdout"]) == ("succeeded", COUNTED)
        assert own.terminal("cat kept", server=OTHER, session_id=session)["result"]["stdout"] == "state\n"
        time_bounds.check(back, 5)
        for answer in answers:
            if answer.is_success:
                said = answer.json()
                ended = said["status"] == "succeeded" and said["result"] == "x"
                assert ended or said["error"]["code"] in ("worker_replaced", "worker_lost"), said
            else:
                assert answer.status_code == 503, answer.text
        worker.remove()


@pytest.mark.storm
def test_the_broker_is_killed_under_a_command(python_image: str, tmp_path: Path) -> None:
    with ConsoleCell(tmp_path, python_image) as own:
        worker = own.worker(HOLDER, OTHER)
        session = own.terminal("true", server=OTHER)["result"]["session_id"]
        command = running(own, session)
        own.nats.kill()
        own.nats.start()
        done = own.ended(command, server=OTHER)
        assert (done["status"], done["result"]["stdout"]) == ("succeeded", COUNTED)
        worker.remove()
