"""Live events over the real broker: clients that are cut off again and again, at one server and at another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fumehood.broker.broker import NatsBroker
from fumehood.control import intake, records
from fumehood.control.bridge import Bridge
from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.control.callers import Scope
from fumehood.control.http.app import create_app
from fumehood.control.keys import NewKey
from fumehood.control.service import Service
from fumehood.control.telemetry import Telemetry
from fumehood.door.server import DoorProtocol
from fumehood.door.tokens import TokenSource
from fumehood.engine import definition
from fumehood.engine.events import Record, StepQueued
from fumehood.engine.messages import MessageType
from fumehood.errors import BrokerUnavailableError
from fumehood.settings import ServerSettings
from fumehood.wire.protocol import EventType, TaskPayload
from tests.contract.bridge_harness import served
from tests.contract.sse import PATIENCE, Sse, follow
from tests.integration.engine_cases import STARTED, Say
from tests.integration.engine_world import World, shape, world

ADMIN = "t0ken-of-the-admin"
SETTINGS = ServerSettings(api_token=ADMIN)
PARTITIONS = 4
ITEMS = 40
RUNS = 8
LARGE_BYTES, LARGE_RECORDS = 100_000, 200
MAP = "name: w\nsteps:\n  - {id: each, map: {over: input, task: t, concurrency: 8}}\n"
STEPS = "name: w\nsteps:\n  - {id: a, task: t}\n  - {id: b, task: t, needs: [a]}\n"
COMPLETED = Say(EventType.COMPLETED, {"done": True})


@dataclass(frozen=True)
class Door:
    """A server of its own: its connection to the broker, and its address."""

    service: Service
    url: str

    def client(self, token: str = ADMIN) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE)


@contextlib.asynccontextmanager
async def door(here: World) -> AsyncIterator[Door]:
    broker = await NatsBroker.open(here.server.options(), shape(PARTITIONS))
    try:
        service = Service(broker)
        app = create_app(
            service,
            Bridge(broker),
            settings=SETTINGS,
            tokens=TokenSource(SETTINGS.api),
            bridge_tokens=TokenSource(SETTINGS.bridge),
            telemetry=Telemetry(),
        )
        async with served(app) as url:
            yield Door(service, url)
    finally:
        await broker.close()


async def begin(broker: NatsBroker, text: str, given: Any = None, tenant: str | None = None) -> str:
    run_id, read = f"run-{uuid.uuid4().hex[:12]}", definition.parse(text)
    meta = {"tenant": tenant} if tenant else {}
    body = {"definition": json.loads(read.canonical()), "digest": read.digest, "input": given, "meta": meta}
    await broker.mailboxes.send(run_id, f"{run_id}.start", intake.encode(MessageType.START, body))
    return run_id


@contextlib.asynccontextmanager
async def workers(broker: NatsBroker) -> AsyncIterator[None]:
    """They take every task, and complete it."""

    async def work() -> None:
        while True:
            with contextlib.suppress(BrokerUnavailableError):
                for delivery in await broker.tasks.pull(["t"], max_tasks=16, timeout=1.0):
                    task = TaskPayload.model_validate_json(delivery.data)
                    for say in (STARTED, COMPLETED):
                        event = say.about(task)
                        await broker.histories.publish(task.run_id, event.event_id, event.encode())
                    await broker.tasks.ack(delivery.token)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def places(broker: NatsBroker, run_id: str) -> list[tuple[str, str]]:
    """The ids and types of all events of a run, as its journal has them."""
    return [
        (f"{entry.seq}-{index}", event["type"])
        for entry in await broker.journal.read(run_id)
        for index, event in enumerate(json.loads(entry.data)["events"])
    ]


async def test_a_client_that_is_cut_off_fifty_times_sees_every_event_once_and_in_order(tmp_path: Path) -> None:
    """It goes on at another server each time, while the run goes on."""
    async with world(tmp_path, PARTITIONS) as here, workers(here.broker), door(here) as one, door(here) as two:
        clients = (one.client(), two.client())
        run_id = await begin(here.broker, MAP, list(range(ITEMS)))
        found: list[Sse] = []
        last, cuts, ended = "", 0, False
        while not ended:
            async with follow(clients[cuts % 2], f"/v1/runs/{run_id}/events", last) as source:
                for event in await source.take(1 + cuts % 3):
                    ended |= event.event == "end"
                    found += [event] if event.event != "end" else []
                last, cuts = source.last_id, cuts + 1
        assert cuts > 50
        assert [(event.id, event.event) for event in found] == await places(here.broker, run_id)
        seen = {"last-event-id": last}
        assert (await clients[0].get(f"/v1/runs/{run_id}/events", headers=seen)).status_code == 204
        for client in clients:
            await client.aclose()


async def test_readers_of_all_runs_of_two_tenants_are_cut_off_and_miss_nothing(tmp_path: Path) -> None:
    runs: dict[str, list[str]] = {"red": [], "blue": []}
    async with world(tmp_path, PARTITIONS) as here, door(here) as one, door(here) as two, workers(here.broker):
        tokens = {tenant: await key_of(one, tenant) for tenant in runs}

        async def reader(tenant: str, begun: asyncio.Event) -> list[Sse]:
            """Until all runs that there will be have ended."""
            found: list[Sse] = []
            last, cuts = "", 0
            async with one.client(tokens[tenant]) as first, two.client(tokens[tenant]) as second:
                while not is_complete(found):
                    async with follow((first, second)[cuts % 2], "/v1/events", last) as source:
                        begun.set()
                        for _ in range(1 + cuts % 4):
                            if not is_complete(found):
                                found += await source.take(1)
                        last, cuts = source.last_id, cuts + 1
            assert cuts > 20
            return found

        bells = {tenant: asyncio.Event() for tenant in runs}
        reading = {tenant: asyncio.create_task(reader(tenant, bells[tenant])) for tenant in runs}
        for bell in bells.values():
            await bell.wait()
        for number in range(2 * RUNS):
            tenant = ("red", "blue")[number % 2]
            runs[tenant].append(await begin(here.broker, STEPS, tenant=tenant))
        for tenant, task in reading.items():
            found = await task
            told = [(event.said["run_id"], event.said["seq"], event.event) for event in found]
            for run_id in runs[tenant]:
                expected = [(int(place.partition("-")[0]), kind) for place, kind in await places(here.broker, run_id)]
                assert [(seq, kind) for run, seq, kind in told if run == run_id] == expected, "in order, and once"
            assert {run for run, *_ in told} == set(runs[tenant])


def is_complete(found: list[Sse]) -> bool:
    """A run's end is the last that is told of it."""
    return sum(event.event == "run.succeeded" for event in found) == RUNS


