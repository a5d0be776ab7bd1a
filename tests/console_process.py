"""A cell for tests of the console: a real nats-server, servers with a gRPC door, and workers with containers, each a
process that may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.conformance.broker_bench import NatsServer
from tests.server_process import ROOT, ServerProcess, start_together
from tests.waiting import wait_until

START_SECONDS = 120.0


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=240).stdout


class WorkerProcess:
    """`python -m fumehood worker docker`. Its state folder outlives it, so that the next one takes over."""

    def __init__(self, folder: Path, credentials: Mapping[str, str], targets: str, env: Mapping[str, str]) -> None:
        self.worker_id = credentials["worker_id"]
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "worker.log"
        self._ready_file = folder / "ready.json"
        file = folder / "worker-credentials.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(dict(credentials)))
        self._env = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "WORKER_CREDENTIALS_FILE": str(file),
            "WORKER_CONSOLE_GRPC_TARGET": targets,
            "WORKER_STATE_DIR": str(folder / "state"),
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self._ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fumehood", "worker", "docker", "--ready-file", str(self._ready_file)],
                cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._is_ready, START_SECONDS, what=self.log_tail)
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_tail()
        return self._ready_file.exists()

    def log_tail(self) -> str:
        return self.log_file.read_text()[-3000:]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals, seconds: float = 60.0) -> int:
        """The exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(seconds)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def containers(self) -> list[str]:
        found = docker("ps", "-aq", "--no-trunc", "--filter", f"label=fumehood.node={self.worker_id}")
        return found.split()

    def remove(self) -> None:
        """All that it left, whatever became of it."""
        self.kill()
        for container in self.containers():
            with contextlib.suppress(subprocess.CalledProcessError):
                docker("rm", "-f", container)


class ConsoleCell:
    """Use as `with ConsoleCell(tmp_path, image, servers=2) as cell`."""

    def __init__(self, folder: Path, image: str, *, servers: int = 2, worker_env: Mapping[str, str] = {}) -> None:
        folder.mkdir(exist_ok=True)
        self.nats = NatsServer(folder / "nats", 1)
        self._folder = folder
        self._count = servers
        self._worker_env = {
            "WORKER_PYTHON_EXEC_DOCKER_IMAGE": image,
            "WORKER_TERMINAL_EXEC_DOCKER_IMAGE": image,
            "FUMEHOOD_RUNTIME": "runc",
            **worker_env,
        }
        self.servers: list[ServerProcess] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.nats.start()
        self._stack.callback(self.nats.kill)
        try:
            for number in range(self._count):
                env = {"FUMEHOOD_DRAIN_SECONDS": "1"}
                self.servers.append(ServerProcess(self._folder, self.nats, name=f"server-{number}", env=env))
            start_together(self.servers, self._stack)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def worker(self, *servers: int, env: Mapping[str, str] = {}) -> WorkerProcess:
        """A new one that knows these servers, the first of them first. Started."""
        name = f"w-{secrets.token_hex(4)}"
        made = self.ask("POST", "/v1/worker-credentials", json={"worker_id": name})
        targets = ",".join(self.servers[number].grpc_target for number in servers or range(len(self.servers)))
        worker = WorkerProcess(self._folder / name, made, targets, {**self._worker_env, **env})
        self._stack.callback(worker.remove)
        worker.start()
        self.until(lambda: name in self.workers(), f"{name} is connected", worker)
        return worker

    # --- as a client ---------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, *, server: int = 0, **more: Any) -> Any:
        with self.servers[server].client() as client:
            answer = client.request(method, path, timeout=240, **more)
        assert answer.is_success, f"{answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def try_ask(self, method: str, path: str, *, server: int = 0, **more: Any) -> httpx.Response:
        with self.servers[server].client() as client:
            return client.request(method, path, timeout=240, **more)

    def workers(self, server: int = 0) -> list[str]:
        return [one["worker_id"] for one in self.ask("GET", "/v1/workers", server=server)["workers"]]

    def command(self, capability: str, payload: object, *, server: int = 0, **more: Any) -> Any:
        body = {"capability": capability, "payload": payload, "wait_ms": 60_000, **more}
        return self.ask("POST", "/v1/commands", server=server, json=body)

    def terminal(self, command: str, *, server: int = 0, timeout_ms: int = 60_000, **payload: Any) -> Any:
        return self.command("terminalExec", {"command": command, **payload}, server=server, timeout_ms=timeout_ms)

    def ended(self, command_id: str, *, server: int = 0, seconds: float = 60.0) -> Any:
        """The command when it has ended."""
        found: list[Any] = []

        def is_over() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                found.append(self.ask("GET", f"/v1/commands/{command_id}", server=server))
                return found[-1]["status"] not in ("queued", "running")
            return False

        self.until(is_over, f"{command_id} ends", seconds=seconds)
        return found[-1]

    def until(
        self, holds: Callable[[], bool], what: str, worker: WorkerProcess | None = None, seconds: float = 90.0
    ) -> None:
        wait_until(holds, seconds, what=lambda: f"{what}\n{worker.log_tail() if worker is not None else ''}")
