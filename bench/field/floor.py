"""What no engine can go below: the runtime alone on an unpacked image, and JetStream alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shlex
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
from nats.js.client import JetStreamContext

from bench.field.engine import EngineFacts, Runtime
from bench.field.rows import JETSTREAM, OUTPUTS
from bench.world import BenchError
from fumehood.cli.processes import held_port
from fumehood.sandbox.spec import SANDBOX_USER
from tests.conformance.broker_bench import nats_server_binary

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PUBLISHES = 20
"""Messages of one round; their median is the round's."""
START_SECONDS = 60.0
BODY = b"x" * 256


class Alone:
    """`runc run` of a bundle: no engine, no shim, no image store."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._bundle, self._state = folder / "bundle", folder / "state"
        self._words = (runtime.path, *runtime.arguments, "--root", str(self._state))

    async def unpack(self, engine: EngineFacts, image: str) -> None:
        await asyncio.to_thread(self._unpack, engine, image)

    def _unpack(self, engine: EngineFacts, image: str) -> None:
        (self._bundle / "rootfs").mkdir(parents=True)
        docker = ("docker", "--host", f"unix://{engine.socket}")
        try:
            made = _output(*docker, "create", image, "true").strip()
            try:
                words = (*docker, "export", made), ("tar", "--extract", "--directory", str(self._bundle / "rootfs"))
                _output("sh", "-c", " | ".join(map(shlex.join, words)))
            finally:
                _output(*docker, "rm", made)
        except subprocess.CalledProcessError as error:
            raise BenchError(f"the image cannot be unpacked: {error.stderr}") from None

    async def run(self, command: tuple[str, ...]) -> float:
        """In a thread: the standard library starts a process without a copy of this one, which an event loop makes."""
        return await asyncio.to_thread(self._run, command)

    def _run(self, command: tuple[str, ...]) -> float:
        (self._bundle / "config.json").write_text(json.dumps(config(command)))
        words = (*self._words, "run", "--bundle", str(self._bundle), f"bench-{secrets.token_hex(6)}")
        began = time.perf_counter()
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        seconds = time.perf_counter() - began
        if done.returncode != 0 or done.stdout.decode() != OUTPUTS[command]:
            raise BenchError(f"the runtime alone: {done.returncode} {done.stdout!r} {done.stderr!r}")
        return seconds


def config(command: tuple[str, ...]) -> dict[str, object]:
    """The least that a runtime takes: namespaces, a read-only root, /proc, /dev and a small /tmp."""
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=16m"]},
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": SANDBOX_USER.uid, "gid": SANDBOX_USER.gid},
            "args": list(command),
            "env": [PATH],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "floor",
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }


@contextlib.asynccontextmanager
async def jetstream(folder: Path) -> AsyncIterator[JetStreamContext]:
    """A server with one stream on disk, and nothing of ours."""
    port = held_port()
    words = (nats_server_binary(), "-js", "-sd", str(folder / "jetstream"), "-a", "127.0.0.1", "-p", str(port))
    with (folder / "jetstream.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log)
    try:
        await _listens(port)
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        try:
            stream = client.jetstream()
            await stream.add_stream(name="FIELD", subjects=["field.>"])
            yield stream
        finally:
            await client.close()
    finally:
        process.kill()
        await process.wait()


async def _listens(port: int) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise BenchError("nats-server does not come up") from None


async def publish(stream: JetStreamContext) -> dict[str, float]:
    taken = []
    for _ in range(PUBLISHES):
        began = time.perf_counter()
        await stream.publish("field.one", BODY)
        taken.append(time.perf_counter() - began)
    return {JETSTREAM: statistics.median(taken)}


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout
