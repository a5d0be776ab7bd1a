"""A nats-server without accounts for a peer that brings its own streams; flushes as ours does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engine_world import folder
from bench.world import BenchError
from fumehood.broker.topology import GIB
from fumehood.cli.processes import held_port
from tests.conformance.broker_bench import nats_server_binary

READY_SECONDS = 60.0


def config(port: int, store: Path, *, sync_always: bool) -> str:
    """Its configuration, in the JSON that it also reads."""
    jetstream: dict[str, Any] = {"store_dir": str(store), "max_file_store": 4 * GIB}
    if sync_always:
        jetstream["sync_interval"] = "always"
    return json.dumps({"listen": f"127.0.0.1:{port}", "server_name": "peer", "jetstream": jetstream}, indent=2)


@dataclass(frozen=True, slots=True)
class PlainNats:
    pid: int
    url: str


@contextlib.asynccontextmanager
async def plain_nats(*, sync_always: bool) -> AsyncIterator[PlainNats]:
    port = held_port()
    async with folder() as path:
        file, log = path / "nats.conf", path / "log"
        file.write_text(config(port, path / "store", sync_always=sync_always))
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(nats_server_binary(), "-c", str(file), stderr=output)
        try:
            until = time.monotonic() + READY_SECONDS
            while not _listens(port):
                if process.returncode is not None or time.monotonic() > until:
                    raise BenchError(f"nats-server does not come up:\n{log.read_text()[-2000:]}")
                await asyncio.sleep(0.02)
            yield PlainNats(process.pid, f"nats://127.0.0.1:{port}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
