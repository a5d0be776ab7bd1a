"""A real `fumehood server` in a process of its own, over a real nats-server."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import httpx

from fumehood.broker.broker import NatsBroker
from fumehood.broker.topology import Shape
from tests.conformance.broker_bench import TIMING, NatsServer
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
STORAGE = 4 * 1024**3


async def make_cell(nats: NatsServer) -> None:
    """With short waits: servers touch nothing that exists."""
    shape = Shape(nats.partitions, storage=STORAGE, timing=TIMING)
    await (await NatsBroker.open(nats.options(), shape)).close()


class ServerProcess:
    """`python -m fumehood server` with tokens of its own; ready when the block begins, gone when it ends."""

    def __init__(
        self,
        folder: Path,
        nats: NatsServer,
        *,
        name: str = "server",
        env: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        """With a `port` it comes back where it was."""
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.token, self.bridge_token = f"admin-{secrets.token_hex(8)}", f"bridge-{secrets.token_hex(8)}"
        self.log_file = self.folder / "server.log"
        self._ready_file = self.folder / "ready.json"
        options = nats.options()
        self._words = ["--port", str(port), "--nats", options.servers[0], "--nats-user", str(options.user)]
        self._words += ["--nats-password-file", self._secret("password", str(options.password))]
        self._words += ["--token-file", self._secret("token", self.token)]
        self._words += ["--ready-file", str(self._ready_file), "--json"]
        self._env = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "DAGNATS_BRIDGE_TOKEN": self.bridge_token,
            "FUMEHOOD_PARTITIONS": str(nats.partitions),
            "FUMEHOOD_STORAGE_BYTES": str(STORAGE),
            "FUMEHOOD_GRPC_PORT": "0",
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.grpc_target = ""

    def _secret(self, name: str, text: str) -> str:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def launch(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fumehood", "server", *self._words],
                cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait(self) -> None:
        wait_until(self._is_ready, START_SECONDS, what=lambda: self.log_file.read_text()[-3000:])
        facts = json.loads(self._ready_file.read_text())
        self.url, self.grpc_target = facts["server_url"], facts.get("grpc_target", "")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_file.read_text()[-3000:]
        return self._ready_file.exists()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=240)

    def kill(self) -> None:
        """Without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self, seconds: float = 90.0) -> int:
        """As an operator does; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def __enter__(self) -> ServerProcess:
        self.launch()
        try:
            self.wait()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


def start_together(servers: Sequence[ServerProcess], until: ExitStack) -> None:
    """All of them ready; each is killed when the stack is closed."""
    for server in servers:
        until.callback(server.kill)
        server.launch()
    for server in servers:
        server.wait()
