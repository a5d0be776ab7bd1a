"""A worker in this process, all of it but its stream: sessions, handlers and duties over a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.node.console.capabilities import Rules
from fumehood.node.console.command_receipts import CommandReceipts
from fumehood.node.console.duties import Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.console.leases import LeaseRule
from fumehood.node.console.uploads import Uploads
from fumehood.node.console.worker import handlers
from fumehood.node.receipts import Receipts
from fumehood.node.signing import ReceiptKeys
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import SessionOptions
from fumehood.wire.console.console_pb2 import Dispatch, Result

OWNER = "acme"
PATIENCE = 240.0
CONTRACT = LeaseRule(60, 1800, 60)


class CommandError(Exception):
    """A result that is an error."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.error.code}: {result.error.message}")
        self.code = result.error.code
        self.message = result.error.message


class Clock:
    """The wall clock and the steady one, which a test may move on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def steady(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms


class Console:
    """What a stream is to the duties: it dispatches, and it is told results."""

    def __init__(self, duties: Duties, sessions: Sessions) -> None:
        self.duties = duties
        self.sessions = sessions
        self._outbox = duties.begin()
        self._results: dict[str, asyncio.Future[Result]] = {}
        self._pump = asyncio.create_task(self._read())

    def send(
        self,
        capability: str,
        payload: Mapping[str, Any] | bytes,
        *,
        command_id: str = "",
        owner: str = OWNER,
        timeout_ms: int = 0,
        data: bytes = b"",
    ) -> str:
        """Its id."""
        command_id = command_id or uuid.uuid4().hex
        payload_json = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.wanted(command_id)
        self.duties.take(
            Dispatch(
                command_id=command_id,
                capability=capability,
                payload_json=payload_json,
                owner=owner,
                timeout_ms=timeout_ms,
                data=data,
            )
        )
        return command_id

    def wanted(self, command_id: str) -> asyncio.Future[Result]:
        return self._results.setdefault(command_id, asyncio.get_running_loop().create_future())

    async def result(self, command_id: str) -> Result:
        async with asyncio.timeout(PATIENCE):
            result = await self.wanted(command_id)
        if result.HasField("error"):
            raise CommandError(result)
        return result

    async def raw(self, capability: str, payload: Mapping[str, Any] | bytes, **more: Any) -> Result:
        return await self.result(self.send(capability, payload, **more))

    async def run(self, capability: str, payload: Mapping[str, Any] | bytes, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((await self.raw(capability, payload, **more)).payload_json)
        return answer

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            result = await self._outbox.next()
            self.duties.acknowledged(result.command_id)
            wanted = self.wanted(result.command_id)
            if not wanted.done():
                wanted.set_result(result)


class Machine:
    """Where workers come and go: its folder and its engine stay."""

    def __init__(self, folder: Path, socket: Path, image: str, runtime: str = "runc") -> None:
        self.folder = folder
        self.image = image
        self.node_id = f"worker-{uuid.uuid4().hex[:12]}"
        self.clock = Clock()
        self._docker = DockerOptions(node_id=self.node_id, state_dir=folder, socket=socket, runtime=runtime)

    @contextlib.asynccontextmanager
    async def life(self, lease: LeaseRule = CONTRACT) -> AsyncIterator[Console]:
        """One worker. Leaving it leaves everything as it is, as SIGUSR2 does."""
        driver = DockerDriver(self._docker)
        store = await SessionStore.open(self.folder)
        duty_store = await DutyStore.open(self.folder / "duties.db")
        options = SessionOptions(clock=self.clock, steady=self.clock.steady, janitor_seconds=0.05)
        uploads = Uploads(self.folder / "uploads")
        await uploads.open()
        try:
            async with RegistryClient() as registry:
                admission = Admission(DevelopmentPolicy(), registry)
                signing = CommandReceipts(Receipts(ReceiptKeys.load(self.folder), self.node_id))
                opening = Sessions.open(driver, admission, store, options, sign=signing.of_session_command)
                async with opening as sessions:
                    signing.sessions = sessions
                    rules = Rules(python_image=self.image, terminal_image=self.image, lease=lease)
                    duties = Duties(duty_store, handlers(sessions, rules, uploads), sign=signing.of_command)
                    await duties.recover()
                    console = Console(duties, sessions)
                    try:
                        yield console
                    finally:
                        await duties.close()
                        await console.close()
        finally:
            await uploads.close()
            await duty_store.close()
            await store.close()
            await driver.close()

    def containers(self) -> list[str]:
        return docker("ps", "-aq", "--no-trunc", "--filter", f"label=fumehood.node={self.node_id}").split()

    def inspect(self) -> dict[str, Any]:
        """The only container there is."""
        (container,) = self.containers()
        (found,) = json.loads(docker("inspect", container))
        document: dict[str, Any] = found
        return document

    def clear(self) -> None:
        for container in self.containers():
            with contextlib.suppress(subprocess.CalledProcessError):
                docker("rm", "-f", container)


@contextlib.contextmanager
def machine_in(folder: Path, socket: Path, image: str, runtime: str = "runc") -> Iterator[Machine]:
    """Of which nothing stays."""
    made = Machine(folder, socket, image, runtime)
    try:
        yield made
    finally:
        made.clear()


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=240).stdout


def running(mark: str) -> list[str]:
    """Processes of this machine, those in containers included, that have a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if mark in line:
                    found.append(line)
    return found
