"""Task types and workers over HTTP: what is limited, what waits, and who is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.ports import Bucket
from fumehood.control.bridge_workers import CONNECTION_ID
from tests.contract.server_api_harness import Api

TYPES, WORKERS = "/v1/task-types", "/v1/workers"


def limit_of(task_type: str) -> str:
    return f"{TYPES}/{task_type}/limit"


async def register(api: Api, key: str, said: dict[str, Any] | bytes) -> None:
    value = said if isinstance(said, bytes) else json.dumps(said).encode()
    await MemoryBroker(api.memory).bucket(Bucket.WORKERS).put(key, value)


# --- limits ------------------------------------------------------------------------------------------------


async def test_a_limit_is_set_listed_and_cleared() -> None:
    api = Api()
    async with api.client() as client:
        answer = await client.put(limit_of("llm.large"), json={"rate": "100/m", "burst": 5})
        assert (answer.status_code, answer.json()) == (200, {"rate": "100/m", "burst": 5})
        answer = await client.put(limit_of("http"), json={"rate": "10/s"})
        assert answer.json() == {"rate": "10/s", "burst": 1}
        assert (await client.get(TYPES)).json() == {
            "task_types": [
                {"task_type": "http", "waiting": 0, "limit": {"rate": "10/s", "burst": 1}},
                {"task_type": "llm.large", "waiting": 0, "limit": {"rate": "100/m", "burst": 5}},
            ],
            "next": None,
        }
        cleared = await client.delete(limit_of("http"))
        assert (cleared.status_code, cleared.content) == (204, b"")
        assert (await client.delete(limit_of("http"))).status_code == 404
        assert [one["task_type"] for one in (await client.get(TYPES)).json()["task_types"]] == ["llm.large"]


async def test_a_limit_that_is_set_counts() -> None:
    api = Api()
    async with api.client() as client:
        await client.put(limit_of("t"), json={"rate": "1/m"})
        slots = await api.service.rates.reserve("t", 2)
        assert slots is not None
        assert slots[1].at_ms - slots[0].at_ms == 60_000


@pytest.mark.parametrize(
    ("task_type", "body"),
    [
        ("t", {}),
        ("t", {"rate": "10"}),
        ("t", {"rate": "1000/s"}),
        ("t", {"rate": 10}),
        ("t", {"rate": "10/s", "burst": 0}),
        ("t", {"rate": "10/s", "burst": 10_001}),
        ("t", {"rate": "10/s", "burst": "5"}),
        ("t", {"rate": "10/s", "brust": 5}),
        ("a b", {"rate": "10/s"}),
        ("a..b", {"rate": "10/s"}),
        ("t" * 129, {"rate": "10/s"}),
    ],
)
async def test_what_is_no_limit_is_refused_and_changes_nothing(task_type: str, body: dict[str, Any]) -> None:
    api = Api()
    async with api.client() as client:
        answer = await client.put(limit_of(task_type), json=body)
        assert answer.status_code == 400, answer.text
        assert (await client.get(TYPES)).json()["task_types"] == []


async def test_tasks_that_wait_are_counted_whether_there_is_a_limit_or_not() -> None:
    api = Api()
    async with api.client() as client:
        await api.started(client)
        await api.decide()
        assert (await client.get(TYPES)).json()["task_types"] == [{"task_type": "t", "waiting": 1}]


async def test_types_come_page_by_page() -> None:
    api = Api()
    async with api.client() as client:
        for name in ("c", "a", "b"):
            await client.put(limit_of(name), json={"rate": "1/s"})
        first = (await client.get(TYPES, params={"limit": 2})).json()
        assert ([one["task_type"] for one in first["task_types"]], first["next"]) == (["a", "b"], "b")
        rest = (await client.get(TYPES, params={"limit": 2, "after": first["next"]})).json()
        assert ([one["task_type"] for one in rest["task_types"]], rest["next"]) == (["c"], None)
        assert (await client.get(TYPES, params={"page": 2})).status_code == 400


# --- workers -----------------------------------------------------------------------------------------------


async def test_workers_are_listed_with_what_they_say_and_what_waits_for_them() -> None:
    api = Api()
    said = {
        "worker_id": "w2",  # which it is not
        "task_types": ["t", "llm"],
        "language": "go",
        "transport": "bridge",
        "max_tasks": 4,
        "metadata": {"host": "h1", CONNECTION_ID: "c1"},
    }
    async with api.client() as client:
        await register(api, "w2", {"worker_id": "w2", "task_types": ["t"]})
        await register(api, "w1", said)
        await api.started(client)
        await api.decide()
        assert (await client.get(WORKERS)).json() == {
            "workers": [
                {
                    "worker_id": "w1",
                    "task_types": ["t", "llm"],
                    "max_tasks": 4,
                    "language": "go",
                    "transport": "bridge",
                    "metadata": {"host": "h1"},
                },
                {
                    "worker_id": "w2",
                    "task_types": ["t"],
                    "max_tasks": 1,
                    "language": "",
                    "transport": "",
                    "metadata": {},
                },
            ],
            "waiting": {"llm": 0, "t": 1},
            "next": None,
        }


async def test_what_is_no_registration_is_no_worker() -> None:
    """Workers write to the directory without our code."""
    api = Api()
    async with api.client() as client:
        for number, value in enumerate((b"", b"{", b"[]", b"null", b"\xff", b'{"worker_id": "x"}')):
            await register(api, f"w{number}", value)
        await register(api, "w9", {"worker_id": "w9", "task_types": ["t"], "since": "a newer version says more"})
        found = (await client.get(WORKERS)).json()["workers"]
        assert [worker["worker_id"] for worker in found] == ["w9"]


async def test_workers_come_page_by_page() -> None:
    api = Api()
    async with api.client() as client:
        for name in ("c", "a", "b"):
            await register(api, name, {"worker_id": name, "task_types": [f"type-{name}"]})
        first = (await client.get(WORKERS, params={"limit": 2})).json()
        assert ([one["worker_id"] for one in first["workers"]], first["next"]) == (["a", "b"], "b")
        assert sorted(first["waiting"]) == ["type-a", "type-b"]
        rest = (await client.get(WORKERS, params={"after": "b"})).json()
        assert ([one["worker_id"] for one in rest["workers"]], rest["next"]) == (["c"], None)
        assert (await client.get(WORKERS, params={"limit": 201})).status_code == 400
