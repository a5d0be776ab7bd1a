"""The server's API: every path, every error, over the in-memory broker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fumehood.broker.memory import Faults, MemoryBroker, Verdict
from fumehood.control.runs import SHOWN_BYTES
from fumehood.control.telemetry import Telemetry
from fumehood.errors import BrokerError
from fumehood.settings import ServerSettings
from fumehood.wire import blobref
from fumehood.wire.bridge import ConnectRequest, PollRequest
from fumehood.wire.protocol import EventType, StepEvent
from tests.contract.server_api_harness import ADMIN, BRIDGE, SMALL, YAML, Api

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MAP = """
name: w
steps:
  - id: each
    map: {over: "input", task: t, concurrency: 2}
"""


def is_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"urn:fumehood:problem:{code}"
    assert (body["version"], body["status"]) == (1, status)
    assert body["instance"] == answer.headers["x-request-id"]
    return body


async def complete(api: Api, run_id: str, step: str, output: Any) -> None:
    event = StepEvent(type=EventType.COMPLETED, run_id=run_id, step_id=step, payload=output)
    await MemoryBroker(api.memory).histories.publish(run_id, event.event_id, event.encode())
    await api.decide()


# --- workflows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml", "application/x-yaml", "text/yaml; charset=UTF-8"])
async def test_a_definition_in_yaml_is_applied(kind: str) -> None:
    async with Api().client() as client:
        answer = await client.put("/v1/workflows/w", content=SMALL, headers={"content-type": kind})
        assert answer.status_code == 201
        body = answer.json()
        assert (body["name"], body["version"]) == ("w", 1)
        assert TIME.fullmatch(body["applied_at"])
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", body["digest"])


async def test_a_definition_in_json_is_the_same_as_in_yaml() -> None:
    async with Api().client() as client:
        first = await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        again = await client.put("/v1/workflows/w", json={"name": "w", "steps": [{"id": "a", "task": "t"}]})
        assert again.status_code == 200
        assert again.json() == first.json()


async def test_workflows_are_listed_and_shown() -> None:
    async with Api().client() as client:
        assert (await client.get("/v1/workflows")).json() == {"workflows": [], "next": None}
        first = (await client.put("/v1/workflows/w", content=SMALL, headers=YAML)).json()
        second = (await client.put("/v1/workflows/w", content=SMALL.replace("task: t", "task: u"), headers=YAML)).json()
        assert (await client.get("/v1/workflows")).json() == {"workflows": [second], "next": None}
        shown = (await client.get("/v1/workflows/w")).json()
        assert shown == {**second, "definition": {"name": "w", "steps": [{"id": "a", "task": "u"}]}}
        older = (await client.get("/v1/workflows/w", params={"digest": first["digest"]})).json()
        assert older == {
            "name": "w",
            "digest": first["digest"],
            "definition": {"name": "w", "steps": [{"id": "a", "task": "t"}]},
        }
        assert (await client.get("/v1/workflows", params={"after": "w", "limit": "1"})).json()["workflows"] == []


async def test_a_bad_definition_says_all_that_is_wrong() -> None:
    async with Api().client() as client:
        text = "name: w\nsteps:\n  - {id: a, task: t, timout: 5s}\n  - {id: b, task: t, needs: [c]}\n"
        body = is_problem(await client.put("/v1/workflows/w", content=text, headers=YAML), 400, "invalid-definition")
        assert any(problem.startswith("line 3: steps[0].timout") for problem in body["problems"])
        other = await client.put("/v1/workflows/v", content=SMALL, headers=YAML)
        assert is_problem(other, 400, "invalid-definition")["problems"]
        assert (await client.get("/v1/workflows")).json()["workflows"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/yaml; charset=latin-1"},
        {"content-type": "application/yaml", "content-encoding": "gzip"},
        {"content-type": "nonsense"},
    ],
)
async def test_a_definition_in_another_form_is_refused(headers: dict[str, str]) -> None:
    async with Api().client() as client:
        answer = await client.put("/v1/workflows/w", content=SMALL, headers=headers)
        is_problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    "path", ["/v1/workflows/nobody", "/v1/workflows/a.b", "/v1/workflows/%2A", "/v1/workflows/a%00b"]
)
async def test_an_unknown_workflow_is_not_found(path: str) -> None:
    async with Api().client() as client:
        is_problem(await client.get(path), 404, "not-found")
        is_problem(await client.post(f"{path}/runs", json={}), 404, "not-found")


@pytest.mark.parametrize("digest", ["sha256:0", "x", "", "sha256:" + "Z" * 64])
async def test_a_digest_that_is_none_is_an_invalid_request(digest: str) -> None:
    async with Api().client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        is_problem(await client.get("/v1/workflows/w", params={"digest": digest}), 400, "invalid-request")
        none = {"digest": "sha256:" + "0" * 64}
        is_problem(await client.get("/v1/workflows/w", params=none), 404, "not-found")


# --- starting ----------------------------------------------------------------------------------------------


async def test_a_run_is_started_and_shown_as_it_goes() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client, {"n": 1})
        queued = (await client.get(f"/v1/runs/{run_id}")).json()
        digest = (await client.get("/v1/workflows/w")).json()["digest"]
        assert queued == {
            "run_id": run_id, "workflow": "w", "definition": digest, "status": "queued", "steps": {}, "input": None,
            "output": None, "error": None, "started_at": None, "ended_at": None,
        }  # fmt: skip
        await api.decide()
        running = (await client.get(f"/v1/runs/{run_id}")).json()
        assert TIME.fullmatch(running.pop("started_at"))
        step = {"status": "queued", "attempt": 1, "iteration": 0, "output": None, "error": None}
        assert running == {
            "run_id": run_id, "workflow": "w", "definition": digest, "status": "running", "steps": {"a": step},
            "input": {"n": 1}, "output": None, "error": None, "ended_at": None, "started_by": "admin",
                "tenant": "default",
        }  # fmt: skip
        await complete(api, run_id, "a", {"m": 2})
        ended = (await client.get(f"/v1/runs/{run_id}")).json()
        assert (ended["status"], ended["output"]) == ("succeeded", {"a": {"m": 2}})
        assert ended["steps"]["a"]["output"] == {"m": 2}
        assert TIME.fullmatch(ended["ended_at"])


async def test_a_failed_run_says_why() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client)
        await api.decide()
        event = StepEvent(
            type=EventType.FAILED, run_id=run_id, step_id="a", payload={"code": "broken", "message": "it is"}
        )
        await MemoryBroker(api.memory).histories.publish(run_id, event.event_id, event.encode())
        await api.decide()
        ended = (await client.get(f"/v1/runs/{run_id}")).json()
        why = {"code": "broken", "message": "it is", "details": None}
        assert (ended["status"], ended["error"]) == ("failed", why)
        assert ended["steps"]["a"]["error"] == why


async def test_the_same_key_is_the_same_run_from_body_or_header() -> None:
    api = Api()
    async with api.client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        path, body = "/v1/workflows/w/runs", {"input": {"n": 1}}
        first = await client.post(path, json={**body, "idempotency_key": "k"})
        again = await client.post(path, json=body, headers={"Idempotency-Key": "k"})
        both = await client.post(path, json={**body, "idempotency_key": "k"}, headers={"Idempotency-Key": "k"})
        assert [answer.status_code for answer in (first, again, both)] == [201, 200, 200]
        assert len({answer.json()["run_id"] for answer in (first, again, both)}) == 1
        is_problem(await client.post(path, json={"input": 2, "idempotency_key": "k"}), 409, "conflict")
        differ = await client.post(path, json={**body, "idempotency_key": "k"}, headers={"Idempotency-Key": "l"})
        is_problem(differ, 409, "conflict")
        metrics = (await client.get("/metrics")).text
        assert 'fumehood_server_runs_started_total{replayed="true"} 2.0' in metrics


async def test_fifty_requests_with_one_key_make_one_run() -> None:
    api = Api()
    async with api.client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        body = {"input": 1, "idempotency_key": "k"}
        answers = await asyncio.gather(*(client.post("/v1/workflows/w/runs", json=body) for _ in range(50)))
        assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
        assert len({answer.json()["run_id"] for answer in answers}) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"inputs": {}}',
        b'{"idempotency_key": null}',
        b'{"idempotency_key": ""}',
        b'{"idempotency_key": 5}',
        json.dumps({"idempotency_key": "k" * 257}).encode(),
        b'{"input": NaN}',
        b'{"input": 1, "input": 2}',
        b'{"input": {"a": [{"$blob": "sha256:0"}]}}',
        b'{"input": "\\ud800"}',
        b'{"input": ' + b"[" * 100 + b"]" * 100 + b"}",
        b"{" * 100_000,
        b"\xff",
    ],
)
async def test_a_start_that_is_none_is_refused(body: bytes) -> None:
    api = Api()
    async with api.client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        json_type = {"content-type": "application/json"}
        answer = await client.post("/v1/workflows/w/runs", content=body, headers=json_type)
        is_problem(answer, 400, "invalid-request")
        assert await api.service.decider.turn(0, timeout=0.01) == 0


async def test_an_input_that_does_not_fit_is_refused_without_repeating_it() -> None:
    api = Api()
    async with api.client() as client:
        text = SMALL + "input_schema: {type: object, properties: {n: {type: integer}}}\n"
        await client.put("/v1/workflows/w", content=text, headers=YAML)
        answer = await client.post("/v1/workflows/w/runs", json={"input": {"n": "hush"}})
        body = is_problem(answer, 400, "invalid-request")
        assert "input.n: " in body["detail"]
        assert "hush" not in answer.text
        assert (await client.post("/v1/workflows/w/runs", json={"input": {"n": 1}})).status_code == 201


async def test_a_large_input_comes_back_whole() -> None:
    api = Api()
    async with api.client() as client:
        large = {"text": "x" * blobref.INLINE_BYTES}
        run_id = await api.started(client, large)
        await api.decide()
        assert (await client.get(f"/v1/runs/{run_id}")).json()["input"] == large


async def test_a_value_that_is_too_large_to_be_shown_can_be_read_by_itself() -> None:
    api = Api()
    async with api.client() as client:
        large = {"text": "x" * (SHOWN_BYTES + 1)}
        run_id = await api.started(client, large)
        await api.decide()
        shown = (await client.get(f"/v1/runs/{run_id}")).json()["input"]
        ref = blobref.ref_of(shown)
        assert ref is not None
        for digest in (ref, ref.removeprefix("sha256:")):
            answer = await client.get(f"/v1/runs/{run_id}/blobs/{digest}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert answer.json() == large
            assert len(answer.content) == shown["size"]


async def test_a_value_inside_of_a_value_can_be_read_and_nobody_elses_can() -> None:
    api = Api()
    blobs = MemoryBroker(api.memory).blobs()

    async def stored(value: Any) -> dict[str, Any]:
        data = blobref.encode(value)
        return blobref.reference(await blobs.put(data), len(data))

    inner = await stored("deep inside")
    middle = await stored([inner, "sha256:" + "1" * 64])
    other = await stored("of another run")
    async with api.client() as client:
        run_id = await api.started(client)
        await api.decide()
        await complete(api, run_id, "a", await stored({"middle": middle}))
        found = await client.get(f"/v1/runs/{run_id}/blobs/{inner['$blob']}")
        assert (found.status_code, found.json()) == (200, "deep inside")
        lost = ["sha256:" + "1" * 64, "nonsense", "sha256:", "SHA256:" + "0" * 64, inner["$blob"].upper()]
        for digest in (other["$blob"], *lost):
            is_problem(await client.get(f"/v1/runs/{run_id}/blobs/{digest}"), 404, "not-found")
        is_problem(await client.get(f"/v1/runs/run-nobody/blobs/{inner['$blob']}"), 404, "not-found")
        await blobs.delete(inner["$blob"])
        is_problem(await client.get(f"/v1/runs/{run_id}/blobs/{inner['$blob']}"), 404, "not-found")


async def test_the_search_for_a_value_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client, {"text": "x" * (SHOWN_BYTES + 1)})
        await api.decide()
        monkeypatch.setattr("fumehood.control.runs.SEARCHED_BYTES", SHOWN_BYTES)
        answer = await client.get(f"/v1/runs/{run_id}/blobs/{'1' * 64}")
        is_problem(answer, 413, "payload-too-large")


async def test_the_requests_trace_goes_on_in_the_run() -> None:
    spans = InMemorySpanExporter()
    api = Api(telemetry=Telemetry(processor=SimpleSpanProcessor(spans)))
    async with api.client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        answer = await client.post("/v1/workflows/w/runs", json={}, headers={"traceparent": PARENT})
        (span,) = [span for span in spans.get_finished_spans() if span.name == "POST /v1/workflows/{name}/runs"]
        assert span.context is not None
        await api.decide()
        history = (await client.get(f"/v1/runs/{answer.json()['run_id']}/history")).json()
        meta = history["records"][0]["events"][0]["meta"]
        assert meta["by"] == "admin"
        _, trace_id, span_id, _ = meta["traceparent"].split("-")
        assert (trace_id, span_id) == (PARENT.split("-")[1], f"{span.context.span_id:016x}")


# --- seeing and ending -------------------------------------------------------------------------------------


async def test_items_of_a_map_are_counted_and_shown_on_demand() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client, [1, 2, 3], MAP)
        await api.decide()
        await complete(api, run_id, "each--0", "one")
        plain = (await client.get(f"/v1/runs/{run_id}")).json()
        assert list(plain["steps"]) == ["each"]
        assert plain["steps"]["each"]["items"] == {"total": 3, "ended": 1}
        items = (await client.get(f"/v1/runs/{run_id}", params={"items": "true"})).json()
        assert list(items["steps"]) == ["each", "each--0", "each--1", "each--2"]
        assert items["steps"]["each--0"]["output"] == "one"


async def test_history_comes_page_by_page_and_tells_what_was_decided() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client)
        assert (await client.get(f"/v1/runs/{run_id}/history")).json() == {
            "run_id": run_id,
            "records": [],
            "next": None,
        }
        await api.decide()
        await complete(api, run_id, "a", 1)
        whole = (await client.get(f"/v1/runs/{run_id}/history")).json()
        assert [event["type"] for record in whole["records"] for event in record["events"]] == [
            "run.started", "step.queued", "step.completed", "run.succeeded",
        ]  # fmt: skip
        assert all(TIME.fullmatch(record["at"]) for record in whole["records"])
        first = (await client.get(f"/v1/runs/{run_id}/history", params={"limit": "1"})).json()
        second = (await client.get(f"/v1/runs/{run_id}/history", params={"after": str(first["next"])})).json()
        assert first["records"] + second["records"] == whole["records"]
        assert second["next"] is None


async def test_a_run_is_cancelled_once_and_for_all() -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client)
        await api.decide()
        bodies: list[dict[str, Any]] = [{"content": b""}, {"json": {"reason": "enough"}}, {"json": {}}]
        for body in bodies:
            answer = await client.post(f"/v1/runs/{run_id}:cancel", **body)
            assert (answer.status_code, answer.json()) == (202, {"run_id": run_id})
        await api.decide()
        assert (await client.get(f"/v1/runs/{run_id}")).json()["status"] == "cancelled"
        assert (await client.post(f"/v1/runs/{run_id}:cancel")).status_code == 202


@pytest.mark.parametrize("run_id", ["run-nobody", "a.b", "%2A", "%3E", "a%20b", "a%00b", "x" * 129])
async def test_an_unknown_run_is_not_found(run_id: str) -> None:
    async with Api().client() as client:
        is_problem(await client.get(f"/v1/runs/{run_id}"), 404, "not-found")
        is_problem(await client.get(f"/v1/runs/{run_id}/history"), 404, "not-found")
        is_problem(await client.post(f"/v1/runs/{run_id}:cancel"), 404, "not-found")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("", {"items": "yes"}),
        ("", {"itms": "true"}),
        ("/history", {"after": "-1"}),
        ("/history", {"after": "x"}),
        ("/history", {"limit": "0"}),
        ("/history", {"limit": "1001"}),
        ("/history", {"limit": ["1", "2"]}),
        (":cancel", {"now": "1"}),
        ("/blobs/" + "0" * 64, {"now": "1"}),
    ],
)
async def test_a_query_that_is_not_the_contracts_is_refused(path: str, query: dict[str, Any]) -> None:
    api = Api()
    async with api.client() as client:
        run_id = await api.started(client)
        method = "POST" if path == ":cancel" else "GET"
        answer = await client.request(method, f"/v1/runs/{run_id}{path}", params=query)
        is_problem(answer, 400, "invalid-request")


# --- the door itself ---------------------------------------------------------------------------------------

GUARDED = [
    ("GET", "/v1/workflows"), ("PUT", "/v1/workflows/w"), ("GET", "/v1/workflows/w"), ("POST", "/v1/workflows/w/runs"),
    ("GET", "/v1/runs/a"), ("GET", "/v1/runs/a/history"), ("POST", "/v1/runs/a:cancel"), ("GET", "/openapi.json"),
    ("GET", "/v1/runs/a/blobs/b"), ("GET", "/nowhere"), ("POST", "/v1/tasks/poll"), ("POST", "/v1/workers/connect"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_every_path_needs_a_token(method: str, path: str) -> None:
    api = Api()
    for token in (None, "wrong"):
        async with api.client(token) as client:
            is_problem(await client.request(method, path), 401, "unauthenticated")


@pytest.mark.parametrize(("method", "path"), [one for one in GUARDED if one[1].startswith(("/v1/run", "/v1/workf"))])
async def test_the_workers_token_is_for_workers(method: str, path: str) -> None:
    async with Api().client(BRIDGE) as client:
        is_problem(await client.request(method, path), 403, "forbidden")


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_without_any_token_configured_the_door_is_closed(method: str, path: str) -> None:
    async with Api(settings=ServerSettings()).client("") as client:
        is_problem(await client.request(method, path), 401, "unauthenticated")


async def test_insecure_opens_all_of_it() -> None:
    async with Api(settings=ServerSettings(insecure=True)).client(None) as client:
        assert (await client.get("/v1/workflows")).status_code == 200


async def test_without_a_token_the_content_type_must_be_given() -> None:
    """A page in a browser can send a request without one to any address, and could start runs on this machine."""
    async with Api(settings=ServerSettings(insecure=True)).client(None) as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        for path in ("/v1/workflows/w/runs", "/v1/tasks/poll"):
            is_problem(await client.post(path, content=b"{}"), 415, "unsupported-media-type")
        assert (await client.post("/v1/workflows/w/runs", json={})).status_code == 201
    async with Api().client() as client:
        await client.put("/v1/workflows/w", content=SMALL, headers=YAML)
        assert (await client.post("/v1/workflows/w/runs", content=b"{}")).status_code == 201


async def test_a_body_with_two_ends_is_refused_and_the_connection_closed() -> None:
    async with Api().client() as client:
        headers = {"content-length": "2", "transfer-encoding": "chunked", "content-type": "application/json"}
        answer = await client.post("/v1/workflows/w/runs", content=b"{}", headers=headers)
        is_problem(answer, 400, "invalid-request")
        assert answer.headers["connection"] == "close"


async def test_a_fault_of_the_broker_has_a_title_and_no_detail() -> None:
    class Faulty(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            raise BrokerError("subject journal.secret is not mapped")

    async with Api(faults=Faulty()).client() as client:
        body = is_problem(await client.get("/v1/workflows"), 500, "broker")
        assert body["title"] == "Broker error"
        assert "secret" not in json.dumps(body)


async def test_health_is_open_and_readiness_is_the_brokers_word() -> None:
    class Broken(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.LOST

    async with Api().client(None) as client:
        assert (await client.get("/healthz")).text == "ok"
        assert (await client.get("/readyz")).text == "ready"
        assert (await client.get("/metrics")).status_code == 200
    async with Api(faults=Broken()).client(None) as client:
        assert (await client.get("/healthz")).text == "ok"
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "the broker cannot be written to (broker-unavailable)")


async def test_metrics_beyond_loopback_need_the_token() -> None:
    settings = ServerSettings(api_token=ADMIN, host="0.0.0.0")
    async with Api(settings=settings).client(None) as client:
        is_problem(await client.get("/metrics"), 401, "unauthenticated")


async def test_a_broker_that_is_away_is_503_with_a_time_to_come_back() -> None:
    class Broken(Faults):
        broken = False

        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.LOST if self.broken else Verdict.OK

    faults = Broken()
    api = Api(faults=faults)
    async with api.client() as client:
        run_id = await api.started(client)
        faults.broken = True
        for answer in (
            await client.put("/v1/workflows/w", content=SMALL, headers=YAML),
            await client.get("/v1/workflows"),
            await client.post("/v1/workflows/w/runs", json={}),
            await client.get(f"/v1/runs/{run_id}"),
            await client.get(f"/v1/runs/{run_id}/history"),
            await client.post(f"/v1/runs/{run_id}:cancel"),
        ):
            is_problem(answer, 503, "broker-unavailable")
            assert int(answer.headers["retry-after"]) > 0


async def test_a_body_that_is_too_long_is_refused() -> None:
    settings = ServerSettings(api_token=ADMIN, body_limit_bytes=1024)
    async with Api(settings=settings).client() as client:
        answer = await client.put("/v1/workflows/w", content="x" * 1025, headers=YAML)
        is_problem(answer, 413, "payload-too-large")


async def test_the_token_is_asked_for_before_the_body_is_read() -> None:
    settings = ServerSettings(api_token=ADMIN, body_limit_bytes=1024)

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"x"

    read: list[bool] = []

    async with Api(settings=settings).client("wrong") as client:
        answer = await client.put("/v1/workflows/w", content=body(), headers=YAML)
        is_problem(answer, 401, "unauthenticated")
    assert read == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/workflows/w"),
        ("POST", "/v1/workflows"),
        ("PUT", "/v1/runs/a"),
        ("GET", "/v1/workflows/w/runs"),
        ("GET", "/v1/runs/a:cancel"),
        ("OPTIONS", "/v1/workflows/w"),
    ],
)
async def test_other_methods_are_not_allowed(method: str, path: str) -> None:
    async with Api().client() as client:
        answer = await client.request(method, path)
        is_problem(answer, 405, "method-not-allowed")
        allowed = {"/v1/workflows/w": "GET, PUT", "/v1/workflows": "GET", "/v1/runs/a": "GET"}
        assert answer.headers["allow"] == allowed.get(path, "POST")


async def test_paths_are_counted_by_their_templates() -> None:
    api = Api()
    async with api.client() as client:
        await client.get("/v1/runs/a")
        await client.get("/v1/runs/b")
        await client.post("/v1/runs/b:cancel")
        await client.get("/v1/nowhere/b")
    value = api.telemetry.metrics.registry.get_sample_value
    name = "fumehood_server_http_requests_total"
    assert value(name, {"route": "/v1/runs/{run_id}", "method": "GET", "status": "404"}) == 2
    assert value(name, {"route": "/v1/runs/{run_id}:cancel", "method": "POST", "status": "404"}) == 1
    assert value(name, {"route": "other", "method": "GET", "status": "404"}) == 1


async def test_what_deciders_and_the_broker_count_is_in_the_metrics() -> None:
    api = Api()
    api.telemetry.watch(api.service.decider.counters, lambda: {"journal": {"conflict": 3}})
    api.service.decider.counters.ended["timed_out"] = 2
    async with api.client() as client:
        await api.started(client)
        await api.decide()
        text = (await client.get("/metrics")).text
    assert "fumehood_server_decider_decisions_total 1.0" in text
    assert 'fumehood_server_broker_events_total{kind="conflict",part="journal"} 3.0' in text
    assert 'fumehood_server_runs_ended_total{status="timed_out"} 2.0' in text


async def test_requests_are_timed_by_their_templates() -> None:
    api = Api()
    async with api.client() as client:
        await client.get("/v1/runs/a")
        await client.get("/v1/runs/b")
    value = api.telemetry.metrics.registry.get_sample_value
    assert value("fumehood_server_http_request_seconds_count", {"route": "/v1/runs/{run_id}"}) == 2


async def test_polls_and_streams_that_wait_are_in_the_metrics() -> None:
    api = Api()
    value = api.telemetry.metrics.registry.get_sample_value
    connected = await api.bridge.connect(ConnectRequest(worker_id="w", task_types=["t"], max_tasks=1))
    polling = asyncio.create_task(api.bridge.poll(PollRequest(task_types=["t"], max_tasks=1, timeout_ms=60_000)))
    await asyncio.sleep(0)
    assert (value("fumehood_server_bridge_polls"), value("fumehood_server_bridge_streams")) == (1, 1)
    await api.bridge.close()
    assert await polling == []
    await connected.close()
    assert (value("fumehood_server_bridge_polls"), value("fumehood_server_bridge_streams")) == (0, 0)
