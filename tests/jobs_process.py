"""A cell for tests of jobs: a real nats-server, servers and providers, each a process that may be killed."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from fumehood.node.signing import ReceiptKeys
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, ListedKey
from tests.conformance.broker_bench import PROVIDERS, NatsServer
from tests.server_process import ROOT, ServerProcess
from tests.waiting import until, wait_until

ENDED = frozenset({"succeeded", "disputed", "failed", "timed_out", "cancelled"})
START_SECONDS = 120.0


class ProviderProcess:
    """`python -m fumehood worker jobs`, or another program in its place; its folder outlives it."""

    def __init__(
        self,
        folder: Path,
        nats: NatsServer,
        number: int,
        *,
        command: tuple[str, ...] = ("-m", "fumehood", "worker", "jobs"),
        env: Mapping[str, str] = {},
    ) -> None:
        user = PROVIDERS[number]
        self.name = user.name
        self.folder = folder / user.name
        self.folder.mkdir(parents=True)
        self.state = self.folder / "state"
        self.state.mkdir(mode=0o700)
        self.log_file = self.folder / "log"
        self._ready_file = self.folder / "ready.json"
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(str(user.password))
        self._command = command
        self._env = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            "FUMEHOOD_NATS_SERVERS": nats.options().servers[0],
            "FUMEHOOD_NATS_USER": user.name,
            "FUMEHOOD_NATS_PASSWORD_FILE": str(password),
            "FUMEHOOD_RUNTIME": "runc",
            "PROVIDER_STATE_DIR": str(self.state),
            "PROVIDER_DRAIN_SEC": "5",
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> SigningKey:
        """Its own; made before its first start, so that it can be listed then."""
        return ReceiptKeys.load(self.state).current

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command, "--ready-file", str(self._ready_file), "--json"],
                cwd=ROOT, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait(self) -> None:
        def is_ready() -> bool:
            assert self.alive, self.log_tail()
            return self._ready_file.exists()

        wait_until(is_ready, START_SECONDS, what=self.log_tail)

    def log_tail(self) -> str:
        return self.log_file.read_text()[-3000:]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(120)

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


class JobsCell:
    """Use as `with JobsCell(tmp_path, providers=6) as cell`. `commands` are other programs for some of them."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: int = 1,
        providers: int = 3,
        commands: Mapping[int, tuple[str, ...]] = {},
        env: Mapping[str, str] = {},
        server_env: Mapping[str, str] = {},
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.nats = NatsServer(folder / "nats", 1)
        self.root = SigningKey.generate()
        self._folder = folder
        self._server_env = {"FUMEHOOD_DRAIN_SECONDS": "1", **server_env}
        self._servers = servers
        self._wanted = [(number, commands.get(number)) for number in range(providers)]
        self._env = env
        self.servers: list[ServerProcess] = []
        self.providers: list[ProviderProcess] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.nats.start()
        self._stack.callback(self.nats.kill)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        for number in range(self._servers):
            server = ServerProcess(self._folder, self.nats, name=f"server-{number}", env=self._server_env)
            self.servers.append(self._stack.enter_context(server))
        for number, command in self._wanted:
            given = {} if command is None else {"command": command}
            self.providers.append(ProviderProcess(self._folder, self.nats, number, env=self._env, **given))
        self.publish()
        for provider in self.providers:
            self._stack.enter_context(provider)
        for provider in self.providers:
            provider.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def key_list(self) -> KeyList:
        since = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        listed = [
            ListedKey(key_id=one.key.key_id, public_key=one.key.public_key.hex(), worker=one.name, not_before=since)
            for one in self.providers
        ]
        return KeyList(version=1, issued_at=dt.datetime.now(dt.UTC), keys=tuple(listed))

    def publish(self) -> None:
        body = {"root": self.root.public_key.hex(), "list": self.key_list().sign(self.root)}
        with self.servers[0].client() as client:
            answer = client.put("/v1/receipt-keys", json=body)
        assert answer.status_code == 200, answer.text

    # --- as a client ---------------------------------------------------------------------------------------

    def client(self, server: int = 0) -> httpx.AsyncClient:
        one = self.servers[server]
        headers = {"authorization": f"Bearer {one.token}"}
        return httpx.AsyncClient(base_url=one.url, headers=headers, timeout=240, trust_env=False)

    async def submit(self, job_type: str, payload: Mapping[str, Any], *, key: str, server: int = 0) -> str:
        """Until a server has taken it: one that dies under us is asked again, with the same key."""
        body = {"job_type": job_type, "payload": payload}

        async def taken() -> str | None:
            with contextlib.suppress(httpx.HTTPError):
                async with self.client(server) as client:
                    answer = await client.post("/v1/jobs", json=body, headers={"idempotency-key": key})
                if answer.status_code < 500:
                    assert answer.status_code in (200, 201), answer.text
                    return str(answer.json()["job_id"])
            return None

        return await until(taken, what="no server takes the job", every=0.2)

    async def ended(
        self, job_id: str, *, server: int = 0, timeout: float = 120.0, look_seconds: float = 0.2
    ) -> dict[str, Any]:
        last: dict[str, Any] = {}

        async def has_ended() -> bool:
            nonlocal last
            with contextlib.suppress(httpx.HTTPError):
                async with self.client(server) as client:
                    answer = await client.get(f"/v1/jobs/{job_id}")
                if answer.status_code == 200:
                    last = answer.json()
                    return last["status"] in ENDED
            return False

        def trouble() -> str:
            tails = "\n".join(one.log_tail()[-1000:] for one in self.providers)
            return f"{json.dumps(last)[:2000]}\n{tails}"

        await until(has_ended, timeout, what=trouble, every=look_seconds)
        return last
