"""Workers that may dial in, over HTTP: made, listed, revoked, and sent home."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control.callers import ADMIN as ADMINISTRATOR
from fumehood.wire.console.console_pb2 import Capability, ConsoleFrame, Declaration
from fumehood.wire.console.hello import new_nonce, public_key_of, sign_hello
from tests.contract.server_api_harness import BRIDGE, Api
from tests.contract.test_keys_http import lines, made
from tests.contract.test_server_api_http import is_problem
from tests.waiting import until

PATH = "/v1/worker-credentials"
DECLARED = Declaration(
    capabilities=[Capability(name="pythonExec", max_inflight=2), Capability(name="echo", max_inflight=4)],
    software="fumehood",
).SerializeToString()


async def test_a_worker_is_made_and_its_secret_shown_once() -> None:
    api = Api()
    async with api.client() as client:
        answer = await client.post(PATH, json={"worker_id": "w1", "labels": {"zone": "a"}})
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        worker = answer.json()
        secret, created = worker.pop("worker_secret"), worker.pop("created_at")
        assert worker == {"worker_id": "w1", "labels": {"zone": "a"}, "created_by": "admin"}
        listed = await client.get(PATH)
        assert listed.json() == {"workers": [{**worker, "created_at": created}], "next": None}
        assert secret not in listed.text
    (entry,) = await MemoryBroker(api.memory).bucket(Bucket.CREDENTIALS).entries()
    assert secret not in entry.value.decode()
    assert json.loads(entry.value)["public_key"] == public_key_of("w1", secret).hex()
    assert secret not in json.dumps(await lines(api))
    await api.service.desk.credentials.verify(sign_hello("w1", secret, b"", _now(api), new_nonce()))


def _now(api: Api) -> int:
    return api.service.desk.credentials._now_ms()


async def test_a_name_that_is_taken_is_a_conflict_until_it_is_revoked() -> None:
    async with Api().client() as client:
        await client.post(PATH, json={"worker_id": "w1"})
        is_problem(await client.post(PATH, json={"worker_id": "w1"}), 409, "conflict")
        revoked = await client.delete(f"{PATH}/w1")
        assert (revoked.status_code, revoked.json()["worker_id"]) == (200, "w1")
        is_problem(await client.delete(f"{PATH}/w1"), 404, "not-found")
        assert (await client.post(PATH, json={"worker_id": "w1"})).status_code == 201


async def test_they_are_listed_page_by_page() -> None:
    async with Api().client() as client:
        for name in ("c", "a", "b"):
            await client.post(PATH, json={"worker_id": name})
        first = (await client.get(PATH, params={"limit": 2})).json()
        assert ([one["worker_id"] for one in first["workers"]], first["next"]) == (["a", "b"], "b")
        rest = (await client.get(PATH, params={"limit": 2, "after": "b"})).json()
        assert ([one["worker_id"] for one in rest["workers"]], rest["next"]) == (["c"], None)
        is_problem(await client.get(PATH, params={"limit": 1001}), 400, "invalid-request")


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"worker_id": ""},
        {"worker_id": "a.b"},
        {"worker_id": "x" * 65},
        {"worker_id": "w", "labels": {"": "a"}},
        {"worker_id": "w", "labels": {"a": "b,c"}},
        {"worker_id": "w", "labels": {"a": "x" * 129}},
        {"worker_id": "w", "labels": {f"l{n}": "" for n in range(33)}},
        {"worker_id": "w", "more": 1},
    ],
    ids=str,
)
async def test_what_is_no_worker_is_refused(wish: dict[str, Any]) -> None:
    async with Api().client() as client:
        is_problem(await client.post(PATH, json=wish), 400, "invalid-request")
        assert (await client.get(PATH)).json()["workers"] == []


async def test_only_administrators_let_workers_in() -> None:
    api = Api()
    async with api.client() as client:
        key = await made(client, scopes=["workers", "keys"])
    for token in (BRIDGE, key["key"]):
        async with api.client(token) as other:
            is_problem(await other.post(PATH, json={"worker_id": "w1"}), 403, "forbidden")
            is_problem(await other.get(PATH), 403, "forbidden")
            is_problem(await other.delete(f"{PATH}/w1"), 403, "forbidden")


async def test_the_audit_list_tells_who_let_in_whom() -> None:
    api = Api()
    async with api.client() as client:
        await client.post(PATH, json={"worker_id": "w1"})
        await client.delete(f"{PATH}/w1")
    told = [(line["action"], line["target"], line["by"]) for line in await lines(api)]
    assert told == [("worker.created", "w1", "admin"), ("worker.revoked", "w1", "admin")]


# --- those who are there -------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[list[ConsoleFrame]]:
    """A worker at this server's console; what it is told."""
    told: list[ConsoleFrame] = []

    class Outlet:
        def send(self, frame: ConsoleFrame) -> None:
            told.append(frame)

        def close(self, code: str, detail: str) -> None:
            told.append(ConsoleFrame())

    desk = api.service.desk
    _, secret = await desk.credentials.create("gpu-1", {"zone": "a"}, ADMINISTRATOR)
    async with desk.working():
        hello = sign_hello("gpu-1", secret, DECLARED, _now(api), new_nonce())
        held = await desk.console.welcome(hello, Outlet())
        try:
            yield told
        finally:
            await held.gone()


async def test_a_worker_that_dialled_in_is_listed_with_the_others() -> None:
    api = Api()
    registered = {"worker_id": "plain", "task_types": ["t"], "max_tasks": 2, "language": "go", "transport": ""}
    await MemoryBroker(api.memory).bucket(Bucket.WORKERS).put("plain", json.dumps(registered).encode())
    async with connected(api), api.client(BRIDGE) as client:
        listed = (await client.get("/v1/workers")).json()
    assert [one["worker_id"] for one in listed["workers"]] == ["gpu-1", "plain"]
    assert listed["waiting"] == {"t": 0}, "what it can do is no type of tasks"
    assert listed["workers"][0] == {
        "worker_id": "gpu-1", "task_types": ["echo", "pythonExec"], "max_tasks": 6, "language": "",
        "transport": "grpc", "metadata": {"zone": "a", "software": "fumehood"},
    }  # fmt: skip


async def test_a_worker_that_dialled_in_is_sent_home_by_an_administrator_alone() -> None:
    api = Api()
    async with connected(api) as told:
        async with api.client(BRIDGE) as other:
            is_problem(await other.delete("/v1/workers/gpu-1"), 403, "forbidden")
        await asyncio.sleep(0)
        assert told == []
        async with api.client() as client:
            assert (await client.delete("/v1/workers/gpu-1")).is_success

            async def drained() -> bool:
                return [frame.drain.leave for frame in told] == [True]

            await until(drained)
            assert (await client.get("/v1/workers")).json()["workers"][0]["metadata"]["draining"] == "true"
