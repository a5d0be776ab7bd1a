"""A caller that speaks to an application directly, and hangs up on a stream once it has heard enough."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

LISTENED_SECONDS = 0.15
"""To a stream that does not end by itself."""
PATIENCE_SECONDS = 90.0


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def said(self) -> bytes:
        """Every byte of it."""
        return repr(sorted(self.headers.items())).encode() + self.body

    def json(self) -> Any:
        return json.loads(self.body)


class Call:
    """One request under way."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        token: str | None = None,
        body: bytes = b"",
        media_type: str = "application/json",
    ) -> None:
        self.answer = Answer()
        self._body = body
        self._asked = False
        self._gone = asyncio.Event()
        self.begun = asyncio.Event()
        self._ended = asyncio.Event()
        path, _, query = path.partition("?")
        headers = [(b"x-request-id", b"the-request"), (b"content-type", media_type.encode())]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "scheme": "http",
            "server": ("server", 80),
        }
        self._task = asyncio.create_task(_run(app, scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.begun.set()
        else:
            self.answer.body += message["body"]
            if not message.get("more_body", False):
                self._ended.set()

    async def finish(self, seconds: float) -> Answer:
        """The answer, or what came of it until then."""
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait({ended, self._task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        self._gone.set()
        await asyncio.wait_for(self._task, 120)
        return self.answer


async def _run(app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)


async def ask(
    app: ASGIApp,
    method: str,
    path: str,
    token: str | None = None,
    body: Any = None,
    media_type: str = "application/json",
) -> Answer:
    """Ask, and hear the answer to its end, or a stream for a moment."""
    call = Call(app, method, path, token, b"" if body is None else json.dumps(body).encode(), media_type)
    await asyncio.wait_for(call.begun.wait(), PATIENCE_SECONDS)
    is_stream = "text/event-stream" in call.answer.headers.get("content-type", "")
    return await call.finish(LISTENED_SECONDS if is_stream else PATIENCE_SECONDS)
