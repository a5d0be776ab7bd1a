"""An answer that goes on until it is complete, or until everything here ends; then it is ended as well as it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from fumehood.door.problems import problem, request_id_of


class Answering:
    """Whoever answers is given `send`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._begun = self._complete = False

    async def send(self, message: Message) -> None:
        self._begun = True
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def until(self, over: asyncio.Event, work: Awaitable[Any]) -> None:
        """In a task of its own, since whoever answers is not asked when it is over."""
        doing, ending = asyncio.ensure_future(work), asyncio.ensure_future(over.wait())
        try:
            await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            doing.cancel()
            ending.cancel()
            await asyncio.wait({doing, ending})
        if not doing.cancelled():
            doing.result()
        elif not self._begun:
            refusal = problem(
                "draining", "this server is shutting down", request_id_of(self._scope), {"retry-after": "1"}
            )
            await refusal(self._scope, self._receive, self._send)
        elif not self._complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
