"""Journals that a test writes itself, and readers that follow them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fumehood.broker.memory import NO_FAULTS, Faults, MemoryBroker, MemoryServer
from fumehood.broker.ports import Bucket
from fumehood.control import archived, records, summaries
from fumehood.control.callers import Caller, Scope
from fumehood.control.event_streams import EventOptions, Selection, Stream
from fumehood.control.events import Events
from fumehood.control.runs import Runs
from fumehood.control.workflows import Workflows
from fumehood.engine import definition
from fumehood.engine.events import Event, Record, RunStarted, RunSucceeded, StepCompleted, StepQueued
from fumehood.wire import blobref
from fumehood.wire.event_api import Message, Position, parse_cursor

PATIENCE = 180.0
STEPS = 3

_READ = definition.parse("name: w\nsteps:\n" + "".join(f"  - {{id: s{n}, task: t}}\n" for n in range(STEPS)))


def caller(tenant: str = "default") -> Caller:
    return Caller(tenant, "somebody", frozenset({Scope.RUNS_READ}))


def started(tenant: str | None = None, workflow: str = "w") -> RunStarted:
    document = {**json.loads(_READ.canonical()), "name": workflow}
    return RunStarted(document, _READ.digest, None, meta={"tenant": tenant} if tenant else {})


class EventWorld:
    def __init__(
        self,
        partitions: int = 1,
        *,
        faults: Faults = NO_FAULTS,
        server: MemoryServer | None = None,
        **options: Any,
    ) -> None:
        self.server = server or MemoryServer(partitions=partitions)
        self.broker = MemoryBroker(self.server)
        self.events = self.another(faults=faults, **options)

    def another(self, *, faults: Faults = NO_FAULTS, **options: Any) -> Events:
        """One more server."""
        broker = MemoryBroker(self.server, faults=faults)
        runs = Runs(broker, Workflows(broker, now_ms=lambda: 0), now_ms=lambda: 0)
        return Events(broker, runs, EventOptions(**options))

    async def write(self, run_id: str, *events: Event, at: int = 1_700_000_000_000) -> int:
        """One more record of a run."""
        last = await self.broker.journal.last(run_id)
        after = 0 if last is None else last.seq
        _, data = await records.keep(Record(at, events), self.broker.blobs())
        return await self.broker.journal.append(run_id, records.name(run_id, after, data), data, expected=after)

    async def play(self, run_id: str, tenant: str | None = None) -> None:
        """A whole run: several records, some with several events."""
        await self.write(run_id, started(tenant), *(StepQueued(f"s{n}", 1, 0) for n in range(STEPS)))
        for n in range(STEPS - 1):
            await self.write(run_id, StepCompleted(f"s{n}", 1, {"n": n}))
        await self.write(run_id, StepCompleted(f"s{STEPS - 1}", 1), RunSucceeded({"done": True}))

    async def archive(self, run_id: str) -> None:
        """Move its history into a blob that its line names."""
        entries = await self.broker.journal.read(run_id)
        ref = await self.broker.blobs().put(await archived.pack(run_id, entries))
        line = {"workflow": "w", "status": "succeeded", summaries.ARCHIVED: blobref.reference(ref, 1)}
        await self.broker.bucket(Bucket.SUMMARIES).put(run_id, json.dumps(line).encode())
        await self.broker.journal.purge(run_id, upto=entries[-1].seq)

    async def all_of(self, run_id: str) -> list[tuple[str, dict[str, Any]]]:
        """What a reader of a run must see: ids and events, as the history has them."""
        return [
            (f"{entry.seq}-{index}", event)
            for entry in await self.broker.journal.read(run_id)
            for index, event in enumerate(json.loads(entry.data)["events"])
        ]

    @asynccontextmanager
    async def run(self, run_id: str, after: str | None = None, tenant: str = "default") -> AsyncIterator[Reader]:
        position = None if after is None else Position.parse(after)
        stream = await self.events.of_run(run_id, caller(tenant), position)
        assert stream is not None
        async with reading(stream) as reader:
            yield reader

    @asynccontextmanager
    async def wide(
        self, after: str | None = None, tenant: str = "default", selection: Selection | None = None
    ) -> AsyncIterator[Reader]:
        positions = None if after is None else parse_cursor(after, self.events.partitions)
        stream = await self.events.of_all(caller(tenant), selection or Selection(), positions)
        async with reading(stream) as reader:
            yield reader


@asynccontextmanager
async def reading(stream: Stream) -> AsyncIterator[Reader]:
    try:
        async with aclosing(stream.messages()) as messages:
            yield Reader(messages)
    finally:
        await stream.close()


class Reader:
    """Takes messages one by one; signs of life only move its id, as in a browser."""

    def __init__(self, messages: AsyncGenerator[Message, None]) -> None:
        self._messages = messages
        self.last_id: str | None = None
        self.signs = 0

    async def next(self) -> Message | None:
        """The next event; None when the stream has ended."""
        async with asyncio.timeout(PATIENCE):
            async for message in self._messages:
                self.last_id = message.id or self.last_id
                if message.data:
                    return message
                self.signs += 1
        return None

    async def take(self, count: int) -> list[Message]:
        found = [await self.next() for _ in range(count)]
        return [message for message in found if message is not None]

    async def rest(self) -> list[Message]:
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        return found


def ids(messages: list[Message]) -> list[str | None]:
    return [message.id for message in messages]


def said(message: Message | None) -> dict[str, Any]:
    assert message is not None
    found: dict[str, Any] = json.loads(message.data)
    return found
