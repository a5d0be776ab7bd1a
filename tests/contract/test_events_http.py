"""Event streams at the real door: how they are asked for, how they look, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fumehood.control.event_streams import EventOptions
from fumehood.control.http import streams
from fumehood.door.server import DoorProtocol, make_server
from fumehood.engine.events import StepQueued
from fumehood.wire.protocol import EventType, StepEvent
from tests.contract.bridge_harness import served
from tests.contract.server_api_harness import ADMIN, YAML, Api
from tests.contract.sse import PATIENCE, follow
from tests.unit.event_world import EventWorld, started
from tests.waiting import until

RUN = "run-1"
TWO_STEPS = "name: w\nsteps:\n  - {id: a, task: t}\n  - {id: b, task: t, needs: [a]}\n"


@dataclass(frozen=True)
class Door:
    api: Api
    client: httpx.AsyncClient
    url: str

    def another(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE)

    async def started(self) -> str:
        run_id = await self.api.started(self.client, definition=TWO_STEPS)
        await self.api.decide()
        return run_id

    async def completed(self, run_id: str, step: str, output: Any = None) -> None:
        event = StepEvent(type=EventType.COMPLETED, run_id=run_id, step_id=step, payload=output)
        await self.api.service.broker.histories.publish(run_id, event.event_id, event.encode())
        await self.api.decide()

    async def played(self) -> str:
        """A run from its start to its end."""
        run_id = await self.started()
        await self.completed(run_id, "a")
        await self.completed(run_id, "b")
        return run_id

    async def history(self, run_id: str) -> list[tuple[str, dict[str, Any]]]:
        page = (await self.client.get(f"/v1/runs/{run_id}/history")).json()
        return [
            (f"{record['seq']}-{index}", {"seq": record["seq"], "at": record["at"], "run_id": run_id, **event})
            for record in page["records"]
            for index, event in enumerate(record["events"])
        ]

    async def key(self, tenant: str, *scopes: str) -> tuple[str, str]:
        body = {"name": "k", "tenant": tenant, "scopes": list(scopes)}
        made = (await self.client.post("/v1/keys", json=body)).raise_for_status().json()
        return made["id"], made["key"]


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Door]:
    api = Api(event_options=EventOptions(**options))
    async with served(api.app) as url:
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client:
            yield Door(api, client, url)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with opened() as made:
        yield made


# --- asking ------------------------------------------------------------------------------------------------


async def test_a_stream_is_the_history_as_it_is_told(door: Door) -> None:
    run_id = await door.played()
    async with follow(door.client, f"/v1/runs/{run_id}/events") as source:
        assert source.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert source.answer.headers["cache-control"] == "no-store"
        *events, end = await source.rest()
    expected = await door.history(run_id)
    assert [(event.id, event.said) for event in events] == expected
    assert [event.event for event in events] == [said["type"] for _, said in expected]
    assert (end.event, end.said) == ("end", {"run_id": run_id, "status": "succeeded"})
    assert end.id == events[-1].id, "the end is no event of the run"
    assert source.retry == 1000


async def test_a_stream_goes_on_behind_the_header_which_wins_over_the_query(door: Door) -> None:
    run_id = await door.played()
    places = [place for place, _ in await door.history(run_id)]
    path = f"/v1/runs/{run_id}/events"
    async with follow(door.client, path, places[1]) as source:
        assert [event.id for event in await source.rest()][:-1] == places[2:]
    async with follow(door.client, path, after=places[1]) as source:
        assert [event.id for event in await source.rest()][:-1] == places[2:]
    async with follow(door.client, path, places[3], after=places[1]) as source:
        assert [event.id for event in await source.rest()][:-1] == places[4:]
    nothing = await door.client.get(path, headers={"last-event-id": places[-1]})
    assert (nothing.status_code, nothing.content) == (204, b""), "which tells a browser not to come again"


@pytest.mark.parametrize("path", ["/v1/runs/run-nobody/events", "/v1/runs/a.b/events", "/v1/runs/%20/events"])
async def test_an_unknown_run_is_a_problem_and_no_stream(door: Door, path: str) -> None:
    answer = await door.client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/runs/{run}/events?after=x", {}),
        ("/v1/runs/{run}/events?after=1-2-3", {}),
        ("/v1/runs/{run}/events?since=1", {}),
        ("/v1/runs/{run}/events?after=1&after=2", {}),
        ("/v1/runs/{run}/events", {"last-event-id": "now"}),
        ("/v1/runs/{run}/events", {"last-event-id": "1" * 100}),
        ("/v1/runs/{run}/events", [("last-event-id", "1"), ("last-event-id", "2")]),
        ("/v1/events?after=1.2", {}),
        ("/v1/events?after=", {}),
        ("/v1/events?type=run.begun", {}),
        ("/v1/events?type=", {}),
        ("/v1/events?limit=1", {}),
        ("/v1/events", {"last-event-id": "1-2.3"}),
    ],
)
async def test_what_is_not_understood_is_refused(door: Door, path: str, headers: Any) -> None:
    run_id = await door.started()
    answer = await door.client.get(path.format(run=run_id), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:fumehood:problem:invalid-request")


@pytest.mark.parametrize("path", ["/v1/runs/run-1/events", "/v1/events"])
async def test_a_stranger_and_a_key_for_something_else_stay_outside(door: Door, path: str) -> None:
    async with httpx.AsyncClient(base_url=door.url) as stranger:
        assert (await stranger.get(path)).status_code == 401
    _, token = await door.key("default", "workflows:read")
    async with door.another(token) as other:
        assert (await other.get(path)).status_code == 403


async def test_too_many_are_told_to_come_later() -> None:
    async with opened(most_streams=4, most_wide=4) as door:
        run_id = await door.started()
        for path in (f"/v1/runs/{run_id}/events", "/v1/events"):
            async with follow(door.client, path):
                answer = await door.client.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            await until(lambda: len(door.api.service.events) == 0)


# --- following ---------------------------------------------------------------------------------------------


async def test_events_come_while_they_happen_to_one_run_and_to_all(door: Door) -> None:
    async with follow(door.client, "/v1/events") as every:
        run_id = await door.started()
        async with follow(door.client, f"/v1/runs/{run_id}/events") as one:
            first = [(await one.next(), await every.next()) for _ in range(2)]
            await door.completed(run_id, "a", {"found": "\r\n\u2028é"})
            await door.completed(run_id, "b")
            *rest, end = await one.rest()
            assert end.event == "end"
        told = [event.said for event, _ in first if event is not None] + [event.said for event in rest]
        assert told == [said for _, said in await door.history(run_id)]
        assert [event.said for event in await every.take(len(rest))] == told[2:]


async def test_a_tenant_sees_its_own_runs_only(door: Door) -> None:
    scopes = ("runs:read", "runs:write", "workflows:read", "workflows:write")
    tokens = [(await door.key(tenant, *scopes))[1] for tenant in ("red", "blue")]
    async with door.another(tokens[0]) as red, door.another(tokens[1]) as blue:
        async with follow(red, "/v1/events") as of_red, follow(blue, "/v1/events") as of_blue:
            runs = {}
            for tenant, client in (("red", red), ("blue", blue)):
                (await client.put("/v1/workflows/w", content=TWO_STEPS, headers=YAML)).raise_for_status()
                runs[tenant] = (await client.post("/v1/workflows/w/runs", json={})).json()["run_id"]
            await door.api.decide()
            for tenant, source in (("red", of_red), ("blue", of_blue)):
                assert {event.said["run_id"] for event in await source.take(2)} == {runs[tenant]}
        answer = await red.get(f"/v1/runs/{runs['blue']}/events")
        assert answer.status_code == 404


async def test_only_some_types_of_one_workflow(door: Door) -> None:
    async with follow(door.client, "/v1/events", type="run.started,run.succeeded", workflow="w") as some:
        run_id = await door.played()
        assert [event.said["type"] for event in await some.take(2)] == ["run.started", "run.succeeded"]
        async with follow(door.client, "/v1/events", some.last_id, workflow="other") as none:
            await door.played()
            assert {event.said["run_id"] for event in await some.take(2)} != {run_id}
            door.api.service.drain()
            assert await none.rest() == []


# --- ending ------------------------------------------------------------------------------------------------


async def test_a_client_that_goes_leaves_nothing_behind(door: Door) -> None:
    run_id = await door.started()
    async with follow(door.client, f"/v1/runs/{run_id}/events"), follow(door.client, "/v1/events"):
        assert len(door.api.service.events) == 2
        assert "fumehood_server_event_streams 2.0" in (await door.client.get("/metrics")).text
    await until(lambda: len(door.api.service.events) == 0)
    assert not door.api.service.events.is_beating


async def test_a_drain_lets_everybody_go_and_nobody_in(door: Door) -> None:
    run_id = await door.started()
    path = f"/v1/runs/{run_id}/events"
    async with follow(door.client, path) as one, follow(door.client, "/v1/events") as every:
        await one.take(2)
        door.api.service.drain()
        assert [await one.rest(), await every.rest()] == [[], []]
    answer = await door.client.get(path)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fumehood:problem:draining")


async def test_there_are_comments_while_nothing_happens() -> None:
    async with opened(heartbeat_seconds=0.05) as door, follow(door.client, "/v1/events") as source:
        waiting = asyncio.create_task(source.next())
        await until(lambda: len(source.comments) >= 3)
        assert source.last_id
        await door.started()
        assert await waiting is not None


async def test_a_stream_does_not_outlive_its_key() -> None:
    """Long before its next heartbeat."""
    async with opened() as door:
        key_id, token = await door.key("default", "runs:read")
        run_id = await door.started()
        async with door.another(token) as owner:
            async with follow(owner, "/v1/events") as wide, follow(owner, f"/v1/runs/{run_id}/events") as one:
                rests = [asyncio.create_task(source.rest()) for source in (wide, one)]
                await until(lambda: wide.comments and one.comments)
                (await door.client.delete(f"/v1/keys/{key_id}")).raise_for_status()
                async with asyncio.timeout(60):
                    await asyncio.gather(*rests)
            assert (await owner.get("/v1/events")).status_code == 401


async def test_a_client_that_stops_reading_is_dropped_and_its_connection_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing is not enough: what is still to be sent would wait for him for ever."""
    monkeypatch.setattr(streams, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(DoorProtocol, "stall_seconds", 0.2)
    api = Api()
    server = make_server(api.app, api.settings.__class__(port=0))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    world = EventWorld(server=api.memory)
    await world.write(RUN, started())
    for number in range(100):
        await world.write(RUN, StepQueued("s0", 1, number, "x" * 100_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    head = f"GET /v1/runs/{RUN}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n\r\n"
    try:
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await until(lambda: len(api.service.events) == 1)
        await until(lambda: len(api.service.events) == 0)
        await until(lambda: not server.server_state.connections)
    finally:
        writer.transport.abort()
        server.should_exit = True
        await serving
