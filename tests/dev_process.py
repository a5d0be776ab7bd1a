"""A real `fumehood dev` in a process of its own, in a home folder that is nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import wait_until

START_SECONDS = 400.0
"""`dev` itself gives each of its processes less, and says which one was late."""
STOP_SECONDS = 120.0
STATE = Path(".local/state/fumehood")


@dataclass(frozen=True)
class Dev:
    """One that is ready, and what it says of itself."""

    home: Path
    log: Path
    facts: Mapping[str, Any]

    @property
    def state(self) -> Path:
        return self.home / STATE

    @property
    def server_url(self) -> str:
        return str(self.facts["server_url"])

    @property
    def node_url(self) -> str:
        return str(self.facts["node_url"])

    @property
    def nats_url(self) -> str:
        return str(self.facts["nats_url"])

    @property
    def token_file(self) -> Path:
        """Of the node's Worker API."""
        return self.state / "worker-api.token"

    @property
    def places(self) -> dict[str, str]:
        """What stands in the documentation, and what it is here."""
        return {
            "http://127.0.0.1:8080": self.server_url,
            "http://127.0.0.1:8090": str(self.facts.get("node_url")),
            "127.0.0.1:4222": self.nats_url.rpartition("@")[2],
            "~/.local/state/fumehood": str(self.state),
        }

    @property
    def env(self) -> dict[str, str]:
        """A person's own, who has started it: nothing says where the server is, or with which key."""
        return clean_environment(self.home)

    def client(self) -> httpx.Client:
        """Of the server, as its administrator."""
        headers = {"authorization": f"Bearer {self.facts['tokens']['admin']}"}
        return httpx.Client(base_url=self.server_url, headers=headers, timeout=60, trust_env=False)


@contextmanager
def running_dev(
    folder: Path, *options: str, python: Path = Path(sys.executable), env: Mapping[str, str] | None = None
) -> Iterator[Dev]:
    """Ready when the block begins; interrupted, as a person ends it, when the block is over."""
    home, ready, log = folder / "home", folder / "ready.json", folder / "log"
    home.mkdir()
    ports = [word for name in ("http", "nats", "grpc") for word in (f"--{name}-port", "0")]
    if "--no-node" not in options:
        ports += ["--node-port", "0"]
    words = [str(python), "-m", "fumehood", "dev", *ports, *options, "--ready-file", str(ready)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, cwd=home, env={**clean_environment(home), **(env or {})},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        wait_until(
            lambda: ready.exists() or process.poll() is not None,
            START_SECONDS,
            what=lambda: log.read_text()[-3000:],
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield Dev(home, log, json.loads(ready.read_text(encoding="utf-8")))
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def clean_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
