"""Processes of a bench: how they are started and asked, and what they do about it.

The first line of standard input is a JSON document with what it needs (no password is ever an argument); it answers
`ready`. Each further line is a question that is answered by one line of JSON; the end of the input is the end of the
process, so that nothing outlives whoever started it. With `profile` in the document, processor time is sampled and
written there.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.engine_sampling import Sampler
from bench.world import BenchError
from fumehood.cli.serving import calm_collector
from fumehood.door.logs import configure_logging

READY_SECONDS = 60.0
STOP_SECONDS = 15.0
Answer = Callable[[], dict[str, Any]]
Begin = Callable[[dict[str, Any]], Awaitable[Answer]]


class Child:
    """A process of a bench, with a role in it."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self._process = process
        self._asking = asyncio.Lock()

    @classmethod
    async def start(cls, role: str, document: dict[str, Any], module: str = "bench.engine_process") -> Child:
        """`module` is one whose main part is `serve`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, role),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 * 1024 * 1024,
        )
        made = cls(role, process)
        try:
            await made._ask(document, READY_SECONDS)
        except BaseException:
            await made.stop()
            raise
        return made

    @property
    def pid(self) -> int:
        return self._process.pid

    async def figures(self) -> dict[str, Any]:
        return await self._ask({}, STOP_SECONDS)

    async def _ask(self, document: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._asking:
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            try:
                async with asyncio.timeout(seconds):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                raise BenchError(f"the {self.role} does not answer") from None
        if not line:
            raise BenchError(f"the {self.role} ended by itself")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rss_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()


async def serve(roles: Mapping[str, Begin]) -> None:
    """The process of one role, the first argument."""
    configure_logging(level="warning")  # to standard error: the other one is for answers
    reader = asyncio.StreamReader(limit=1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    document = json.loads(await reader.readline())
    answer = await roles[sys.argv[1]](document)
    calm_collector()  # as a server does; both sides
    sampler = Sampler() if document.get("profile") else None
    _say({"ready": True})
    while await reader.readline():
        used = resource.getrusage(resource.RUSAGE_SELF)
        _say({"cpu": used.ru_utime + used.ru_stime, **answer()})
    if sampler is not None:
        sampler.write(document["profile"])


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
