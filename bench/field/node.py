"""Jobs through a real node, warm and cold: `POST /v1/worker/jobs:run` over connections that are kept."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import dataclass

from bench.field.engine import Watch
from bench.field.rows import OUTPUTS, REMOVAL
from bench.sessions_http import Caller
from bench.world import BenchError
from fumehood.wire.worker_api import RUN_JOB_PATH
from tests.node_process import NodeProcess

READY_SECONDS = 120.0
LOOK_SECONDS = 0.02
_STOCK = re.compile(r'^fumehood_node_warm_sandboxes\{state="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A caller of one node."""

    node: NodeProcess
    caller: Caller
    image: str
    watch: Watch

    async def ask(self, command: tuple[str, ...], job_id: str) -> tuple[str, float]:
        """What it printed, and the seconds to the answer."""
        sandbox = {"image": self.image, "command": list(command), "network_policy": "none"}
        document = {"version": 1, "task_id": str(uuid.uuid4()), "job_id": job_id, "sandbox": sandbox}
        body = json.dumps(document).encode()
        began = time.perf_counter()
        status, answer = await self.caller.ask("POST", RUN_JOB_PATH, body)
        seconds = time.perf_counter() - began
        found = json.loads(answer)
        if status != 200 or found.get("status") != "completed":
            raise BenchError(f"the job was answered with {status} {found}")
        return str(found["stdout"]), seconds

    async def run(self, command: tuple[str, ...], job_id: str | None = None) -> float:
        output, seconds = await self.ask(command, job_id or str(uuid.uuid4()))
        if output != OUTPUTS[command]:
            raise BenchError(f"a wrong answer: {output!r}")
        return seconds

    async def until_gone(self, command: tuple[str, ...], answered: str, gone: str) -> dict[str, float]:
        """For a cold one: under these names, to the answer and until the engine has destroyed the container."""
        job_id = str(uuid.uuid4())
        began = time.perf_counter()
        seconds = await self.run(command, job_id)
        whole = max(seconds, await self.watch.gone(job_id) - began)
        return {answered: seconds, gone: whole, REMOVAL: whole - seconds}

    # --- what lies in stock --------------------------------------------------------------------------------

    async def stock(self) -> dict[str, float]:
        """How many are `idle`, and how many are `making`."""
        _, text = await self.caller.ask("GET", "/metrics")
        found = {state: float(count) for state, count in _STOCK.findall(text.decode())}
        if "idle" not in found:
            raise BenchError("the node does not say how many idle sandboxes it has: fumehood_node_warm_sandboxes")
        return found

    async def warm(self) -> None:
        """Until one is ready to be claimed."""
        until = time.monotonic() + READY_SECONDS
        while (stock := await self.stock())["idle"] < 1:
            if time.monotonic() > until:
                raise BenchError(f"no warm sandbox within {READY_SECONDS:g} s, only {stock}:\n{self.node.log_tail()}")
            await asyncio.sleep(LOOK_SECONDS)
