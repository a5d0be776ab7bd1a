"""One real `fumehood dev` for all examples: its own state, a free port, and the way to substitute both in a text."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 90.0
STOP_SECONDS = 100.0


@dataclass(frozen=True)
class Dev:
    """A `fumehood dev` that is ready."""

    url: str
    state: Path
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
    options = ["--state", str(folder / "state"), "--node-port", "0", "--ready-file", str(ready_file)]
    options += ["--http-port", "0", "--nats-port", "0", "--grpc-port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fumehood", "dev", *options], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        ready = _wait(process, ready_file, log)
        yield Dev(ready["node_url"], folder / "state", process)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if ready_file.exists():
            ready: dict[str, Any] = json.loads(ready_file.read_text(encoding="utf-8"))
            return ready
        time.sleep(0.05)
    pytest.fail(f"fumehood dev did not become ready:\n{log.read_text(encoding='utf-8')[-3000:]}", pytrace=False)
