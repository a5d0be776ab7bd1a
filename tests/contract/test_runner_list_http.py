"""`GET /runs`: every filter, every refusal, page by page, and only runs of this kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fumehood.control.index_query import RunFilter
from fumehood.wire.sandbox import RunEnd, RunReason
from tests.contract.runner_harness import IMAGE, Door, report
from tests.contract.server_api_harness import Api, digest_of
from tests.waiting import until


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    api = Api()
    async with api.service.index.working(), api.client() as client:
        yield Door(api, client)


async def page(door: Door, **query: Any) -> dict[str, Any]:
    answer = await door.client.get("/runs", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ids(door: Door, **query: Any) -> list[str]:
    return [run["run_id"] for run in (await page(door, **query))["runs"]]


async def every_kind(door: Door) -> dict[str, str]:
    """A run in each state, and until the index knows of them all."""
    made = {}
    for status, code, end in (
        ("failed", RunReason.EXIT, RunEnd.FAILED),
        ("timed_out", RunReason.TIMEOUT, RunEnd.TIMED_OUT),
    ):
        made[status] = await door.created()
        await door.node.fail(await door.node.begin(), code.value, report(end, code, exit_code=3))
    made["succeeded"] = await door.created()
    await door.node.complete(await door.node.begin(), report())
    made["stopped"] = await door.created()
    await door.stop(made["stopped"])
    made["running"] = await door.created(image_ref="127.0.0.1:5055/team/other:2")
    await door.node.begin()
    made["starting"] = await door.created()
    await door.node.take()
    made["queued"] = await door.created()
    await door.api.started(door.client)
    await door.api.decide()

    async def known() -> bool:
        settled = {run["run_id"] for run in (await page(door))["runs"] if run["finished_at"] is not None}
        return len(await ids(door)) == 7 and len(settled) == 4

    await until(known)
    return made


async def test_every_status_is_told_and_found_and_a_workflows_run_is_not_there(door: Door) -> None:
    made = await every_kind(door)
    told = {run["run_id"]: run["status"] for run in (await page(door))["runs"]}
    assert told == {run_id: status for status, run_id in made.items()}
    for status, run_id in made.items():
        assert await ids(door, status=status) == [run_id], status
        assert told[run_id] == (await door.get(run_id))["status"]


async def test_a_run_that_was_stopped_and_has_not_ended_is_not_called_so(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    await door.stop(run_id)

    async def line() -> tuple[str, bool]:
        found = {run["run_id"]: run for run in (await page(door))["runs"]}.get(run_id, {})
        return found.get("status", ""), found.get("finished_at") is not None

    async def is_listed_as_stopped() -> bool:
        return bool((await door.api.service.index.runs("default", RunFilter(outcome="stopped"))).runs)

    await until(is_listed_as_stopped)
    assert await line() == ("running", False)
    await door.node.print(leased)
    assert await line() == ("stopped", True)


async def test_a_line_has_what_a_list_needs(door: Door) -> None:
    made = await every_kind(door)
    (run,) = (await page(door, status="failed"))["runs"]
    created, finished = run.pop("created_at"), run.pop("finished_at")
    assert created <= finished
    assert run == {
        "run_id": made["failed"],
        "status": "failed",
        "pod_name": f"run-{made['failed']}",
        "image_ref": IMAGE,
        "image_digest": digest_of(IMAGE),
        "exit_code": 3,
        "reason": "exit",
        "created_by": "admin",
    }
    (run,) = (await page(door, status="running"))["runs"]
    assert (run["finished_at"], run["exit_code"], run["reason"]) == (None, None, None)


async def test_runs_are_found_by_their_image_and_by_when_they_were_created(door: Door) -> None:
    made = await every_kind(door)
    other = digest_of("127.0.0.1:5055/team/other:2")
    assert await ids(door, image_digest=other) == [made["running"]]
    assert await ids(door, image_digest=other, status="queued") == []
    assert len(await ids(door, image_digest=digest_of(IMAGE))) == 6
    assert await ids(door, image_digest=digest_of("nobody's")) == []
    times = [run["created_at"] for run in (await page(door))["runs"]]
    assert times == sorted(times, reverse=True)
    newest = times[0]
    after, before = await ids(door, created_after=newest), await ids(door, created_before=newest)
    assert len(after) + len(before) == 7
    assert set(after).isdisjoint(before)


async def test_pages_go_on_where_the_last_one_ended(door: Door) -> None:
    made = await every_kind(door)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        part = await page(door, limit=2, **cursor)
        found += [run["run_id"] for run in part["runs"]]
        assert len(part["runs"]) <= 2
        if part["next"] is None:
            break
        cursor = {"cursor": part["next"]}
    assert sorted(found) == sorted(made.values())
    assert found == await ids(door)


@pytest.mark.parametrize(
    "query",
    [
        "status=cancelled",
        "status=",
        "image_digest=sha256:0",
        "image_digest=",
        "created_after=yesterday",
        "created_before=2026-01-01",
        "limit=0",
        "limit=201",
        "limit=x",
        "cursor=x",
        "cursor=",
        "workflow=w",
        "limit=1&limit=2",
    ],
)
async def test_what_is_not_understood_is_refused(door: Door, query: str) -> None:
    answer: httpx.Response = await door.client.get(f"/runs?{query}")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:fumehood:problem:invalid-request")


async def test_without_an_index_there_is_no_list_but_a_time_to_come_again() -> None:
    api = Api()
    api.service.index._patience = 0.05
    async with api.client() as client:
        answer = await client.get("/runs")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:fumehood:problem:index-unavailable")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_quota_counts_these_runs_too(door: Door) -> None:
    (await door.client.put("/v1/tenants/default", json={"max_runs": 1})).raise_for_status()
    first = await door.create("k")
    assert first.status_code == 201
    answer = await door.create()
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:fumehood:problem:quota-exceeded")
    assert len(door.api.registry.asked) == 1, "no registry is asked for a run that cannot be"
    again = await door.create("k")
    assert (again.status_code, again.json()) == (200, first.json()), "what was promised is no new run"
