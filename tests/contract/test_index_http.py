"""Lists of runs over HTTP: every filter, every refusal, page by page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.wire.times import rfc3339
from tests.contract.server_api_harness import Api
from tests.contract.test_server_api_http import complete, is_problem
from tests.unit.index_world import BEGAN, encode, failed, line, running
from tests.waiting import past, until


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = Api()
    async with made.service.index.working():
        yield made


async def put(api: Api, **lines: dict[str, Any]) -> None:
    """All of them, and until they are listed."""
    bucket = MemoryBroker(api.memory).bucket(Bucket.SUMMARIES)
    for name, document in lines.items():
        await bucket.put(name, encode(document))

    async def known() -> bool:
        return (await api.service.index.state()).runs == len(lines)

    await until(known)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["runs"]]


async def test_a_run_is_listed_as_it_goes(api: Api) -> None:
    async with api.client() as client:
        run_id = await api.started(client)
        await api.decide()

        async def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await client.get("/v1/runs")).json()["runs"]
            return found

        (shown,) = await until(listed)
        run = (await client.get(f"/v1/runs/{run_id}")).json()
        assert shown == {
            "run_id": run_id,
            "workflow": "w",
            "definition": run["definition"],
            "status": "running",
            "started_at": run["started_at"],
            "ended_at": None,
            "labels": {},
            "started_by": run["started_by"],
            "error": None,
            "failed_step": None,
            "tries": 0,
            "archived": False,
        }
        await complete(api, run_id, "a", 1)

        async def ended() -> bool:
            return ids(await client.get("/v1/runs", params={"status": "succeeded"})) == [run_id]

        await until(ended)
        assert ids(await client.get("/v1/dead-letters")) == []


async def test_what_can_be_known_of_a_run_is_shown(api: Api) -> None:
    document = failed(
        labels={"team": "a"}, tries=1, parent={"run_id": "run-0", "step": "s"}, schedule="nightly", continued_as="run-2"
    )
    document["archived"] = {"$blob": "sha256:" + "0" * 64, "size": 1}
    await put(api, **{"run-1": document})
    async with api.client() as client:
        for path in ("/v1/runs", "/v1/dead-letters"):
            (shown,) = (await client.get(path)).json()["runs"]
            assert shown["error"] == {"code": "boom", "message": "it broke", "details": None}
            assert (shown["failed_step"], shown["tries"], shown["archived"]) == ("a", 1, True)
            assert (shown["parent"], shown["schedule"]) == ({"run_id": "run-0", "step": "s"}, "nightly")
            assert (shown["continued_as"], shown["labels"]) == ("run-2", {"team": "a"})
            assert shown["started_at"] == "2025-06-15T15:06:40.000Z"


async def test_lists_are_filtered_and_come_page_by_page(api: Api) -> None:
    second = 1000
    await put(
        api,
        r1=line(BEGAN, labels={"team": "a", "env": "x=y"}),
        r2=running(BEGAN + second, workflow="v", labels={"team": "a"}),
        r3=failed(BEGAN + 2 * second, schedule="nightly"),
        r4=line(BEGAN + 3 * second, status="timed_out", parent={"run_id": "r1", "step": "s"}),
        r5=line(BEGAN + 4 * second, tenant="other"),
    )
    async with api.client() as client:
        for query, expected in {
            "": ["r4", "r3", "r2", "r1"],
            "workflow=v": ["r2"],
            "status=running": ["r2"],
            "status=failed&workflow=w": ["r3"],
            "label=team%3Da": ["r2", "r1"],
            "label=team=a&label=env=x=y": ["r1"],
            "label=team=a&label=team=a": ["r2", "r1"],
            "label=team=": [],
            "started_after=2025-06-15T15:06:41Z": ["r4", "r3", "r2"],
            "started_before=2025-06-15T15:06:41Z": ["r1"],
            "started_after=2025-06-15T17:06:41.0%2B02:00&started_before=2025-06-15t15:06:42z": ["r2"],
            "parent=r1": ["r4"],
            "schedule=nightly": ["r3"],
            "workflow=nobody": [],
        }.items():
            assert ids(await client.get(f"/v1/runs?{query}")) == expected, query
        assert ids(await client.get("/v1/dead-letters")) == ["r4", "r3"]
        assert ids(await client.get("/v1/dead-letters?status=timed_out")) == ["r4"]
        assert ids(await client.get("/v1/dead-letters?status=running")) == []
        first = await client.get("/v1/runs", params={"limit": 3})
        assert ids(first) == ["r4", "r3", "r2"]
        last = await client.get("/v1/runs", params={"limit": 3, "cursor": first.json()["next"]})
        assert (ids(last), last.json()["next"]) == (["r1"], None)


async def test_statistics_count_the_runs_of_a_window(api: Api) -> None:
    now = int(time.time()) * 1000
    begun = now // 60_000 * 60_000 - 120_000
    await put(
        api,
        r1=line(begun, ended_at=rfc3339(begun + 4000)),
        r2=line(begun + 1, workflow="v", ended_at=rfc3339(begun + 9001)),
        r3=failed(begun + 59_999),
        r4=failed(begun + 60_000, status="timed_out", ended_at=rfc3339(begun + 60_000)),
        r5=running(begun + 60_001, workflow="u"),
        r6=failed(begun + 2, status="cancelled"),
        r7=line(begun, tenant="other", workflow="secret"),
        r8=failed(begun - 7_200_000, workflow="old"),
    )
    async with api.client() as client:
        hour = (await client.get("/v1/run-statistics?window=hour")).raise_for_status().json()
        assert hour["interval_seconds"] == 60
        first, second = rfc3339(begun), rfc3339(begun + 60_000)
        assert hour["intervals"] == [
            {"at": first, "counts": {"cancelled": 1, "failed": 1, "succeeded": 2}},
            {"at": second, "counts": {"running": 1, "timed_out": 1}},
        ]
        assert hour["slowest"] == [
            {"workflow": "v", "runs": 1, "mean_seconds": 9.0, "longest_seconds": 9.0},
            {"workflow": "w", "runs": 4, "mean_seconds": 1.5, "longest_seconds": 4.0},
        ]
        assert hour["failing"] == [{"workflow": "w", "step": "a", "runs": 2, "newest": "r4"}]
        day = (await client.get("/v1/run-statistics")).raise_for_status().json()
        assert sum(sum(one["counts"].values()) for one in day["intervals"]) == 7
        assert {one["workflow"] for one in day["failing"]} == {"w", "old"}
        for query in ("window=year", "window=", "window=day&window=day", "since=today"):
            is_problem(await client.get(f"/v1/run-statistics?{query}"), 400, "invalid-request")


@pytest.mark.parametrize(
    "query",
    [
        "page=2",
        "status=queued",
        "status=",
        "workflow=",
        "schedule=",
        "workflow=a&workflow=b",
        "workflow=" + "x" * 129,
        "label=team",
        "label==a",
        "label=team=a&label=team=b",
        "label=" + "x" * 400 + "=1",
        "&".join(f"label=k{n}=1" for n in range(17)),
        "started_after=yesterday",
        "started_after=2026-01-01",
        "started_after=2026-01-01T00:00:00",
        "started_before=2026-13-01T00:00:00Z",
        "limit=0",
        "limit=201",
        "limit=ten",
        "cursor=nonsense",
        "cursor=",
        "cursor=" + "A" * 300,
    ],
)
async def test_a_query_that_is_none_is_refused(api: Api, query: str) -> None:
    async with api.client() as client:
        for path in ("/v1/runs", "/v1/dead-letters"):
            is_problem(await client.get(f"{path}?{query}"), 400, "invalid-request")


async def test_a_list_that_would_be_incomplete_is_not_given() -> None:
    api = Api()
    api.service.index._patience = 0.01
    async with api.client() as client:
        for path in ("/v1/runs", "/v1/dead-letters"):
            answer = await client.get(path)
            is_problem(answer, 503, "index-unavailable")
            assert answer.headers["retry-after"] == "2"
        assert (await client.get("/v1/index")).json() == {
            "state": "building",
            "caught_up": False,
            "runs": 0,
            "age_seconds": None,
            "built_at": None,
            "unreadable": 0,
        }
        is_problem(await client.post("/v1/index:rebuild"), 409, "conflict")


@pytest.mark.parametrize("body", [None, {}, {"from": "summaries"}, {"from": "journals"}])
async def test_the_index_is_made_anew(api: Api, body: dict[str, Any] | None) -> None:
    await put(api, r1=line())
    async with api.client() as client:
        before = (await client.get("/v1/index")).json()
        assert (before["state"], before["caught_up"], before["runs"]) == ("ready", True, 1)
        await past(0.002)
        answer = await (
            client.post("/v1/index:rebuild") if body is None else client.post("/v1/index:rebuild", json=body)
        )
        assert answer.status_code == 202
        assert answer.json()["state"] == "rebuilding"
        assert ids(await client.get("/v1/runs")) == ["r1"]

        async def done() -> bool:
            return bool((await client.get("/v1/index")).json()["state"] == "ready")

        await until(done)
        after = (await client.get("/v1/index")).json()
        assert after["built_at"] > before["built_at"]
        assert 0 <= after["age_seconds"] < 60
        assert ids(await client.get("/v1/runs")) == ["r1"]


@pytest.mark.parametrize("body", ['{"from":"thin air"}', '{"source":"journals"}', "[]", '{"from":null}', "{"])
async def test_a_rebuild_from_something_else_is_refused(api: Api, body: str) -> None:
    async with api.client() as client:
        json = {"content-type": "application/json"}
        is_problem(await client.post("/v1/index:rebuild", content=body, headers=json), 400, "invalid-request")
        other = {"content-type": "text/plain"}
        is_problem(await client.post("/v1/index:rebuild", content=body, headers=other), 415, "unsupported-media-type")


async def test_an_index_that_cannot_be_read_is_made_anew(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.control.index.RETRY_SECONDS", 0.01)
    await put(api, r1=line())
    async with api.client() as client:
        feed = api.service.index._feed
        assert feed is not None
        await feed.store.close()
        is_problem(await client.get("/v1/runs"), 503, "index-unavailable")

        async def back() -> bool:
            return (await client.get("/v1/runs")).is_success

        await until(back)
        assert ids(await client.get("/v1/runs")) == ["r1"]
