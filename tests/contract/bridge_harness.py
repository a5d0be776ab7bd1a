"""A bridge behind a real door, over the in-memory broker or a real one, and a client that speaks the bare contract."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Broker
from fumehood.control.bridge import Bridge
from fumehood.control.http import bridge as http
from fumehood.control.http.gate import Gate
from fumehood.control.http.rules import RULES
from fumehood.control.service import Service
from fumehood.door.app import Door
from fumehood.door.problems import KINDS
from fumehood.door.schema import components
from fumehood.door.server import make_server
from fumehood.door.telemetry import Telemetry
from fumehood.door.tokens import TokenSource
from fumehood.settings import Access
from fumehood.wire.protocol import StepEvent, TaskPayload
from tests.waiting import until, wait_until

CONTRACTS = Path(__file__).parents[2] / "contracts"
GOLDEN = CONTRACTS / "golden" / "wire-protocol"
TOKEN = "t0ken-of-the-workers"
ADMIN = "t0ken-of-the-admin"
BODY_LIMIT = 10 * 1024 * 1024


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def make_app(bridge: Bridge) -> FastAPI:
    """The bridge's part of the server's door, alone."""
    service = Service(MemoryBroker())
    door = Door(
        title="bridge",
        description="",
        routers=[http.bridge_router(bridge)],
        components=lambda: components(http.MODELS, KINDS, {"bridgeToken": "The workers' token"}),
        announce=[],
    )
    door.guard(
        telemetry=Telemetry("server", "test"),
        paths=http.PATHS,
        open_paths=(),
        keeper=Gate(
            tokens=TokenSource(Access("api", "--token-file", token=ADMIN)),
            bridge_tokens=TokenSource(Access("bridge", "--bridge-token-file", token=TOKEN)),
            keys=service.keys,
            audit=service.audit,
            rules=RULES,
        ),
        body_limit=BODY_LIMIT,
    )
    return door


@dataclass(frozen=True)
class _Address:
    host: str = "127.0.0.1"
    port: int = 0


def _port(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The application behind a real server in this event loop; its address."""
    server = make_server(app, _Address())
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{_port(server)}"
    finally:
        server.should_exit = True
        await task


@contextmanager
def served_in_thread(app: FastAPI) -> Iterator[str]:
    """The same for tests that are not asynchronous."""
    server = make_server(app, _Address())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{_port(server)}"
    finally:
        server.should_exit = True
        thread.join(120)


class Client:
    """A worker that knows the contract and nothing else. `url` None: inside the process, without a socket."""

    def __init__(self, app: FastAPI | None = None, url: str = "http://bridge", token: str | None = TOKEN) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False) if app is not None else None
        self.http = httpx.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=240)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def poll(self, *types: str, max_tasks: int = 1, timeout_ms: int = 0, **more: Any) -> list[dict[str, Any]]:
        body = {"task_types": list(types or ("llm",)), "max_tasks": max_tasks, "timeout_ms": timeout_ms, **more}
        answer = await self.http.post("/v1/tasks/poll", json=body)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    async def resolve(self, task_id: str, action: str, **fields: Any) -> httpx.Response:
        return await self.http.post(f"/v1/tasks/{task_id}/resolve", json={"action": action, **fields})

    @asynccontextmanager
    async def connect(self, worker_id: str, *types: str) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        body = {"worker_id": worker_id, "task_types": list(types or ("llm",)), "max_tasks": 2}
        async with self.http.stream("POST", "/v1/workers/connect", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield read_events(answer.aiter_lines())


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Server-Sent Events, as every client library reads them."""
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def hand_out(broker: Broker, run_id: str, step_id: str = "step-a", kind: str = "llm", **fields: Any) -> None:
    """What the engine does with a step that is ready."""
    headers = fields.pop("headers", None)
    task = TaskPayload(task_id=f"{run_id}.{step_id}", run_id=run_id, step_id=step_id, **fields)
    number = f"{run_id}.{step_id}.{task.attempt}.{task.iteration}.{task.resumption or 0}"
    await broker.tasks.publish(kind, run_id, number, task.encode(), headers=headers)


async def history(broker: Broker, run_id: str, *, wait: float = 0.0) -> list[StepEvent]:
    """What has been said about a run since somebody last looked; it is taken away. `wait`: for a real broker."""
    found: list[StepEvent] = []
    while waiting := await broker.feed.pull(broker.partition_of(run_id), max_messages=64, timeout=wait):
        for delivery in waiting:
            await delivery.ack()
            if delivery.run_id == run_id:
                found.append(StepEvent.model_validate_json(delivery.data))
    return found


def ends(events: list[StepEvent]) -> list[str]:
    """What counts among them."""
    return [event.type.value for event in events if event.type.value != "step.started"]
