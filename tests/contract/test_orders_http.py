"""Orders over HTTP: what each answers, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.contract.server_api_harness import Api
from tests.waiting import until

ALL = """
name: w
steps:
  - {id: ok, approval: {message: "Ship it?"}, with: {what: input.what}}
  - {id: hear, wait_signal: {name: go}}
  - {id: work, task: t}
"""


@contextlib.asynccontextmanager
async def deciding(api: Api) -> AsyncIterator[None]:
    """A decider beside the door, as in every server."""
    working = asyncio.create_task(api.service.decider.work(0))
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@contextlib.asynccontextmanager
async def run_of_all() -> AsyncIterator[tuple[Api, httpx.AsyncClient, str]]:
    api = Api()
    async with api.client() as client, deciding(api):
        path = f"/v1/runs/{await api.started(client, {'what': 'it'}, ALL)}"

        async def begun() -> bool:
            return "ok" in (await client.get(path)).json()["steps"]

        await until(begun)
        yield api, client, path


async def test_what_waits_for_somebody_says_for_what() -> None:
    async with run_of_all() as (_, client, path):
        steps = (await client.get(path)).json()["steps"]
        assert steps["ok"]["status"] == "awaiting_approval"
        assert steps["ok"]["approval"] == {"message": "Ship it?", "approvers": [], "input": {"what": "it"}}
        assert (steps["hear"]["status"], steps["hear"]["signal"]) == ("listening", "go")


async def test_a_signal_an_approval_and_a_step_by_hand_end_a_run() -> None:
    async with run_of_all() as (_, client, path):
        told = await client.post(f"{path}/signals/go", json={"data": {"n": 1}, "id": "first"})
        assert (told.status_code, told.json()["done"]) == (200, True)
        said = await client.post(f"{path}/steps/ok:approve")
        assert said.status_code == 200
        done = await client.post(f"{path}/steps/work:complete", json={"reason": "did it myself", "output": 7})
        assert done.status_code == 200
        run = (await client.get(path)).json()
        assert (run["status"], run["output"]["hear"], run["output"]["work"]) == ("succeeded", {"n": 1}, 7)
        assert run["output"]["ok"]["by"] == "admin"
        assert run["steps"]["work"]["override"] == {"action": "complete", "by": "admin", "reason": "did it myself"}
        assert (await client.post(f"{path}/steps/ok:approve")).status_code == 409


async def test_a_token_opens_one_decision_and_needs_no_key() -> None:
    async with run_of_all() as (api, client, path):
        made = await client.post(f"{path}/steps/ok:token", json={"for": "carol@example.org"})
        assert made.status_code == 201
        decision = {"token": made.json()["token"], "decision": "reject", "comment": "too early"}
        async with api.client(None) as stranger:
            assert (await stranger.post(f"{path}/steps/ok:approve")).status_code == 401
            assert (await stranger.post("/v1/approvals", json=decision)).status_code == 200
            assert (await stranger.post("/v1/approvals", json=decision)).status_code == 409
            forged = {**decision, "token": decision["token"][:-2] + "xx"}
            assert (await stranger.post("/v1/approvals", json=forged)).status_code == 401
        run = (await client.get(path)).json()
        assert (run["status"], run["failed_step"]) == ("failed", "ok")
        assert run["error"] == {"code": "rejected", "message": "carol@example.org said no: too early", "details": None}


async def test_a_failed_run_is_taken_up_again_and_skipped_past_its_step() -> None:
    async with run_of_all() as (_, client, path):
        await client.post(f"{path}/steps/ok:reject", json={"comment": "no"})
        again = await client.post(f"{path}:retry", json={"reason": "asked again"})
        assert (again.status_code, again.json()["done"]) == (200, True)
        run = (await client.get(path)).json()
        assert (run["status"], run["tries"], run["steps"]["ok"]["status"]) == ("running", 1, "awaiting_approval")
        assert (await client.post(f"{path}:retry")).status_code == 409
        skipped = await client.post(f"{path}/steps/ok:skip", json={"reason": "not needed"})
        assert skipped.status_code == 200
        assert (await client.get(path)).json()["steps"]["ok"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/steps/work:skip", {}, 400),
        ("/steps/work:skip", {"reason": ""}, 400),
        ("/steps/work:complete", {"reason": "x", "output": {"$blob": "sha256:0"}}, 400),
        ("/steps/nothing:skip", {"reason": "x"}, 404),
        ("/steps/work:approve", {}, 409),
        ("/steps/ok:token", {"for": "two words"}, 400),
        ("/steps/ok:token", {"for": "carol", "expires_in_seconds": 0}, 400),
        ("/signals/a.b", {}, 400),
        ("/signals/go", {"unknown": 1}, 400),
        (":retry", {"reason": "x" * 2000}, 400),
        (":cancel", {"force": "yes"}, 400),
    ],
)
async def test_what_is_refused(path: str, body: dict[str, Any], status: int) -> None:
    async with run_of_all() as (_, client, run):
        answer = await client.post(f"{run}{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_orders_to_nobody_are_not_found() -> None:
    api = Api()
    async with api.client() as client:
        for path in (":retry", ":cancel", "/signals/go", "/steps/a:approve", "/steps/a:reject"):
            assert (await client.post(f"/v1/runs/run-nobody{path}")).status_code == 404
