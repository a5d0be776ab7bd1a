"""`fumehood worker docker` as its operator meets it before any console answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fumehood.wire.console.hello import new_secret
from tests.conftest import TimeBounds
from tests.noise import Watch
from tests.unit.session_world import World, wish

ROOT = Path(__file__).resolve().parents[2]
SECRET = new_secret()


def launched(folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fumehood", "worker", "docker", "--json", *words],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "FUMEHOOD_RUNTIME": "runc", "WORKER_STATE_DIR": str(folder / "state"), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_it_begins(worker: subprocess.Popen[str]) -> list[dict[str, object]]:
    """What it said until it had taken over what is on this machine."""
    assert worker.stdout is not None
    said = []
    for line in worker.stdout:
        assert SECRET not in line
        said.append(json.loads(line))
        if said[-1]["event"] == "worker.begins":
            return said
    raise AssertionError(f"it ended: {said}")


@pytest.fixture
def who(tmp_path: Path) -> dict[str, str]:
    # Nobody listens there: the port is that of TCP's own multiplexer, which no machine has.
    return {"WORKER_ID": "lonely", "WORKER_SECRET": SECRET, "WORKER_CONSOLE_GRPC_TARGET": "127.0.0.1:1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_worker_without_a_console(
    tmp_path: Path, docker_socket: Path, who: dict[str, str], number: signal.Signals, time_bounds: TimeBounds
) -> None:
    """It waits for one, has its state folder for itself, tells of names that it does not know, and goes when told."""
    ready = tmp_path / "ready.json"
    worker = launched(tmp_path, "--ready-file", str(ready), WORKER_SECERT="x", **who)
    try:
        events = {str(one["event"]): one for one in until_it_begins(worker)}
        assert events["settings.unknown"]["variables"] == ["WORKER_SECERT"]
        assert {"admission.development_policy", "worker.begins"} <= events.keys()
        second = launched(tmp_path, **who)
        output, _ = second.communicate(timeout=240)
        assert second.returncode == 2
        assert "belongs to another process that is running: give each its own" in output
        assert not ready.exists(), "no console has taken it"
        began = Watch()
        worker.send_signal(number)
        rest, _ = worker.communicate(timeout=240)
        assert (worker.returncode, SECRET in rest) == (0, False)
        time_bounds.check(began.seconds, 20)
    finally:
        worker.kill()
        worker.wait()


def test_the_secret_is_no_argument(docker_socket: Path) -> None:
    """What stands in a command line can be read by everybody on the machine."""
    answer = subprocess.run(
        [sys.executable, "-m", "fumehood", "worker", "docker", "--help"], capture_output=True, text=True, check=True
    )
    assert "--secret" not in answer.stdout


def test_a_worker_without_an_engine_says_what_it_leaves(tmp_path: Path, who: dict[str, str]) -> None:
    """It can remove nothing: the sandboxes of an earlier worker are still there."""

    async def earlier() -> None:
        world = World(tmp_path / "state")
        async with world.life() as sessions:
            await sessions.create(wish())

    asyncio.run(earlier())
    worker = launched(tmp_path, FUMEHOOD_DOCKER_SOCKET=str(tmp_path / "none.sock"), **who)
    try:
        assert worker.stdout is not None
        assert any(json.loads(line)["event"] == "engine.absent" for line in worker.stdout)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=240)
        assert worker.returncode == 1
        assert "none of 1 sandboxes of an earlier worker was removed" in said
    finally:
        worker.kill()
        worker.wait()


def test_a_policy_is_needed_for_a_console_elsewhere(tmp_path: Path, who: dict[str, str]) -> None:
    elsewhere = who | {"WORKER_CONSOLE_GRPC_TARGET": "console.example:50051", "WORKER_CONSOLE_TLS": "true"}
    worker = launched(tmp_path, **elsewhere)
    output, _ = worker.communicate(timeout=240)
    assert worker.returncode == 2
    assert "WORKER_POLICY_FILE" in output


def test_credentials_that_are_wrong(tmp_path: Path) -> None:
    worker = launched(tmp_path, WORKER_ID="w", WORKER_SECRET="short")
    output, _ = worker.communicate(timeout=240)
    assert worker.returncode == 2
    assert "fumehood worker create" in output
