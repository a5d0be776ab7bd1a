"""Schedules over HTTP: every path, every answer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control.callers import Scope
from fumehood.control.schedule import Schedule
from fumehood.control.service import now_ms
from tests.contract.server_api_harness import SMALL, YAML, Api
from tests.contract.test_server_api_http import TIME, is_problem

ALL = "/v1/schedules"
ONE = f"{ALL}/nightly"
NIGHTLY = {"workflow": "w", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


async def ready(client: httpx.AsyncClient) -> None:
    assert (await client.put("/v1/workflows/w", content=SMALL, headers=YAML)).is_success


async def put(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await client.put(ONE, json=NIGHTLY | changes)


async def test_a_schedule_is_made_shown_listed_and_deleted() -> None:
    async with Api().client() as client:
        await ready(client)
        made = await put(client, input={"x": 1}, labels={"team": "a"}, catch_up="all", catch_up_limit=3)
        assert made.status_code == 201
        body = made.json()
        assert TIME.fullmatch(body.pop("created_at"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT0[01]:30:00\.000Z", body.pop("next_at"))
        assert body == {
            "name": "nightly",
            "workflow": "w",
            "cron": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "input": {"x": 1},
            "labels": {"team": "a"},
            "catch_up": "all",
            "catch_up_limit": 3,
            "paused": False,
            "changed_by": "admin",
            "last": None,
            "last_error": None,
        }
        assert (await client.get(ONE)).json() == made.json()
        assert (await client.get(ALL)).json() == {"schedules": [made.json()], "next": None}
        again = await put(client, input={"x": 1}, labels={"team": "a"}, catch_up="all", catch_up_limit=3)
        assert (again.status_code, again.json()) == (200, made.json())
        whole = (await put(client)).json()
        assert (whole["input"], whole["labels"], whole["catch_up"], whole["catch_up_limit"]) == (None, {}, "none", 10)
        gone = await client.delete(ONE)
        assert (gone.status_code, gone.content) == (204, b"")
        is_problem(await client.delete(ONE), 404, "not-found")
        assert (await client.get(ALL)).json() == {"schedules": [], "next": None}


async def test_schedules_come_page_by_page() -> None:
    async with Api().client() as client:
        await ready(client)
        for name in ("b", "a"):
            assert (await client.put(f"{ALL}/{name}", json=NIGHTLY)).status_code == 201
        page = (await client.get(ALL, params={"limit": "1"})).json()
        assert ([one["name"] for one in page["schedules"]], page["next"]) == (["a"], "a")
        page = (await client.get(ALL, params={"limit": "1", "after": "a"})).json()
        assert ([one["name"] for one in page["schedules"]], page["next"]) == (["b"], None)


async def test_a_schedule_is_paused_and_resumed() -> None:
    async with Api().client() as client:
        await ready(client)
        made = (await put(client)).json()
        paused = await client.post(f"{ONE}:pause")
        assert paused.json() == made | {"paused": True, "next_at": None}
        assert (await client.post(f"{ONE}:pause")).json() == paused.json()
        resumed = await client.post(f"{ONE}:resume")
        assert (resumed.status_code, resumed.json()) == (200, made)


async def test_a_trigger_starts_a_run_that_names_its_schedule() -> None:
    api = Api()
    async with api.client() as client:
        await ready(client)
        await put(client, input={"x": 1})
        answer = await client.post(f"{ONE}:trigger")
        assert answer.status_code == 201
        run_id = answer.json()["run_id"]
        await api.decide()
        run = (await client.get(f"/v1/runs/{run_id}")).json()
        assert (run["workflow"], run["input"], run["started_by"]) == ("w", {"x": 1}, "admin")
        (first, *_) = (await client.get(f"/v1/runs/{run_id}/history")).json()["records"]
        assert first["events"][0]["meta"]["schedule"]["name"] == "nightly"


async def later(api: Api) -> None:
    """As if no server had been there for a day."""
    bucket = MemoryBroker(api.memory).bucket(Bucket.SCHEDULES)
    entry = await bucket.get("default.nightly")
    assert entry is not None
    before = Schedule.decode(entry)
    await bucket.put(entry.key, replace(before, done_until=now_ms() - 86_400_000).encode())
    await api.service.scheduler.serve(entry.key)


async def test_what_was_fired_and_what_was_refused_is_shown() -> None:
    api = Api()
    async with api.client() as client:
        await ready(client)
        await put(client, catch_up="last")
        await later(api)
        fired = (await client.get(ONE)).json()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT0[01]:30:00\.000Z", fired["last"]["at"])
        assert (await client.get(f"/v1/runs/{fired['last']['run_id']}")).json()["status"] == "queued"
        await put(client, catch_up="last", cron="45 2 * * *")
        await client.put("/v1/workflows/w", content=SMALL + "input_schema: {type: object}\n", headers=YAML)
        await later(api)
        refused = (await client.get(ONE)).json()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT0[01]:45:00\.000Z", refused["last_error"]["at"])
        assert (refused["last_error"]["code"], refused["last"]) == ("invalid-request", None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workflow": "nobody"}, "workflow: there is no such workflow"),
        ({"workflow": ""}, "workflow: must not be empty"),
        ({"cron": "0 9 * *"}, "cron: 4 fields"),
        ({"cron": "61 * * * *"}, "cron: minute: 61 is not from 0 to 59"),
        ({"cron": "0 0 30 2 *"}, "cron: day of month: no month"),
        ({"cron": 5}, "cron: must be text"),
        ({"timezone": "Berlin"}, "timezone: not a time zone"),
        ({"catch_up": "some"}, "catch_up: must be 'none', 'last' or 'all'"),
        ({"catch_up_limit": 0}, "catch_up_limit: must be at least 1"),
        ({"catch_up_limit": 101}, "catch_up_limit: must be at most 100"),
        ({"paused": None}, "paused: null is not a value"),
        ({"paused": "yes"}, "paused: must be true or false"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"input": {"$blob": "x"}}, "input: the key $blob"),
        ({"every": "day"}, "every: is not a field of this contract"),
    ],
)
async def test_what_is_no_schedule_is_refused(change: dict[str, Any], said: str) -> None:
    async with Api().client() as client:
        await ready(client)
        assert said in is_problem(await put(client, **change), 400, "invalid-request")["detail"]
        assert (await client.get(ALL)).json()["schedules"] == []


@pytest.mark.parametrize("name", ["a.b", "a--b", "%2A", "a%00b", "x" * 129])
async def test_a_name_that_cannot_be_one(name: str) -> None:
    async with Api().client() as client:
        await ready(client)
        is_problem(await client.put(f"{ALL}/{name}", json=NIGHTLY), 400, "invalid-request")
        is_problem(await client.get(f"{ALL}/{name}"), 404, "not-found")
        for order in ("pause", "resume", "trigger"):
            is_problem(await client.post(f"{ALL}/{name}:{order}"), 404, "not-found")


async def test_queries_and_media_types_are_read_strictly() -> None:
    async with Api().client() as client:
        await ready(client)
        is_problem(await client.get(ALL, params={"limt": "1"}), 400, "invalid-request")
        is_problem(await client.get(ALL, params={"limit": "0"}), 400, "invalid-request")
        is_problem(await client.post(f"{ONE}:pause?x=1"), 400, "invalid-request")
        answer = await client.put(ONE, content="{}", headers={"content-type": "text/plain"})
        is_problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    ("scopes", "reads", "writes"),
    [
        ({Scope.SCHEDULES_READ}, 200, 403),
        ({Scope.SCHEDULES_WRITE}, 403, 200),
        ({Scope.RUNS_WRITE, Scope.WORKFLOWS_WRITE}, 403, 403),
    ],
)
async def test_a_key_may_do_what_its_scopes_say(scopes: set[Scope], reads: int, writes: int) -> None:
    api = Api()
    async with api.client() as client:
        await ready(client)
        assert (await put(client)).status_code == 201
        said = {"name": "k", "scopes": sorted(scopes)}
        token = (await client.post("/v1/keys", json=said)).json()["key"]
    async with api.client(token) as client:
        assert (await client.get(ALL)).status_code == reads
        assert (await client.get(ONE)).status_code == reads
        assert (await put(client)).status_code == writes
        assert (await client.post(f"{ONE}:pause")).status_code == writes
        assert (await client.post(f"{ONE}:resume")).status_code == writes
        assert (await client.post(f"{ONE}:trigger")).status_code == (201 if writes == 200 else 403)
        assert (await client.delete(ONE)).status_code == (204 if writes == 200 else 403)
