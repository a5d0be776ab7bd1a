"""One real `fumehood dev` for all examples: its own state, a free port, and the way to substitute both in a text."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.examples import installed
from tests.python_image import push_python
from tests.waiting import wait_until

START_SECONDS = 400.0
"""`dev` itself gives each of its processes less, and says which one was late."""
STOP_SECONDS = 100.0
LONGEST_TEST_SECONDS = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of them waits until the package is built and installed."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LONGEST_TEST_SECONDS))


@dataclass(frozen=True)
class Dev:
    """A `fumehood dev` that is ready."""

    url: str
    """Of its node."""
    server_url: str
    nats: str
    """HOST:PORT of its broker."""
    state: Path
    home: Path
    """A folder of a person's own, in which `dev` keeps its state where it usually does."""
    process: subprocess.Popen[bytes]

    @property
    def token_file(self) -> Path:
        return self.state / "worker-api.token"

    def here(self, text: str) -> str:
        """A text of the documentation with the only things that are different here: the port and the folder."""
        places = {
            "http://127.0.0.1:8090": self.url,
            "~/.local/state/fumehood": str(self.state),
            "examples/run_job.py": f"examples/run_job.py --url {self.url} --token-file {self.token_file}",
        }
        for written, real in places.items():
            text = text.replace(written, real)
        return text


@pytest.fixture(scope="session")
def dev(docker_socket: Path, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    folder = tmp_path_factory.mktemp("dev")
    ready_file, log = folder / "ready.json", folder / "log"
    home = folder / "home"
    state = home / ".local" / "state" / "fumehood"
    options = ["--state", str(state), "--node-port", "0", "--ready-file", str(ready_file)]
    options += ["--http-port", "0", "--nats-port", "0", "--grpc-port", "0"]
    image = push_python(images["python"])  # of this machine's registry, instead of `python:slim`
    own = {"WORKER_PYTHON_EXEC_DOCKER_IMAGE": image, "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": image}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(installed.python()), "-m", "fumehood", "dev", *options],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        ready = _wait(process, ready_file, log)
        yield Dev(ready["node_url"], ready["server_url"], ready["nats_url"].rpartition("@")[2], state, home, process)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> dict[str, Any]:
    wait_until(lambda: ready_file.exists() or process.poll() is not None, START_SECONDS, what=log.read_text)
    if not ready_file.exists():
        pytest.fail(f"fumehood dev did not become ready:\n{log.read_text(encoding='utf-8')[-3000:]}", pytrace=False)
    ready: dict[str, Any] = json.loads(ready_file.read_text(encoding="utf-8"))
    return ready
