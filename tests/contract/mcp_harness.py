"""A server's real door with the MCP server at it, over a socket; a worker whose sandboxes are in memory; and the
protocol's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.control.callers import Scope
from fumehood.control.http.app import Neighbour
from fumehood.control.keys import NewKey
from fumehood.mcp.door import METHODS, PATH, DoorBounds, McpDoor
from fumehood.mcp.origin import Origins
from fumehood.settings import ServerSettings
from tests.contract.bridge_harness import served
from tests.contract.console_worker import MemoryWorker, Process, Session
from tests.contract.server_api_harness import ADMIN, SETTINGS, Api
from tests.waiting import until

BOTH = frozenset({Scope.SANDBOXES_READ, Scope.SANDBOXES_WRITE})
MODES = ("legacy", "auto")
"""The protocol with a handshake and sessions, and as it is since 2026."""


@dataclass
class Served:
    api: Api
    door: McpDoor
    url: str
    worker: MemoryWorker = field(default_factory=MemoryWorker)

    @asynccontextmanager
    async def client(self, token: str | None = ADMIN, mode: str = "legacy") -> AsyncIterator[Client]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=240) as http:
            transport = streamable_http_client(f"{self.url}{PATH}", http_client=http)
            async with Client(transport, mode=mode, read_timeout_seconds=60) as client:
                yield client

    def http(self, token: str | None = ADMIN) -> httpx.AsyncClient:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=240)

    async def key(self, tenant: str = "acme", scopes: frozenset[Scope] = BOTH) -> str:
        _, token = await self.api.service.keys.create(NewKey("k", scopes, tenant), ADMINISTRATOR)
        return token

    def session(self, name: str, tenant: str = "default") -> Session:
        return self.worker.sessions[tenant, name]

    async def process(self, name: str, tenant: str = "default") -> Process:
        """The newest command of a session, when there is one."""

        async def there() -> bool:
            known = self.worker.sessions.get((tenant, name))
            return known is not None and bool(known.processes)

        await until(there)
        return list(self.session(name, tenant).processes.values())[-1]


@asynccontextmanager
async def serving(bounds: DoorBounds | None = None, settings: ServerSettings = SETTINGS) -> AsyncIterator[Served]:
    door = McpDoor(Origins(local=True), bounds)
    api = Api(settings=settings, neighbour=Neighbour(PATH, METHODS, door, door.bounds.body_bytes))
    async with api.service.desk.working(), served(api.app) as url:
        made = Served(api, door, url)
        await made.worker.connect(api.service.desk)
        presence = api.service.desk.presence

        async def known() -> bool:
            return presence.of(made.worker.worker_id) is not None

        await until(known)
        try:
            yield made
        finally:
            await door.close(5)


def said(result: CallToolResult) -> dict[str, Any]:
    """What a tool answered for programs."""
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def refused(result: CallToolResult) -> dict[str, Any]:
    """Why it did not."""
    assert result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    error: dict[str, Any] = result.structured_content["error"]
    assert error["remedy"]
    assert text(result).startswith(error["detail"])
    assert "Traceback" not in text(result)
    return error


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text
