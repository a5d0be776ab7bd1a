"""What a measurement stands on: the engine's socket, a test image, and real nodes started as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

SOCKET = Path("/var/run/docker.sock")
READY_SECONDS = 90.0
STOP_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """The measurement could not be made; says why."""


def image(name: str) -> str:
    """A test image's reference by digest."""
    folder = Path(os.environ.get("FUMEHOOD_SERVICES_DIR") or "/var/tmp/fumehood-services")
    file = folder / "images.env"
    if not file.exists():
        raise BenchError(f"no {file}: run scripts/services up and scripts/images")
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if line)[name]


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """One node, in a process of its own."""

    url: str
    token: str
    pid: int
    state: Path
    """On a real disk: a ledger in memory would sync for nothing."""

    def cpu_seconds(self) -> float:
        """User and system time of all its threads since it began."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextlib.asynccontextmanager
async def node(runtime: str) -> AsyncIterator[NodeProcess]:
    """`python -m fumehood node` with a state folder, a token and a port of its own."""
    state = Path(tempfile.mkdtemp(prefix="fumehood-bench-", dir="/var/tmp"))
    try:
        token_file, ready, log = state / "token", state / "ready.json", state / "log"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(16))
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fumehood", "node", "--state", str(state / "node"), "--port", "0"),
                *("--token-file", str(token_file), "--ready-file", str(ready)),
                env=_environment(runtime),
                stdout=output,
                stderr=output,
            )
        try:
            found = await _ready(process, ready, log)
            yield NodeProcess(found["node_url"], token_file.read_text(), process.pid, state / "node")
        finally:
            await _stop(process)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _environment(runtime: str) -> dict[str, str]:
    """The defaults of a node, whatever the caller's shell has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    return {**kept, "FUMEHOOD_RUNTIME": runtime}


async def _ready(process: asyncio.subprocess.Process, file: Path, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    while (found := _read(file)) == "":
        if process.returncode is not None or time.monotonic() > deadline:
            raise BenchError(f"the node did not become ready:\n{_read(log)[-2000:]}")
        await asyncio.sleep(0.05)
    document: dict[str, str] = json.loads(found)
    return document


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
