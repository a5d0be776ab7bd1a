"""The doors of commands and sandboxes over a server's real console, with a worker whose sandboxes are in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.control.callers import Scope
from fumehood.control.console.output_streams import OutputOptions
from fumehood.control.keys import NewKey
from tests.contract.bridge_harness import served
from tests.contract.console_worker import MemoryWorker, Process, Session
from tests.contract.server_api_harness import ADMIN, Api
from tests.contract.sse import PATIENCE
from tests.waiting import until

CONTRACTS = Path(__file__).parents[2] / "contracts"
GOLDEN = CONTRACTS / "golden" / "commands-api"
BOTH = frozenset({Scope.SANDBOXES_READ, Scope.SANDBOXES_WRITE})


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@dataclass
class Desk:
    """A server, its caller, and a worker."""

    api: Api
    client: httpx.AsyncClient
    worker: MemoryWorker = field(default_factory=MemoryWorker)

    async def submit(self, capability: str = "echo", payload: Any = "hi", **more: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/commands", json={"capability": capability, "payload": payload, **more}, timeout=PATIENCE
        )

    async def sandbox(self, **wish: Any) -> str:
        answer = await self.client.post("/v1/sandboxes", json=wish)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sandbox_id"])

    async def run(self, sandbox_id: str, command: str | list[str], **more: Any) -> httpx.Response:
        path = f"/v1/sandboxes/{sandbox_id}/commands"
        return await self.client.post(path, json={"command": command, **more}, timeout=PATIENCE)

    async def background(self, sandbox_id: str, command: str, **more: Any) -> tuple[str, Process]:
        answer = await self.run(sandbox_id, command, background=True, **more)
        assert answer.status_code in (200, 202), answer.text
        command_id = answer.json()["command_id"]
        return command_id, self.session(sandbox_id).processes[command_id]

    def session(self, sandbox_id: str, tenant: str = "default") -> Session:
        return self.worker.sessions[tenant, sandbox_id]

    async def key(self, tenant: str = "acme", scopes: frozenset[Scope] = BOTH) -> str:
        _, token = await self.api.service.keys.create(NewKey("k", scopes, tenant), ADMINISTRATOR)
        return token

    async def as_tenant(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {await self.key(tenant)}"}


@asynccontextmanager
async def desk(
    *, real: bool = False, connected: bool = True, options: OutputOptions | None = None
) -> AsyncIterator[Desk]:
    """`real`: over a socket, where what is streamed comes before it ends."""
    api = Api(output_options=options)
    async with api.service.desk.working():
        if real:
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with (
                served(api.app) as url,
                httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
            ):
                yield await _joined(Desk(api, client), connected=connected)
        else:
            async with api.client() as client:
                yield await _joined(Desk(api, client), connected=connected)


async def _joined(made: Desk, *, connected: bool) -> Desk:
    if connected:
        await made.worker.connect(made.api.service.desk)
        presence = made.api.service.desk.presence

        async def known() -> bool:
            return presence.of(made.worker.worker_id) is not None

        await until(known)
    return made
