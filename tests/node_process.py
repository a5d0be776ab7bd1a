"""A real node in a process of its own, for tests that treat it as its callers, its operator and fate do.

    async with NodeProcess(tmp_path, runtime="runc") as node:          # ready when the block begins
        answer = await node.run_job(["echo", "hi"], image=base_image)  # an httpx.Response
        await node.kill()                                              # SIGKILL
        await node.start()                                             # same state, same id, maybe another port

In fixtures with a wider scope than an event loop use it as a plain context manager (`with NodeProcess(...)`): all that
is kept between calls is the process. Whatever happens in the block, no process and no container is left after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.waiting import until, wait_until

ROOT = Path(__file__).resolve().parent.parent
DOCKER_SOCKET = Path("/var/run/docker.sock")
RUN_JOB = "/v1/worker/jobs:run"
LABEL_NODE = "fumehood.node"
LABEL_PROBE = "fumehood.probe"
LABEL_JOB = "fumehood.job_id"

START_SECONDS = 120.0
STOP_SECONDS = 90.0
ANSWER_SECONDS = 100.0


class NodeProcess:
    """`python -m fumehood node` with a state directory, a node id and a token that are its own.

    `env` holds further `FUMEHOOD_*` settings (and anything else the node's environment shall have); nothing of the
    test's own environment but PATH and HOME gets in.
    """

    engine_socket = DOCKER_SOCKET
    """Where its containers are looked for, whatever way it takes to the engine."""
    program = "fumehood"
    """The module that is run; another one is the same command with parts of a test's own."""

    def __init__(self, folder: Path, *, runtime: str | None = "runc", env: Mapping[str, str] | None = None) -> None:
        self.folder = folder / f"node-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir(parents=True)
        self.state_dir = self.folder / "state"
        self.token_file = self.folder / "token"
        self.ready_file = self.folder / "ready.json"
        self.log_file = self.folder / "node.log"
        self.node_id = f"test-{uuid.uuid4().hex[:16]}"
        self.signs_as = (env or {}).get("FUMEHOOD_NATS_USER", self.node_id)
        """The name in its receipts: its user's at the broker, where it has one."""
        self.runtime = runtime
        self.token = f"token-{secrets.token_hex(16)}"
        write_token(self.token_file, self.token)
        self.env = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "FUMEHOOD_NODE_ID": self.node_id,
            **({"FUMEHOOD_RUNTIME": runtime} if runtime is not None else {}),
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None

    # --- life ----------------------------------------------------------------------------------------------

    async def start(self, timeout: float = START_SECONDS) -> None:
        """Start the node (again) and wait until it says that it is ready."""
        self.launch()
        await asyncio.to_thread(self._await_ready, timeout)

    def launch(self) -> None:
        """Start the process and do not wait. `await_ready` waits."""
        assert not self.alive, "the node is running already"
        self.ready_file.unlink(missing_ok=True)
        self._url = None
        words = ["--state", str(self.state_dir), "--port", "0", "--token-file", str(self.token_file)]
        words += ["--ready-file", str(self.ready_file), "--json"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.program, "node", *words],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def await_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait for the ready file of a launched node."""
        await asyncio.to_thread(self._await_ready, timeout)

    def _await_ready(self, timeout: float) -> None:
        def is_ready() -> bool:
            assert self.alive, f"the node ended with {self.exit_code}:\n{self.log_tail()}"
            return self.ready_file.exists()

        wait_until(is_ready, timeout, what=lambda: f"the node is not ready:\n{self.log_tail()}")
        self._url = str(json.loads(self.ready_file.read_text())["node_url"])

    def signal(self, number: signal.Signals) -> None:
        """Send the node a signal and do not wait."""
        os.kill(self.pid, number)

    async def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, and wait for the drain; the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait(timeout)

    async def kill(self) -> None:
        """SIGKILL: the node has no chance to do anything. Its containers are still there."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def restart(self) -> None:
        """SIGKILL and start again with the same state."""
        await self.kill()
        await self.start()

    async def wait(self, timeout: float = STOP_SECONDS) -> int:
        """Wait for the end of the process; its exit code (negative: the signal)."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, timeout)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the node was never started"
        return self._process.pid

    @property
    def url(self) -> str:
        assert self._url is not None, "the node is not ready"
        return self._url

    def _end(self) -> None:
        """However the test ended: no process, no container."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(STOP_SECONDS)
        remove_containers(self.node_id, self.engine_socket)

    def __enter__(self) -> NodeProcess:
        try:
            self.launch()
            self._await_ready(START_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> NodeProcess:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)

    # --- its door ------------------------------------------------------------------------------------------

    def client(self, *, timeout: float = ANSWER_SECONDS, token: str | None = None) -> httpx.AsyncClient:
        """A client with the token, for `async with`. It belongs to one event loop; the node does not."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async def run_job(
        self, command: Sequence[str], *, image: str, answer_timeout: float = ANSWER_SECONDS, **options: Any
    ) -> httpx.Response:
        """One job through the Worker API, whatever the answer. `options` as in `job_body`."""
        return await self.post(job_body(command, image=image, **options), answer_timeout=answer_timeout)

    async def post(self, body: Mapping[str, Any], *, answer_timeout: float = ANSWER_SECONDS) -> httpx.Response:
        """Send a request body as it is."""
        async with self.client(timeout=answer_timeout) as client:
            return await client.post(RUN_JOB, json=body)

    async def get(self, path: str) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path)

    async def ready(self) -> bool:
        """What `/readyz` says now."""
        return (await self.get("/readyz")).status_code == 200

    # --- what can be seen from outside ---------------------------------------------------------------------

    async def containers(self, *, probes: bool = False, job_id: str | None = None) -> list[dict[str, Any]]:
        """The engine's containers of this node, in whatever state; its own readiness probes only where asked for."""
        labels = [f"{LABEL_NODE}={self.node_id}"] + ([f"{LABEL_JOB}={job_id}"] if job_id else [])
        transport = httpx.AsyncHTTPTransport(uds=str(self.engine_socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=240) as engine:
            answer = await engine.get("/containers/json", params=_listing(labels))
        found: list[dict[str, Any]] = answer.raise_for_status().json()
        return [item for item in found if probes or LABEL_PROBE not in (item.get("Labels") or {})]

    def spool(self) -> list[Path]:
        """Output that is kept for jobs that have not ended."""
        folder = self.state_dir / "spool"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    async def nothing_left(self, timeout: float = 60.0) -> None:
        """Wait until no job of this node has left a container or a spool folder."""

        async def clean() -> bool:
            return not self.spool() and not await self.containers()

        await until(clean, timeout, what="a container or a spool folder is left behind")

    def rss_bytes(self, *, peak: bool = False) -> int:
        """The node's resident memory: now, or its highest value since `reset_peak`."""
        field = "VmHWM:" if peak else "VmRSS:"
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not say how large the node is")

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def logs(self) -> list[dict[str, Any]]:
        """What the node logged so far, over all its lives."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]


def job_body(
    command: Sequence[str],
    *,
    image: str,
    job_id: str | None = None,
    task_id: str | None = None,
    timeout_seconds: int | None = 60,
    env: Mapping[str, str] | None = None,
    network_policy: str | None = None,
) -> dict[str, Any]:
    """A request of the Worker API. Ids are made where none are given; `None` leaves an optional field out."""
    optional = {"env": env, "timeout_seconds": timeout_seconds, "network_policy": network_policy}
    return {
        "version": 1,
        "task_id": task_id or str(uuid.uuid4()),
        "job_id": job_id or str(uuid.uuid4()),
        "sandbox": {
            "image": image,
            "command": list(command),
            **{name: value for name, value in optional.items() if value is not None},
        },
    }


def write_token(path: Path, token: str) -> None:
    """Whole and private, as an operator would rotate it."""
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text(token + "\n", encoding="ascii")
    draft.replace(path)


def remove_containers(node_id: str, socket: Path = DOCKER_SOCKET) -> None:
    """Remove whatever bears a node's label, probes included."""
    transport = httpx.HTTPTransport(uds=str(socket))
    with httpx.Client(transport=transport, base_url="http://engine", timeout=240) as engine:

        def none_left() -> bool:
            found = engine.get("/containers/json", params=_listing([f"{LABEL_NODE}={node_id}"])).json()
            for item in found:
                engine.delete(f"/containers/{item['Id']}", params={"force": "true", "v": "true"})
            return not found

        wait_until(none_left, what="containers of the test's node cannot be removed")


def _listing(labels: Sequence[str]) -> dict[str, str]:
    return {"all": "true", "filters": json.dumps({"label": list(labels)})}


def programs_with(entry: str, name: str | None = None) -> list[int]:
    """Processes on this machine that have this in their environment, and this name if one is given (gVisor's programs
    are not among them)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                is_named = name is None or (folder / "comm").read_text() == f"{name}\n"
                if is_named and entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found
