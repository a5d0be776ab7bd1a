"""The MCP server at a server's HTTP door: behind its guards, in front of its API.

Whoever comes here was let in by a key, and the same key asks the API for each tool call, so that scopes, quotas,
tenants, rates and the audit list are the API's own. Each key has a desk, with sessions that no other key can see.
Nothing of the `mcp` package is loaded before somebody comes.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fumehood.door.problems import problem, request_id_of
from fumehood.door.tokens import bearer
from fumehood.mcp.origin import Origins

if TYPE_CHECKING:
    from fumehood.mcp.desk import Desk

PATH = "/mcp"
METHODS = ("DELETE", "GET", "POST")
RETRY_SECONDS = "5"


@dataclass(frozen=True, slots=True)
class DoorBounds:
    """What callers may take up."""

    body_bytes: int = 4 * 1024 * 1024
    keys: int = 1024
    """That were here lately."""
    sessions: int = 64
    """Of each key. Only programs that speak the protocol as it was before 2026 have any."""
    requests: int = 128
    """Of each key at once; calls of tools count as long as they go on, whoever hung up."""
    idle_seconds: float = 1800.0
    """After which a session is over that nobody uses: half an hour. An open stream is use."""


MakeDesk = Callable[[ASGIApp, str | None, DoorBounds], Awaitable["Desk"]]


class McpDoor:
    """An ASGI application for one path."""

    def __init__(self, origins: Origins, bounds: DoorBounds | None = None) -> None:
        self._origins = origins
        self.bounds = bounds or DoorBounds()
        self._desks: dict[bytes, Desk] = {}
        self._opening = asyncio.Lock()
        self._make: MakeDesk | None = None
        self._draining = False

    def __len__(self) -> int:
        return len(self._desks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        trouble = self._origins.trouble(headers.getlist("host"), headers.getlist("origin"))
        if trouble is not None:
            await problem("forbidden", trouble, request_id_of(scope))(scope, receive, send)
            return
        if self._draining:
            await _later(scope, receive, send, "draining", "this server is shutting down")
            return
        desk = await self._desk(scope["app"], headers.get("authorization"))
        if desk is None or desk.load >= self.bounds.requests:
            whose = "too many keys are in use here" if desk is None else "this key has too many requests under way here"
            await _later(scope, receive, send, "overloaded", whose)
            return
        await desk.handle(scope, receive, send)

    async def _desk(self, app: ASGIApp, authorization: str | None) -> Desk | None:
        key = bearer(authorization).strip() or None
        name = hashlib.sha256((key or "").encode()).digest()
        async with self._opening:
            await self._tidy()
            if name not in self._desks:
                if len(self._desks) >= self.bounds.keys:
                    return None
                if self._make is None:  # loading takes a second, in which others want to be served
                    self._make = (await asyncio.to_thread(import_module, "fumehood.mcp.desk")).open_desk
                self._desks[name] = await self._make(app, key, self.bounds)
            self._desks[name].touch()
            return self._desks[name]

    async def _tidy(self) -> None:
        """Desks at which nobody was for longer than a session lives."""
        over = time.monotonic() - self.bounds.idle_seconds
        for name in [name for name, desk in self._desks.items() if desk.is_idle(over)]:
            await self._desks.pop(name).aclose(0)

    async def close(self, seconds: float) -> None:
        """Take nobody in, give calls under way their time, and end what is left: its commands are killed."""
        self._draining = True
        desks, self._desks = list(self._desks.values()), {}
        await asyncio.gather(*(desk.finish(seconds) for desk in desks))


async def _later(scope: Scope, receive: Receive, send: Send, code: str, detail: str) -> None:
    await problem(code, detail, request_id_of(scope), {"retry-after": RETRY_SECONDS})(scope, receive, send)
