"""The bare engine: what somebody would do by hand, with nothing of ours in between.

`create`, `attach`, `start`, `wait`, `remove` over the engine's socket, with the same `HostConfig` that a node asks for,
the command as the container's own entrypoint and the sandbox's user from the beginning. The client is the quickest that
Python has (raw aiohttp), kept alive: a slower one would flatter us.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.world import SOCKET, BenchError
from fumehood.sandbox.docker.attach import Demultiplexer
from fumehood.sandbox.docker.engine import API_VERSION
from fumehood.sandbox.docker.plan import Plan, container_body
from fumehood.sandbox.spec import SANDBOX_USER, WORKSPACE, Limits, Network
from fumehood.sandbox.warden import binary

URL = f"http://engine/{API_VERSION}"
LABEL = "fumehood.bench"
NO_TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass(frozen=True, slots=True)
class BareRun:
    """One container's life. Seconds since it was asked for."""

    output: bytes
    created: float
    attached: float
    started: float
    answered: float
    """Exit code and whole output are known."""
    gone: float
    """The engine confirmed the removal."""


class Bare:
    """Use with `async with`."""

    def __init__(self, image: str, runtime: str, folder: Path, socket: Path = SOCKET) -> None:
        self._image = image
        self._runtime = runtime
        self._warden = binary.install(folder)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(socket), limit=0), timeout=NO_TIMEOUT, auto_decompress=False
        )

    async def __aenter__(self) -> Bare:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    # --- one cold container --------------------------------------------------------------------------------

    async def run(self, command: tuple[str, ...], *, keep: bool = True) -> BareRun:
        """`keep=False` counts the output instead of holding it: `output` is then empty."""
        began = time.perf_counter()
        container = await self.create(self.command_body(command))
        created = time.perf_counter()
        try:
            path = f"{URL}/containers/{container}/attach?stream=1&stdout=1&stderr=1"
            async with self._client.post(path) as stream:
                attached = time.perf_counter()
                await self.start(container)
                started = time.perf_counter()
                output = await _collect(stream.content, keep)
            async with self._client.post(f"{URL}/containers/{container}/wait") as answer:
                code = (await answer.json())["StatusCode"]
            answered = time.perf_counter()
        finally:
            await self.remove(container)
        gone = time.perf_counter()
        if code != 0:
            raise BenchError(f"the bare command ended with {code}: {output!r}")
        return BareRun(output, created - began, attached - began, started - began, answered - began, gone - began)

    def warden_body(self) -> dict[str, Any]:
        """A sandbox exactly as a node makes it."""
        plan = Plan(
            image=self._image,
            runtime=self._runtime,
            warden=self._warden,
            limits=Limits(),
            user=SANDBOX_USER,
            network=Network.NONE,
            read_only_root=True,
            labels={LABEL: "1"},
        )
        return container_body(plan)

    def command_body(self, command: tuple[str, ...]) -> dict[str, Any]:
        """The same options, but for the one program that is run and under whom."""
        return {
            **self.warden_body(),
            "Entrypoint": list(command),
            "User": f"{SANDBOX_USER.uid}:{SANDBOX_USER.gid}",
            "WorkingDir": WORKSPACE,
            "OpenStdin": False,
            "AttachStdin": False,
        }

    # --- calls ---------------------------------------------------------------------------------------------

    async def create(self, body: dict[str, Any]) -> str:
        async with self._client.post(f"{URL}/containers/create", json=body) as answer:
            document = await answer.json()
            if answer.status != 201:
                raise BenchError(f"create: {document}")
            return str(document["Id"])

    async def start(self, container: str) -> None:
        async with self._client.post(f"{URL}/containers/{container}/start") as answer:
            if answer.status != 204:
                raise BenchError(f"start: {await answer.text()}")

    async def remove(self, container: str) -> None:
        async with self._client.delete(f"{URL}/containers/{container}?force=1&v=1") as answer:
            if answer.status != 204:
                raise BenchError(f"remove: {await answer.text()}")

    async def execute(self, container: str, command: tuple[str, ...]) -> bytes:
        """`docker exec` as its API has it: create, start and read to the end, ask for the exit code."""
        body = {
            "Cmd": list(command),
            "User": f"{SANDBOX_USER.uid}:{SANDBOX_USER.gid}",
            "AttachStdout": True,
            "AttachStderr": True,
        }
        async with self._client.post(f"{URL}/containers/{container}/exec", json=body) as answer:
            made = str((await answer.json())["Id"])
        async with self._client.post(f"{URL}/exec/{made}/start", json={"Detach": False, "Tty": False}) as stream:
            output = await _collect(stream.content, keep=True)
        async with self._client.get(f"{URL}/exec/{made}/json") as answer:
            code = (await answer.json())["ExitCode"]
        if code != 0:
            raise BenchError(f"exec ended with {code}: {output!r}")
        return output

    async def versions(self) -> dict[str, str]:
        async with self._client.get(f"{URL}/version") as answer:
            found = await answer.json()
        parts = {str(part["Name"]).lower(): str(part["Version"]) for part in found.get("Components") or ()}
        return {"engine": str(found["Version"]), **parts}


async def _collect(stream: aiohttp.StreamReader, keep: bool) -> bytes:
    demultiplexer, kept = Demultiplexer(), bytearray()
    async for piece in stream.iter_any():
        data = demultiplexer.feed(piece)
        if keep:
            kept += data
    return bytes(kept)
