"""A client of event streams as a browser is one: it knows the lines of Server-Sent Events, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

PATIENCE = 180.0


@dataclass(frozen=True)
class Sse:
    id: str
    event: str
    data: str

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found


class EventSource:
    """One stream, read line by line."""

    def __init__(self, answer: httpx.Response, last_id: str = "") -> None:
        self.answer = answer
        self.last_id = last_id
        self.comments: list[str] = []
        self.retry: int | None = None
        self._lines = answer.aiter_lines()

    async def next(self) -> Sse | None:
        """The next event; None at the stream's end."""
        async with asyncio.timeout(PATIENCE):
            return await self._next()

    async def _next(self) -> Sse | None:
        fields: dict[str, str] = {}
        async for line in self._lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "":
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    return Sse(self.last_id, fields.get("event", "message"), fields["data"])
                fields = {}
            elif name == "":
                self.comments.append(value)
            elif name == "retry":
                self.retry = int(value)
            else:
                assert name not in fields, "one line of data is enough"
                fields[name] = value
        return None

    async def take(self, count: int) -> list[Sse]:
        found = [await self.next() for _ in range(count)]
        return [event for event in found if event is not None]

    async def rest(self) -> list[Sse]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def follow(client: httpx.AsyncClient, path: str, last_id: str = "", **params: str) -> AsyncIterator[EventSource]:
    headers = {"last-event-id": last_id} if last_id else {}
    async with client.stream("GET", path, headers=headers, params=params) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        yield EventSource(answer, last_id)
