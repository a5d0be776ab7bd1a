"""Server, node, worker and provider lose touch with the broker in ways that no socket reports.

A PONG comes late, the client's read loop ends, or the TCP connection is half open: in all four processes at once, in
the middle of a workflow, a sandboxed run and a job. Each process works again, and nothing is lost or done twice.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import subprocess
import sys
from asyncio import to_thread
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, ListedKey
from tests import slow_job
from tests.conformance.broker_bench import NODE, WORKER, NatsServer, fresh
from tests.conftest import TimeBounds
from tests.faults.broken_line import BrokenLine
from tests.jobs_process import ENDED, ProviderProcess
from tests.node_process import NodeProcess
from tests.noise import Watch
from tests.server_process import ROOT, ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER_PROGRAM = ROOT / "tests" / "integration" / "sdk_worker_process.py"
PROCESSES = ("server", "node", "worker", "provider")
BACK_SECONDS = 60.0


@dataclass
class Cell:
    lines: dict[str, BrokenLine]
    server: ServerProcess
    notes: Path
    image: str

    def client(self) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {self.server.token}"}
        return httpx.AsyncClient(base_url=self.server.url, headers=headers, timeout=10, trust_env=False)

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        async with self.client() as client:
            answer = await client.post(path, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def get(self, path: str, met: Callable[[dict[str, Any]], bool] = bool, seconds: float = 60) -> dict[str, Any]:
        """What is there once it is as it should be. A server that has lost touch with the broker is asked again."""

        async def look() -> dict[str, Any] | None:
            with contextlib.suppress(httpx.HTTPError):
                async with self.client() as client:
                    answer = await client.get(path)
                if answer.status_code == 200 and met(answer.json()):
                    found: dict[str, Any] = answer.json()
                    return found
            return None

        found: dict[str, Any] = await until(look, seconds)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cell(tmp_path_factory: pytest.TempPathFactory, base_image: str) -> AsyncIterator[Cell]:
    folder = tmp_path_factory.mktemp("cell")
    nats = NatsServer(folder / "nats", 1)
    async with contextlib.AsyncExitStack() as stack:
        await to_thread(nats.start)
        stack.callback(nats.kill)
        address = nats.options().servers[0]
        lines = {name: await stack.enter_async_context(BrokenLine.to(address)) for name in PROCESSES}
        seen = {name: nats.through(line.port) for name, line in lines.items()}
        jobs = {"FUMEHOOD_JOB_MODULES": "tests.slow_job"}

        server = ServerProcess(folder, seen["server"], env={"FUMEHOOD_DRAIN_SECONDS": "1", **jobs})
        await to_thread(server.__enter__)
        stack.callback(server.kill)

        password = folder / "node.password"
        password.touch(mode=0o600)
        password.write_text(str(NODE.password))
        node = NodeProcess(
            folder,
            env={
                "FUMEHOOD_NATS_SERVERS": seen["node"].options().servers[0],
                "FUMEHOOD_NATS_USER": NODE.name,
                "FUMEHOOD_NATS_PASSWORD_FILE": str(password),
            },
        )
        await stack.enter_async_context(node)

        provider = ProviderProcess(folder, seen["provider"], 0, env={"PROVIDER_JOB_TYPES": slow_job.NAME, **jobs})
        made = Cell(lines, server, folder / "notes", base_image)
        async with made.client() as client:
            (await client.put("/v1/receipt-keys", json=receipt_keys(provider))).raise_for_status()
        provider.launch()
        stack.callback(provider.kill)
        await to_thread(provider.wait)

        url = seen["worker"].options().servers[0].replace("://", f"://{WORKER.name}:{WORKER.password}@")
        command = [sys.executable, str(WORKER_PROGRAM), url, "hang", str(made.notes), json.dumps({"max_tasks": 4})]
        worker = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})  # noqa: ASYNC220
        stack.callback(worker.wait)
        stack.callback(worker.kill)
        yield made


def receipt_keys(provider: ProviderProcess) -> dict[str, Any]:
    root, now = SigningKey.generate(), dt.datetime.now(dt.UTC)
    mine = ListedKey(
        key_id=provider.key.key_id,
        public_key=provider.key.public_key.hex(),
        worker=provider.name,
        not_before=now - dt.timedelta(hours=1),
    )
    return {"root": root.public_key.hex(), "list": KeyList(version=1, issued_at=now, keys=(mine,)).sign(root)}


def has_begun(found: dict[str, Any]) -> bool:
    """On a slow machine it may have ended by now, too."""
    return found["status"] in ("running", *ENDED)


class Work:
    """A workflow for the worker, a run for the node and a job for the provider."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.text = fresh("text")
        self.done_before = self.handled()

    def handled(self) -> int:
        return self.cell.notes.read_text().count("begun") if self.cell.notes.exists() else 0

    async def start(self) -> None:
        """Until each of the three has begun."""
        cell = self.cell
        cell.notes.with_suffix(".go").unlink(missing_ok=True)
        async with cell.client() as client:
            workflow = {"name": "hang", "steps": [{"id": "a", "task": "hang"}]}
            (await client.put("/v1/workflows/hang", json=workflow)).raise_for_status()
        self.workflow = (await cell.post("/v1/workflows/hang/runs", {}))["run_id"]
        command = ["sh", "-c", f"echo {self.text}; sleep 3"]
        limits = {"cpu_millis": 1000, "memory_mb": 128, "timeout_seconds": 300}
        run = {"image_ref": cell.image, "command": command, "resources": limits, "network_policy_profile": "deny-all"}
        self.run = (await cell.post("/runs", run))["run_id"]
        once = {"mode": "objective", "redundancy": 1, "adjudication": "none"}
        payload = {"text": self.text, "takes_ms": 3000, "verification": once}
        job = {"job_type": slow_job.NAME, "payload": payload}
        self.job = (await cell.post("/v1/jobs", job, **{"idempotency-key": self.text}))["job_id"]

        async def handling() -> bool:
            return self.handled() > self.done_before

        await until(handling)
        await cell.get(f"/runs/{self.run}", has_begun)
        await cell.get(f"/v1/jobs/{self.job}", has_begun)

    async def finish(self) -> None:
        """Each ends, once, with the right answer."""
        cell = self.cell
        cell.notes.with_suffix(".go").touch()
        workflow = await cell.get(f"/v1/runs/{self.workflow}", lambda found: found["status"] in ENDED)
        assert (workflow["status"], workflow["output"]["a"]["attempt"]) == ("succeeded", 1)
        assert self.handled() == self.done_before + 1
        history = await cell.get(f"/v1/runs/{self.workflow}/history")
        kinds = [event["type"] for record in history["records"] for event in record["events"]]
        assert len(kinds) == len(set(kinds)), kinds

        run = await cell.get(f"/runs/{self.run}", lambda found: found["status"] in ENDED)
        assert (run["status"], run["exit_code"]) == ("succeeded", 0)
        log = await cell.get(f"/runs/{self.run}/logs")
        assert log["stdout"] == f"{self.text}\n"

        job = await cell.get(f"/v1/jobs/{self.job}", lambda found: found["status"] in ENDED)
        assert job["status"] == "succeeded", job
        assert job["result"]["sha256"] == hashlib.sha256(self.text.encode()).hexdigest()
        assert len(job["receipts"]) == 1


def late_pong(line: BrokenLine) -> None:
    line.delay_pongs(3)


FAULTS = {"late-pong": late_pong, "ended-read-loop": BrokenLine.end_reading, "half-open": BrokenLine.freeze}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", list(FAULTS))
async def test_every_process_recovers(cell: Cell, fault: str, time_bounds: TimeBounds) -> None:
    work = Work(cell)
    await work.start()
    before = {name: line.connections for name, line in cell.lines.items()}
    delayed = {name: line.delayed for name, line in cell.lines.items()}
    for line in cell.lines.values():
        FAULTS[fault](line)
    watch = Watch()

    async def recovered() -> bool:
        if fault == "late-pong":
            return all(line.delayed > delayed[name] for name, line in cell.lines.items())
        return all(line.connections > before[name] for name, line in cell.lines.items())

    await until(recovered, BACK_SECONDS)
    time_bounds.check(watch.seconds, 15)
    await work.finish()

    more = Work(cell)
    await more.start()
    await more.finish()
