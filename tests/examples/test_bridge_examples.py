"""The workers of examples/ in other languages, against a real server: they complete, fail, pause and save."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.broker_bench import NatsServer, fresh
from tests.conftest import unavailable
from tests.examples.markdown import ROOT
from tests.server_process import ServerProcess

SECONDS = 60.0
DEFINITION = """name: {name}
steps:
  - id: a
    agent_loop: {{task: {kind}, max_iterations: 5}}
    with: {{say: input.say}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    nats = NatsServer(folder / "nats", 1)
    nats.start()
    try:
        with ServerProcess(folder, nats) as made:
            yield made
    finally:
        nats.kill()


def start(client: httpx.Client, kind: str, say: str) -> str:
    name = fresh("w")
    text = DEFINITION.format(name=name, kind=kind)
    client.put(f"/v1/workflows/{name}", content=text, headers={"content-type": "application/yaml"}).raise_for_status()
    answer = client.post(f"/v1/workflows/{name}/runs", json={"input": {"say": say}})
    return str(answer.raise_for_status().json()["run_id"])


def ended(client: httpx.Client, run_id: str) -> dict[str, Any]:
    until = time.monotonic() + SECONDS
    while True:
        view: dict[str, Any] = client.get(f"/v1/runs/{run_id}").raise_for_status().json()
        if view["status"] not in ("queued", "running"):
            return view
        assert time.monotonic() < until, view
        time.sleep(0.05)


def run_worker(server: ServerProcess, folder: Path, program: str, kind: str, count: int) -> str:
    """As a person would; what it printed."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(server.bridge_token)
    interpreter = {".sh": "bash", ".mjs": "node"}[Path(program).suffix]
    if shutil.which(interpreter) is None:
        unavailable(f"no {interpreter}: run scripts/services up")
    done = subprocess.run(
        [interpreter, f"examples/{program}", server.url, str(token), kind, str(count)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.bridge_token not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.example
def test_a_worker_of_bash_and_curl_completes_fails_pauses_and_saves(server: ServerProcess, tmp_path: Path) -> None:
    kind = fresh("shell")
    with server.client() as client:
        runs = {say: start(client, kind, say) for say in ("complete", "fail", "pause")}
        printed = run_worker(server, tmp_path, "bare_worker.sh", kind, 4)
        views = {say: ended(client, run_id) for say, run_id in runs.items()}
    assert printed.count('"status":"ok"') == 5
    assert views["complete"]["steps"]["a"]["output"] == {"by": "bash"}
    assert (views["fail"]["status"], views["fail"]["steps"]["a"]["attempt"]) == ("failed", 1)
    assert views["pause"]["steps"]["a"]["output"] == {"page": 2}
    assert views["pause"]["steps"]["a"]["attempt"] == 1, "a pause costs no attempt"


@pytest.mark.example
def test_a_worker_of_node_alone_completes_fails_pauses_loops_and_signals(server: ServerProcess, tmp_path: Path) -> None:
    kind = fresh("node")
    with server.client() as client:
        runs = {say: start(client, kind, say) for say in ("complete", "fail", "pause", "continue")}
        run_worker(server, tmp_path, "bare_worker.mjs", kind, 7)
        views = {say: ended(client, run_id) for say, run_id in runs.items()}
    assert views["complete"]["steps"]["a"]["output"] == {"by": "node"}
    assert views["fail"]["status"] == "failed"
    assert views["fail"]["steps"]["a"]["error"]["code"] == "told_to"
    assert views["pause"]["steps"]["a"]["output"] == {"page": 2}
    assert views["continue"]["steps"]["a"]["output"] == {"iteration": 1}


@pytest.mark.example
@pytest.mark.parametrize("program", ["bare_worker.sh", "bare_worker.mjs"])
def test_a_worker_that_is_refused_ends_with_an_error(server: ServerProcess, tmp_path: Path, program: str) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("wrong")
    interpreter = "bash" if program.endswith(".sh") else "node"
    if shutil.which(interpreter) is None:
        unavailable(f"no {interpreter}: run scripts/services up")
    done = subprocess.run(
        [interpreter, f"examples/{program}", server.url, str(wrong), "x", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "401" in done.stdout + done.stderr
