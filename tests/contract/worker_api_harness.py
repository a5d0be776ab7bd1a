"""A scripted node behind the real door: the tests say what it answers, and see what it was asked."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from fumehood.door.server import make_server
from fumehood.door.tokens import TokenSource
from fumehood.errors import NotFoundError
from fumehood.node.http.app import create_app
from fumehood.node.http.schema import EXAMPLE_JOB
from fumehood.node.service import JobAnswer, Readiness
from fumehood.node.telemetry import Telemetry
from fumehood.settings import NodeSettings
from fumehood.verify.dsse import SigningKey
from fumehood.wire.canonical import canonical_json
from fumehood.wire.worker_api import RUN_JOB_PATH, JobStatus, RunJobRequest, RunJobResponse, Truncated
from tests.waiting import until, wait_until

CONTRACTS = Path(__file__).parents[2] / "contracts"
GOLDEN = CONTRACTS / "golden" / "worker-api"
TOKEN = "t0ken-of-the-tests"
NOON = dt.datetime(2026, 2, 16, 12, tzinfo=dt.UTC)
RECEIPT = canonical_json(SigningKey.from_seed(bytes(32)).sign("application/vnd.in-toto+json", b"{}"))


def golden(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return value


def a_request(**changes: Any) -> dict[str, Any]:
    """The contract's own example, with changes of the sandbox."""
    request = golden("request.json")
    request["sandbox"] |= changes
    return request


def completed(request: RunJobRequest, **changes: Any) -> RunJobResponse:
    fields: dict[str, Any] = {
        "task_id": request.task_id,
        "job_id": request.job_id,
        "status": JobStatus.COMPLETED,
        "exit_code": 0,
        "stdout": "hello\n",
        "stderr": "",
        "started_at": NOON,
        "ended_at": NOON + dt.timedelta(seconds=1),
        "truncated": Truncated(stdout=False, stderr=False),
    }
    return RunJobResponse(**fields | changes)


def at_once(request: RunJobRequest) -> JobAnswer:
    return JobAnswer(completed(request), effective_timeout_seconds=300)


@dataclass
class ScriptedService:
    """A `JobService` that does as it is told."""

    script: Callable[[RunJobRequest], JobAnswer] = at_once
    state: Readiness = field(default_factory=lambda: Readiness(True))
    gate: asyncio.Event | None = None
    """Jobs wait here; None: they do not."""
    asked: list[tuple[RunJobRequest, str]] = field(default_factory=list)
    ended: int = 0
    receipts: dict[str, bytes] = field(default_factory=lambda: {EXAMPLE_JOB: RECEIPT})

    async def run_job(self, request: RunJobRequest, body_sha256: str) -> JobAnswer:
        self.asked.append((request, body_sha256))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.script(request)
        self.ended += 1
        return answer

    async def receipt(self, job_id: str) -> bytes:
        if job_id not in self.receipts:
            raise NotFoundError("there is no such job here")
        return self.receipts[job_id]

    def readiness(self) -> Readiness:
        return self.state


def make_app(
    service: ScriptedService,
    *,
    settings: NodeSettings | None = None,
    telemetry: Telemetry | None = None,
    body_seconds: float = 60.0,
) -> FastAPI:
    settings = settings or NodeSettings(worker_api_token=TOKEN)
    return create_app(
        service,
        settings=settings,
        tokens=TokenSource(settings.worker_api),
        telemetry=telemetry or Telemetry(),
        body_seconds=body_seconds,
    )


def client(app: FastAPI, token: str | None = TOKEN) -> httpx.AsyncClient:
    """A client inside the process: no socket, so that nothing but the application answers."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://node", headers=headers)


async def post(app: FastAPI, body: object, token: str | None = TOKEN) -> httpx.Response:
    async with client(app, token) as http:
        return await http.post(RUN_JOB_PATH, json=body)


def _port(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


def _server(app: FastAPI) -> uvicorn.Server:
    return make_server(app, replace(NodeSettings(), port=0))


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[int]:
    """The application behind a real server in this event loop; its port."""
    server = _server(app)
    app.state.connections = server.server_state.connections
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield _port(server)
    finally:
        server.should_exit = True
        await task


@contextmanager
def served_in_thread(app: FastAPI) -> Iterator[int]:
    """The same for tests that are not asynchronous."""
    server = _server(app)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield _port(server)
    finally:
        server.should_exit = True
        thread.join(120)