async def key_of(at: Door, tenant: str) -> str:
    _, token = await at.service.keys.create(NewKey("k", frozenset({Scope.RUNS_READ}), tenant), ADMINISTRATOR)
    return token


async def test_a_reader_who_stops_reading_holds_up_nobody_and_nothing_is_kept_for_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty megabytes pass by one who takes nothing, and by one who takes all of it."""
    monkeypatch.setattr(DoorProtocol, "stall_seconds", 600.0)  # however long it takes here, he stays
    async with world(tmp_path, PARTITIONS) as here, door(here) as one, one.client() as client:
        run_id = await begin(here.broker, STEPS)
        await here.journals.until(run_id, lambda events: len(events) >= 2)
        host, port = one.url.removeprefix("http://").split(":")
        stuck, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\r\n".encode())
        assert (await stuck.readline()).startswith(b"HTTP/1.1 200")
        async with follow(client, "/v1/events") as quick:
            tracemalloc.start()
            try:
                async for number in write_large(here.broker, run_id):  # one by one: nothing waits for the quick reader
                    event = await quick.next()
                    assert event is not None
                    assert event.said["iteration"] == number
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert len(one.service.events) == 2, "he is there still"
        writer.transport.abort()
    assert peak < LARGE_RECORDS * LARGE_BYTES / 2


async def write_large(broker: NatsBroker, run_id: str) -> AsyncIterator[int]:
    entry = await broker.journal.last(run_id)
    assert entry is not None
    last = entry.seq
    for number in range(LARGE_RECORDS):
        data = Record(1, (StepQueued("a", 1, number, "x" * LARGE_BYTES),)).encode()
        last = await broker.journal.append(run_id, records.name(run_id, last, data), data, expected=last)
        yield number
