"""Keys, tenants, quotas and the audit list over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.control.key_store import FRESH_SECONDS
from fumehood.settings import ServerSettings
from tests.contract.server_api_harness import ADMIN, BRIDGE, SMALL, YAML, Api
from tests.contract.test_server_api_http import is_problem
from tests.waiting import until

TOKEN = re.compile(r"fhk_([A-Za-z0-9-]{12,})_([A-Za-z0-9_-]{43})")
READER = {"name": "reader", "scopes": ["runs:read"]}


async def made(client: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
    answer = await client.post("/v1/keys", json={**READER, **wish})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def lines(api: Api) -> list[dict[str, Any]]:
    entries = await MemoryBroker(api.memory).audit.tail(after=0, limit=1000)
    return [json.loads(entry.data) for entry in entries]


@asynccontextmanager
async def indexed(**options: Any) -> AsyncIterator[Api]:
    api = Api(**options)
    async with api.service.index.working():
        yield api


# --- keys --------------------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_opens_what_it_may() -> None:
    api = Api()
    async with api.client() as client:
        answer = await client.post("/v1/keys", json={**READER, "tenant": "acme", "expires_in_seconds": 60})
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        key = answer.json()
        parts = TOKEN.fullmatch(key.pop("key"))
        assert parts is not None
        assert parts[1] == key["id"]
        created, expires = key.pop("created_at"), key.pop("expires_at")
        assert created < expires
        assert key == {
            "id": parts[1], "name": "reader", "tenant": "acme", "scopes": ["runs:read"], "created_by": "admin",
        }  # fmt: skip
        listed = await client.get("/v1/keys", params={"tenant": "acme"})
        assert listed.json() == {"keys": [{**key, "created_at": created, "expires_at": expires}], "next": None}
        assert parts[2] not in listed.text
        assert (await client.get("/v1/keys")).json() == {"keys": [], "next": None}
    async with api.client(parts[0]) as reader:
        is_problem(await reader.get("/v1/runs/run-1"), 404, "not-found")
        is_problem(await reader.post("/v1/runs/run-1:cancel"), 403, "forbidden")
        is_problem(await reader.get("/nowhere"), 404, "not-found")
        is_problem(await reader.delete("/v1/runs/run-1"), 405, "method-not-allowed")


async def test_whoever_has_a_token_may_learn_whose_it_is() -> None:
    api = Api()
    async with api.client() as client:
        assert (await client.get("/v1/caller")).json() == {
            "name": "admin", "tenant": "default", "scopes": ["*"], "expires_at": None,
        }  # fmt: skip
        key = await made(client, tenant="acme", expires_in_seconds=60, scopes=["runs:write", "runs:read"])
    async with api.client(BRIDGE) as worker:
        assert (await worker.get("/v1/caller")).json()["name"] == "bridge"
    async with api.client(key["key"]) as reader:
        assert (await reader.get("/v1/caller")).json() == {
            "name": f"{key['id']}/reader", "tenant": "acme", "scopes": ["runs:read", "runs:write"],
            "expires_at": key["expires_at"],
        }  # fmt: skip
        is_problem(await reader.get("/v1/caller?x=1"), 400, "invalid-request")
    async with api.client("wrong") as stranger:
        is_problem(await stranger.get("/v1/caller"), 401, "unauthenticated")


async def test_a_revoked_key_opens_nothing() -> None:
    api = Api()
    async with api.client() as client:
        key = await made(client)
        revoked = await client.delete(f"/v1/keys/{key['id']}")
        assert (revoked.status_code, revoked.json()["id"]) == (200, key["id"])
        is_problem(await client.delete(f"/v1/keys/{key['id']}"), 404, "not-found")
        async with api.client(key["key"]) as late:
            answer = await late.get("/v1/runs/run-1")
            is_problem(answer, 401, "unauthenticated")
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_keys_are_listed_page_by_page() -> None:
    async with Api().client() as client:
        ids = [(await made(client))["id"] for _ in range(5)]
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await client.get("/v1/keys", params={"limit": 2, "after": after})).json()
            found += [key["id"] for key in page["keys"]]
            after = page["next"]
        assert sorted(found) == sorted(ids)


@pytest.mark.parametrize(
    "wish",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"scopes": "keys"},
        {"scopes": None},
        {"name": ""},
        {"name": "a b"},
        {"name": "x" * 65},
        {"tenant": None},
        {"tenant": "a.b"},
        {"tenant": ""},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": None},
        {"expires_in_seconds": 10**12},
        {"secret": "mine"},
        {"tenant": "acme", "scopes": ["workers"]},
        {"tenant": "acme", "scopes": ["*"]},
    ],
)
async def test_a_key_that_is_not_the_contracts_is_refused(wish: dict[str, Any]) -> None:
    async with Api().client() as client:
        is_problem(await client.post("/v1/keys", json={**READER, **wish}), 400, "invalid-request")
        assert (await client.get("/v1/keys")).json()["keys"] == []


async def test_nobody_gives_more_than_it_has() -> None:
    api = Api()
    async with api.client() as client:
        maker = await made(client, scopes=["keys", "runs:read"], tenant="acme")
    async with api.client(maker["key"]) as client:
        assert (await made(client))["created_by"] == f"{maker['id']}/reader"
        for scopes in (["runs:write"], ["*"], ["runs:read", "workers"]):
            is_problem(await client.post("/v1/keys", json={**READER, "scopes": scopes}), 403, "forbidden")
        for tenant in ("default", "globex"):
            is_problem(await client.post("/v1/keys", json={**READER, "tenant": tenant}), 403, "forbidden")


async def test_the_workers_token_is_a_worker_and_nothing_else() -> None:
    api = Api()
    poll = {"task_types": ["t"], "max_tasks": 1, "timeout_ms": 0}
    async with api.client(BRIDGE) as worker, api.client() as admin:
        assert (await worker.post("/v1/tasks/poll", json=poll)).status_code == 200
        is_problem(await worker.get("/v1/keys"), 403, "forbidden")
        key = await made(admin, scopes=["workers"])
        assert (await admin.post("/v1/tasks/poll", json=poll)).status_code == 200
    async with api.client(key["key"]) as other:
        assert (await other.post("/v1/tasks/poll", json=poll)).status_code == 200
        is_problem(await other.get("/v1/workflows"), 403, "forbidden")


async def test_without_tokens_everybody_is_the_administrator() -> None:
    async with Api(settings=ServerSettings(insecure=True)).client(None) as client:
        assert (await made(client))["created_by"] == "admin"
        assert (await client.get("/v1/tenants")).status_code == 200


class Away(Faults):
    """The bucket of keys, or the audit list, cannot be reached."""

    def __init__(self, *operations: str) -> None:
        self.operations = operations
        self.is_away = False

    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if self.is_away and operation in self.operations else Verdict.OK


async def test_a_key_that_cannot_be_looked_up_is_not_let_in_and_not_called_wrong() -> None:
    faults = Away("keys.get")
    api = Api(faults=faults)
    async with api.client() as client:
        key = await made(client)
        faults.is_away = True
        assert (await client.get("/v1/workflows")).status_code == 200, "the server's own token needs nobody"
    async with api.client(key["key"]) as reader:
        answer = await reader.get("/v1/runs/run-1")
        is_problem(answer, 503, "broker-unavailable")
        assert int(answer.headers["retry-after"]) >= FRESH_SECONDS


async def test_no_token_is_ever_written_down(caplog: pytest.LogCaptureFixture) -> None:
    """Not even where whoever has it writes it in the wrong place."""
    api = Api()
    async with api.client() as client:
        key = await made(client)
    async with api.client(key["key"]) as reader:
        is_problem(await reader.get(f"/v1/workflows/{key['key']}"), 403, "forbidden")
        is_problem(await reader.post(f"/v1/runs/a/steps/{key['key']}:approve"), 403, "forbidden")
    found = await lines(api)
    assert [line["target"] for line in found] == [key["id"], "(a token)", "a"]
    for said in (json.dumps(found), caplog.text):
        assert key["key"].split("_", 2)[2] not in said


# --- tenants and quotas ------------------------------------------------------------------------------------


async def test_a_tenant_may_what_was_said_last() -> None:
    async with Api().client() as client:
        assert (await client.get("/v1/tenants/acme")).json() == {"tenant": "acme", "max_runs": None}
        assert (await client.put("/v1/tenants/acme", json={"max_runs": 2})).json()["max_runs"] == 2
        assert (await client.get("/v1/tenants")).json() == {
            "tenants": [{"tenant": "acme", "max_runs": 2}, {"tenant": "default", "max_runs": None}]
        }
        assert (await client.put("/v1/tenants/acme", json={"max_runs": None})).status_code == 200
        assert (await client.get("/v1/tenants/acme")).json()["max_runs"] is None
        for body in ({}, {"max_runs": -1}, {"max_runs": "2"}, {"max_runs": 1.5}, {"max_runs": 1, "cpu": 1}):
            is_problem(await client.put("/v1/tenants/acme", json=body), 400, "invalid-request")
        is_problem(await client.put("/v1/tenants/a.b", json={"max_runs": 1}), 404, "not-found")


async def test_a_start_beyond_the_quota_is_told_when_to_come_again() -> None:
    async with indexed() as api, api.client() as admin:
        await admin.put("/v1/tenants/acme", json={"max_runs": 1})
        key = await made(admin, scopes=["runs:write", "workflows:write"], tenant="acme")
        async with api.client(key["key"]) as client:
            first = await api.started(client)
            refused = await client.post("/v1/workflows/w/runs", json={"idempotency_key": "k"})
            is_problem(refused, 429, "quota-exceeded")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.post(f"/v1/runs/{first}:cancel")).status_code in (200, 202)
            await api.decide()

            async def free() -> dict[str, Any]:
                answer = await client.post("/v1/workflows/w/runs", json={"idempotency_key": "k"})
                found: dict[str, Any] = answer.json() if answer.status_code == 201 else {}
                return found

            started = await until(free)
            again = await client.post("/v1/workflows/w/runs", json={"idempotency_key": "k"})
            assert (again.status_code, again.json()) == (200, started), "a key that is used again is no new run"
        assert (await api.started(admin)) != first


# --- audit -------------------------------------------------------------------------------------------------


async def test_a_line_for_everything_that_was_done_and_none_for_what_was_not() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client, {"hush": "hush-hush"})
        await client.post(f"/v1/runs/{run_id}:cancel", json={"reason": "hush-hush"})
        key = await made(client, tenant="acme")
        await client.delete(f"/v1/keys/{key['id']}")
        await client.put("/v1/tenants/acme", json={"max_runs": 2})
        before = len(await lines(api))
        await client.get(f"/v1/runs/{run_id}")
        await client.post("/v1/workflows/gone/runs", json={})
        await client.post("/v1/keys", json={})
        await client.post("/v1/runs/run-1:cancel")
        assert len(await lines(api)) == before
    found = await lines(api)
    assert "hush" not in json.dumps(found)
    said = [(line["tenant"], line["by"], line["action"], line["target"]) for line in found]
    assert said == [
        ("default", "admin", "workflow.applied", "w"),
        ("default", "admin", "run.started", "w"),
        ("default", "admin", "run.cancelled", run_id),
        ("acme", "admin", "key.created", key["id"]),
        ("acme", "admin", "key.revoked", key["id"]),
        ("acme", "admin", "tenant.changed", "acme"),
    ]
    assert found[1]["detail"] == {"outcome": "done", "run_id": run_id, "replayed": "false"}
    assert found[3]["detail"] == {"outcome": "done", "name": "reader", "scopes": "runs:read"}
    assert all(line["request_id"] for line in found)


async def test_a_refusal_is_a_line_in_the_callers_own_list() -> None:
    api = Api()
    async with api.client() as client:
        key = await made(client, scopes=["keys"], tenant="acme")
    async with api.client(key["key"]) as client:
        await client.post("/v1/keys", json={**READER, "tenant": "globex", "scopes": ["keys"]})
        await client.post("/v1/runs/run-1/steps/a:approve")
        for _ in range(3):
            await client.get("/v1/runs/run-1")
    async with api.client("wrong") as client:
        await client.get("/v1/runs/run-1")
    by = f"{key['id']}/reader"
    assert [
        (one["tenant"], one["by"], one["action"], one["target"], one["detail"]) for one in (await lines(api))[1:]
    ] == [
        ("acme", by, "key.created", "", {"outcome": "refused", "name": "reader", "scopes": "keys"}),
        ("acme", by, "step.approved", "run-1", {"outcome": "refused", "step": "a"}),
        ("acme", by, "GET /v1/runs/{run_id}", "run-1", {"outcome": "refused"}),
    ]


async def test_no_method_that_a_caller_makes_up_is_a_line_of_its_own() -> None:
    api = Api()
    async with api.client() as client:
        key = await made(client)
    async with api.client(key["key"]) as client:
        before = len(await lines(api))
        for number in range(5):
            is_problem(await client.request(f"X{number}", "/openapi.json"), 405, "method-not-allowed")
            is_problem(await client.request(f"X{number}", "/v1/workflows"), 405, "method-not-allowed")
        assert len(await lines(api)) == before


async def test_what_was_so_already_is_no_line() -> None:
    api = Api()
    async with api.client() as client:
        for _ in range(2):
            assert (await client.put("/v1/workflows/w", content=SMALL, headers=YAML)).status_code in (200, 201)
    assert [line["action"] for line in await lines(api)] == ["workflow.applied"]


async def test_what_may_have_happened_is_a_line_too() -> None:
    faults = Away("mailboxes.send")
    api = Api(faults=faults)
    async with api.client() as client:
        await api.started(client)
        faults.is_away = True
        is_problem(await client.post("/v1/workflows/w/runs", json={}), 503, "broker-unavailable")
    last = (await lines(api))[-1]
    assert (last["action"], last["detail"]["outcome"]) == ("run.started", "uncertain")


async def test_a_line_that_cannot_be_written_does_not_change_the_answer() -> None:
    faults = Away("audit.add")
    api = Api(faults=faults)
    async with api.client() as client:
        faults.is_away = True
        applied = await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        assert applied.status_code == 201
        assert (await client.get("/v1/workflows/w")).status_code == 200
    assert api.service.audit.counts["lost"] == 1


async def test_the_list_is_read_newest_first_by_who_may() -> None:
    async with indexed() as api, api.client() as admin:
        keeper = await made(admin, name="keeper", scopes=["keys", "workflows:write"], tenant="acme")
        async with api.client(keeper["key"]) as client:
            await client.put("/v1/workflows/w", content=SMALL, headers=YAML)

            async def listed() -> list[dict[str, Any]]:
                entries: list[dict[str, Any]] = (await client.get("/v1/audit")).json()["entries"]
                return entries if len(entries) == 2 else []

            applied, created = await until(listed)
            assert (applied["action"], applied["by"]) == ("workflow.applied", f"{keeper['id']}/keeper")
            assert (created["action"], created["by"], created["outcome"]) == ("key.created", "admin", "done")
            for query in ({"action": "key.created"}, {"by": "admin"}, {"target": keeper["id"]}):
                assert (await client.get("/v1/audit", params=query)).json()["entries"] == [created]
            page = (await client.get("/v1/audit", params={"limit": 1})).json()
            rest = (await client.get("/v1/audit", params={"cursor": page["next"]})).json()
            assert (page["entries"], rest["entries"], rest["next"]) == ([applied], [created], None)
            for query in ({"limit": 0}, {"limit": 201}, {"cursor": "x"}, {"colour": "x"}, {"tenant": "default"}):
                status = 403 if "tenant" in query else 400
                assert (await client.get("/v1/audit", params=query)).status_code == status
        assert (await admin.get("/v1/audit", params={"tenant": "acme"})).json()["entries"] == [applied, created]
        is_problem(await admin.get("/v1/audit", params={"tenant": "a.b"}), 400, "invalid-request")


async def test_a_decision_by_token_is_a_line_of_whom_the_token_was_for() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client, definition="name: w\nsteps:\n  - {id: ask, approval: {}}\n")
        await api.decide()
        wish = {"for": "bob@example.com", "expires_in_seconds": 60}
        token = (await client.post(f"/v1/runs/{run_id}/steps/ask:token", json=wish)).json()["token"]
    async with api.client(None) as bearer, api.deciding():
        is_problem(
            await bearer.post("/v1/approvals", json={"token": "fha_x", "decision": "approve"}), 401, "unauthenticated"
        )
        answer = await bearer.post("/v1/approvals", json={"token": token, "decision": "reject"})
        assert answer.status_code in (200, 202)
    *_, created, used = await lines(api)
    assert (created["action"], created["target"], created["detail"]["step"]) == ("token.created", run_id, "ask")
    assert (used["tenant"], used["by"], used["action"], used["target"]) == (
        "default", "token/bob@example.com", "token.used", run_id,
    )  # fmt: skip
    assert used["detail"] == {"outcome": "done", "step": "ask", "decision": "reject", "made_by": "admin"}
    assert token not in json.dumps(await lines(api))
    assert ADMIN not in json.dumps(await lines(api))
