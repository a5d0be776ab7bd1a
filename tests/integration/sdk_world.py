"""A real broker, a real decider, and workers made with the SDK that live in the workers' account."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Tracer

from fumehood import Worker
from fumehood.broker.access import User
from fumehood.broker.broker import NatsBroker
from fumehood.broker.handout import Handouts
from fumehood.broker.lease import Lease
from fumehood.broker.ports import Bucket
from fumehood.broker.topology import TASK_STREAM
from fumehood.control.decider import Decider
from tests.conformance.broker_bench import WORKER, NatsServer, fresh
from tests.integration import engine_world
from tests.integration.engine_cases import Event
from tests.integration.engine_world import Journals
from tests.waiting import PATIENCE, until


@dataclass
class SdkWorld:
    server: NatsServer
    broker: NatsBroker
    journals: Journals
    decider: Decider

    def url(self, user: User = WORKER) -> str:
        """With the user's name and password in it."""
        (address,) = self.server.options().servers
        return address.replace("://", f"://{user.name}:{user.password}@")

    def worker(self, user: User = WORKER, **options: Any) -> Worker:
        return Worker(self.url(user), **options)

    async def start(self, text: str, given: Any = None) -> str:
        run_id = fresh()
        await engine_world.start(self.broker, run_id, text, given)
        return run_id

    async def cancel(self, run_id: str) -> None:
        await engine_world.cancel(self.broker, run_id)

    async def end(self, run_id: str) -> Event:
        """The event that a run ended with."""
        return (await self.journals.until(run_id))[-1]

    async def output(self, run_id: str) -> Any:
        last = await self.end(run_id)
        assert last["type"] == "run.succeeded", last
        return last["output"]

    async def until(self, run_id: str, kind: str, count: int = 1) -> list[Event]:
        """The events of a run once `count` of a kind are among them."""

        def met(events: list[Event]) -> bool:
            return [event["type"] for event in events].count(kind) >= count

        return await self.journals.until(run_id, met)

    async def listen(self, run_id: str) -> list[str]:
        """The types of all that workers say about a run from now on."""
        heard: list[str] = []
        await self.broker.connection.subscribe(
            f"history.*.{run_id}", lambda message: heard.append(json.loads(message.data)["type"])
        )
        return heard

    async def lease(self, run_id: str, step: str = "a") -> Lease | None:
        entry = await self.broker.bucket(Bucket.LEASES).get(f"{run_id}.{step}")
        return Lease.decode(entry) if entry is not None else None

    async def steal(self, run_id: str, step: str = "a") -> None:
        """The task goes to somebody else, who keeps it."""
        while True:
            lease = await self.lease(run_id, step)
            assert lease is not None
            stolen = json.loads(lease.encode()) | {"lease_id": "0" * 32, "worker_id": "thief"}
            with contextlib.suppress(Exception):
                await self.broker.bucket(Bucket.LEASES).update(
                    lease.key, json.dumps(stolen).encode(), revision=lease.revision, ttl=600
                )
                return

    async def queued(self, kind: str) -> int:
        info = await self.broker.connection.api(
            f"STREAM.INFO.{TASK_STREAM}", {"subjects_filter": f"task.{kind}.*"}, timeout=10
        )
        return sum((info["state"].get("subjects") or {}).values())

    async def nothing_queued(self, kind: str) -> None:
        async def empty() -> bool:
            return await self.queued(kind) == 0

        await until(empty)

    def handouts(self, **options: Any) -> Handouts:
        return Handouts(self.broker, **options)


@contextlib.asynccontextmanager
async def sdk_world(server: NatsServer, tracer: Tracer | None = None) -> AsyncIterator[SdkWorld]:
    broker = await NatsBroker.open(server.options(), engine_world.shape(1))
    decider = Decider(broker, now_ms=lambda: time.time_ns() // 1_000_000, tracer=tracer)
    deciding = asyncio.create_task(decider.work(0))
    journals = Journals(broker)
    await journals.open()
    try:
        yield SdkWorld(server, broker, journals, decider)
        if deciding.done():
            deciding.result()
    finally:
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        await broker.close()


def one_step(kind: str, **more: Any) -> str:
    """A workflow of one task, `a`, that gets the run's input."""
    return json.dumps({"name": "one", "steps": [{"id": "a", "task": kind, **more}]})


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()
