"""Where one key is served over HTTP: its sessions of the protocol, and the API asked with that key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import ASGIApp, Receive, Scope, Send

from fumehood.mcp.aftermath import Aftermath
from fumehood.mcp.answering import Answering
from fumehood.mcp.door import DoorBounds
from fumehood.mcp.inside import InsideTransport
from fumehood.mcp.progress import Progress
from fumehood.mcp.serving import Context, make_server
from fumehood.mcp.tool import Call
from fumehood.sdk.aio.client import AsyncClient
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.connection import Connection

URL = "http://127.0.0.1"
"""What the API is called in words to the caller. No socket has this address: it is asked in the same process."""
LEAVE_SECONDS = 3.0
"""For what is ended to be cleaned up, when the server goes."""
SECONDS = httpx.Timeout(30.0, read=60.0)


class Desk:
    """One key's place. Sessions that speak the protocol as it was before 2026 have an id, which only this key can use:
    so a call can be cancelled by another request. Newer ones have none, and cancel by hanging up."""

    def __init__(self, client: AsyncClient, bounds: DoorBounds) -> None:
        self._client = client
        self._aftermath = Aftermath()
        self._manager = StreamableHTTPSessionManager(
            make_server(self._opened),
            session_idle_timeout=bounds.idle_seconds,
            max_request_body_size=bounds.body_bytes,
            max_sessions=bounds.sessions,
        )
        self._leaving, self._over = asyncio.Event(), asyncio.Event()
        self._ready = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())
        self._used_at = time.monotonic()
        self._busy = 0
        """Requests that will be answered, and calls of tools: of these some go on when nobody listens any more."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._requests = 0
        self._calls = 0

    @property
    def load(self) -> int:
        """Requests that are open, or calls that go on: of these some have no request any more, others have one."""
        return max(self._requests, self._calls)

    async def _run(self) -> None:
        """Sessions are begun and ended by one task, as the package wants it."""
        async with self._manager.run():
            self._ready.set()
            await self._over.wait()

    @asynccontextmanager
    async def _opened(self, _: Context, progress: Progress) -> AsyncIterator[Call]:
        self._calls += 1
        try:
            with self._at_work():
                yield Call(self._client, progress, self._aftermath)
        finally:
            self._calls -= 1

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A GET is a stream on which nothing comes: it is no work."""
        is_stream = scope["method"] == "GET"
        self._requests += 1
        try:
            with contextlib.nullcontext() if is_stream else self._at_work():
                await self._ready.wait()
                answer = Answering(scope, receive, send)
                over = self._leaving if is_stream else self._over
                await answer.until(over, self._manager.handle_request(scope, receive, answer.send))
        finally:
            self._requests -= 1
            self.touch()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        self._busy += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()

    def touch(self) -> None:
        self._used_at = time.monotonic()

    def is_idle(self, since: float) -> bool:
        return not self._requests and not self._busy and not self._aftermath and self._used_at < since

    async def finish(self, seconds: float) -> None:
        """Calls under way have that much time; what still runs then is ended."""
        self._leaving.set()
        await self._calm(seconds)
        await self.aclose(LEAVE_SECONDS)

    async def _calm(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    async def aclose(self, seconds: float) -> None:
        """Ends what runs; what that leaves behind is cleaned up, within the time."""
        self._leaving.set()
        self._over.set()
        await asyncio.wait({self._task}, timeout=LEAVE_SECONDS)
        await self._calm(LEAVE_SECONDS)
        await self._aftermath.close(seconds)
        await self._client.aclose()


async def open_desk(app: ASGIApp, key: str | None, bounds: DoorBounds) -> Desk:
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it tells ids of sessions, and whatever callers send
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    http = httpx.AsyncClient(
        transport=InsideTransport(app), base_url=URL, headers=headers, timeout=SECONDS, trust_env=False
    )
    return Desk(AsyncClient(transport=AsyncTransport(Connection(URL, key, direct=True), http=http)), bounds)
