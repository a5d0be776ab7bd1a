"""Every row of the wire protocol's decisions that concerns HTTP, over the in-memory broker; tests bear their names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fastapi import FastAPI

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control.bridge import Bridge, BridgeOptions
from fumehood.control.http import streams
from fumehood.errors import OverloadedError
from fumehood.wire.bridge import ConnectRequest, PollRequest
from fumehood.wire.protocol import WorkerRegistration
from fumehood.wire.sandbox import SANDBOX_TASK
from tests.conftest import TimeBounds
from tests.contract.bridge_harness import (
    BODY_LIMIT,
    TOKEN,
    Client,
    ends,
    golden,
    hand_out,
    history,
    make_app,
    served,
)
from tests.waiting import until

TASK = "run-1.step-a"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
QUICK = BridgeOptions(heartbeat_seconds=0.05)


class Breakable(Faults):
    """Calls that begin so get no answer, until told otherwise."""

    def __init__(self) -> None:
        self.broken: tuple[str, ...] = ()

    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if self.broken and operation.startswith(self.broken) else Verdict.OK


@dataclass
class House:
    """A broker, a bridge in front of it and a client of it."""

    broker: MemoryBroker
    faults: Breakable
    bridge: Bridge
    app: FastAPI
    client: Client

    async def one(self, **fields: Any) -> dict[str, Any]:
        await hand_out(self.broker, "run-1", **fields)
        (task,) = await self.client.poll()
        return task

    async def said(self) -> list[Any]:
        return [event for event in await history(self.broker, "run-1") if event.type.value != "step.started"]

    async def resolved(self, action: str, task_id: str = TASK, **fields: Any) -> int:
        return (await self.client.resolve(task_id, action, **fields)).status_code


@pytest.fixture
async def house() -> AsyncIterator[House]:
    server, faults = MemoryServer(), Breakable()
    async with Bridge(MemoryBroker(server, faults=faults), QUICK) as bridge:
        app = make_app(bridge)
        async with Client(app) as client:
            yield House(MemoryBroker(server), faults, bridge, app, client)


# --- token -------------------------------------------------------------------------------------------------

PATHS = [
    ("POST", "/v1/workers/connect"),
    ("DELETE", "/v1/workers/w"),
    ("POST", "/v1/tasks/poll"),
    ("POST", f"/v1/tasks/{TASK}/resolve"),
    ("GET", f"/v1/tasks/{TASK}/checkpoint"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401)])
async def test_token_comes_before_the_body(
    house: House, method: str, path: str, token: str | None, status: int
) -> None:
    async with Client(house.app, token=token) as stranger:
        answer = await stranger.http.request(method, path, content=b"not even JSON")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


@pytest.mark.parametrize(("method", "path"), [pair for pair in PATHS if pair[0] == "POST"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"a": NaN}', 400),
        (b"{" * 100_000, 400),
        (b'{"action":"complete","output":' + b"[" * 200 + b"]" * 200 + b"}", 400),
        (b'"' + b"x" * BODY_LIMIT + b'"', 413),
    ],
    ids=["empty", "array", "null", "nan", "garbage", "deep", "huge"],
)
async def test_a_malformed_body_is_400_and_a_huge_one_413(
    house: House, method: str, path: str, body: bytes, status: int
) -> None:
    answer = await house.client.http.request(method, path, content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_other_media_types_methods_and_paths_are_problems(house: House) -> None:
    http = house.client.http
    assert (await http.post("/v1/tasks/poll", content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    assert (await http.get("/v1/tasks/poll")).status_code == 405
    missing = await http.get("/v1/tasks/nowhere/near")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:fumehood:problem:not-found")


# --- poll --------------------------------------------------------------------------------------------------


async def test_poll_answers_with_the_contracts_payload_and_what_is_ours(house: House) -> None:
    task = await house.one(input={"prompt": "hello"}, headers={"traceparent": TRACE})
    ours = {name: task.pop(name) for name in ("lease_id", "traceparent")}
    assert task == golden("poll-response-contract")[0]
    assert ours["traceparent"] == TRACE
    assert len(ours["lease_id"]) == 32


async def test_poll_answers_with_an_empty_array_on_timeout(house: House) -> None:
    answer = await house.client.http.post("/v1/tasks/poll", json=golden("poll-request-contract") | {"timeout_ms": 20})
    assert (answer.status_code, answer.content) == (200, b"[]")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tasks": 0},
        {"max_tasks": 257},
        {"max_tasks": "1"},
        {"timeout_ms": -1},
        {"timeout_ms": 60_001},
        {"task_types": []},
        {"task_types": ["a"] * 129},
        {"task_types": "llm"},
        {"worker_id": "a.b"},
        {"run_id": "*"},
    ],
)
async def test_poll_beyond_its_bounds_is_400(house: House, changes: dict[str, Any]) -> None:
    body = golden("poll-request-contract") | {"timeout_ms": 0}
    assert (await house.client.http.post("/v1/tasks/poll", json=body)).status_code == 200
    assert (await house.client.http.post("/v1/tasks/poll", json=body | changes)).status_code == 400


@pytest.mark.parametrize("kind", ["a b", "a.*", ">", "a..b", "", "é", "x" * 129, "a\n"])
async def test_subject_safety_what_is_no_task_type_never_becomes_a_subject(house: House, kind: str) -> None:
    answer = await house.client.http.post(
        "/v1/tasks/poll", json={"task_types": [kind], "max_tasks": 1, "timeout_ms": 0}
    )
    assert answer.status_code == 400
    assert house.broker.server.task_consumers == {}


async def test_poll_takes_all_types_at_once_and_fairly(house: House) -> None:
    for number in range(20):
        await hand_out(house.broker, f"run-{number}", kind="busy")
    await hand_out(house.broker, "run-rare", kind="rare")
    found = await house.client.poll("busy", "rare", max_tasks=4)
    assert "run-rare" in {task["run_id"] for task in found}
    assert len(found) == 4


async def test_poll_has_one_deadline_for_all_types(house: House, time_bounds: TimeBounds) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await house.client.poll("a", "b", "c", timeout_ms=200) == []
    took = loop.time() - began
    assert took > 0.15
    time_bounds.check(took, 10)


async def test_poll_waits_for_the_first_task_of_any_type(house: House) -> None:
    polling = asyncio.create_task(house.client.poll("a", "b", timeout_ms=60_000))
    await asyncio.sleep(0)
    await hand_out(house.broker, "run-1", kind="b")
    assert [task["run_id"] for task in await polling] == ["run-1"]


async def test_a_run_scoped_subscription_is_a_filter_of_the_bridge(house: House) -> None:
    await hand_out(house.broker, "run-other")
    await hand_out(house.broker, "run-abc")
    found = await house.client.poll(max_tasks=8, run_id="run-abc")
    assert [task["run_id"] for task in found] == ["run-abc"]
    assert [task["run_id"] for task in await house.client.poll(timeout_ms=5000)] == ["run-other"]


async def bare_poll(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A poll by hand, whose connection is the test's to close."""
    body = json.dumps({"task_types": ["llm"], "max_tasks": 8, "timeout_ms": 60_000}).encode()
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        b"POST /v1/tasks/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
        b"Content-Type: application/json\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    await writer.drain()
    return reader, writer


async def test_a_client_that_disconnects_mid_poll_gives_its_messages_back_at_once(house: House) -> None:
    """A real connection that is closed: what comes afterwards goes to the next one, without a lease's time passing."""
    async with served(house.app) as url, Client(url=url) as other:
        _, writer = await bare_poll(url)

        async def polls(count: int) -> bool:
            return house.bridge._polls == count

        await until(lambda: polls(1))
        writer.close()
        await until(lambda: polls(0))
        await hand_out(house.broker, "run-1")
        (task,) = await other.poll(timeout_ms=0)
        assert task["task_id"] == TASK


@pytest.mark.parametrize("goes", [True, False], ids=["goes away", "stops reading"])
async def test_a_client_that_does_not_take_its_answer_gives_the_tasks_back_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    """The answer is larger than all buffers on the way, so that most of it is still here when the client is lost."""
    if not goes:
        monkeypatch.setattr(streams, "SLOW_SECONDS", 0.2)
    for number in (1, 2):
        await hand_out(house.broker, f"run-{number}", input=await blob(house, 15_000_000 + number))
    async with served(house.app) as url, Client(url=url) as other:
        reader, writer = await bare_poll(url)
        assert (await reader.read(100)).startswith(b"HTTP/1.1 200")
        if goes:
            writer.transport.abort()
        await until(lambda: nobody_holds(house))
        assert {task["run_id"] for task in await other.poll(max_tasks=8)} == {"run-1", "run-2"}
        writer.transport.abort()


async def nobody_holds(house: House) -> bool:
    return len(house.bridge.keeper) == 0


async def test_an_answer_that_was_taken_is_not_given_back_when_its_client_goes(house: House) -> None:
    await hand_out(house.broker, "run-1", input=await blob(house, 15_000_000))
    async with served(house.app) as url:
        async with Client(url=url) as first:
            assert len(await first.poll(max_tasks=8)) == 1
        async with Client(url=url) as other:
            assert await other.poll(timeout_ms=100) == []


async def test_what_was_found_in_the_moment_of_a_disconnect_is_given_back(house: House) -> None:
    await hand_out(house.broker, "run-1")
    found = await house.bridge.poll(PollRequest(task_types=["llm"], max_tasks=1, timeout_ms=0))
    await house.bridge.give_back(found)
    assert len(house.bridge.keeper) == 0
    (task,) = await house.client.poll()
    assert task["task_id"] == TASK


async def test_a_cancelled_poll_gives_back_what_it_was_making_ready(house: House) -> None:
    gate = asyncio.Event()

    class Slow(Bridge):
        async def _inlined(self, one: Leased) -> Leased | None:
            gate.set()
            await asyncio.Event().wait()
            return None

    large = await house.broker.blobs().put(b'"' + b"x" * 1000 + b'"')
    await hand_out(house.broker, "run-1", input={"$blob": large, "size": 1002})
    async with Slow(house.broker) as slow:
        polling = asyncio.create_task(slow.poll(PollRequest(task_types=["llm"], max_tasks=1, timeout_ms=0)))
        await gate.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
    (task,) = await house.client.poll()
    assert task["input"] == "x" * 1000


async def test_too_many_polls_at_once_are_503(house: House) -> None:
    async with Bridge(house.broker, BridgeOptions(most_polls=1)) as narrow:
        wanted = PollRequest(task_types=["llm"], max_tasks=1, timeout_ms=60_000)
        waiting = asyncio.create_task(narrow.poll(wanted))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await narrow.poll(wanted)
        await narrow.close()
        assert await waiting == [], "a bridge that closes ends its polls"


async def test_a_broker_that_is_away_is_503_with_retry_after(house: House) -> None:
    house.faults.broken = ("tasks.", "leases.")
    answer = await house.client.http.post("/v1/tasks/poll", json=golden("poll-request-contract"))
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    resolved = await house.client.resolve(TASK, "complete")
    assert resolved.json()["type"] == "urn:fumehood:problem:broker-unavailable"


# --- big payloads ------------------------------------------------------------------------------------------


async def blob(house: House, size: int, letter: str = "x") -> dict[str, Any]:
    value = json.dumps(letter * (size - 2)).encode()
    return {"$blob": await house.broker.blobs().put(value), "size": size}


async def test_big_payloads_are_inlined_for_bare_workers(house: House) -> None:
    task = await house.one(input={"document": await blob(house, 300_000)})
    assert task["input"] == {"document": "x" * 299_998}


async def test_big_payloads_of_workers_go_by_reference(house: House) -> None:
    await house.one()
    assert await house.resolved("complete", output="y" * 200_000) == 200
    (event,) = await house.said()
    assert set(event.payload) == {"$blob", "size"}


async def test_an_input_that_is_too_large_for_http_fails_with_a_clear_code(house: House) -> None:
    house.bridge._options = replace(QUICK, largest_input=1000)
    await hand_out(house.broker, "run-1", input=await blob(house, 2000))
    assert await house.client.poll() == []
    (event,) = await house.said()
    assert (event.payload["error"]["code"], event.payload["error"]["retryable"]) == ("input_too_large", False)
    assert len(house.broker.server.tasks.messages) == 0


async def test_an_input_that_is_lost_fails_with_a_clear_code(house: House) -> None:
    await hand_out(house.broker, "run-1", input={"$blob": "sha256:" + "0" * 64, "size": 10})
    assert await house.client.poll() == []
    (event,) = await house.said()
    assert event.payload["error"]["code"] == "input_lost"


async def test_large_inputs_beyond_one_answers_bound_come_with_the_next_poll(house: House) -> None:
    house.bridge._options = replace(QUICK, largest_answer=5000)
    for number in range(3):
        await hand_out(house.broker, f"run-{number}", input=await blob(house, 2000 + number))
    assert sorted([len(await house.client.poll(max_tasks=8)) for _ in range(2)]) == [1, 2]


async def test_a_blob_store_that_is_away_loses_no_task(house: House) -> None:
    await hand_out(house.broker, "run-1", input=await blob(house, 2000))
    house.faults.broken = ("blobs.",)
    assert (
        await house.client.http.post("/v1/tasks/poll", json=golden("poll-request-contract") | {"timeout_ms": 0})
    ).status_code == 503
    house.faults.broken = ()
    assert len(await house.client.poll()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "complete", "output": {"deep": [{"$blob": "x"}]}},
        {"action": "continue", "output": {"$blob": "sha256:" + "0" * 64, "size": 5}},
        {"action": "checkpoint", "data": {"$blob": 1}},
        {"action": "pause", "duration_ms": 1, "checkpoint": {"$blob": 1}},
        {"action": "signal", "name": "n", "data": [{"$blob": 1}]},
    ],
)
async def test_a_blob_in_what_a_worker_sends_is_refused(house: House, fields: dict[str, Any]) -> None:
    await house.one()
    assert await house.resolved(**fields) == 400
    assert await house.said() == []


# --- resolve -----------------------------------------------------------------------------------------------


async def test_resolve_takes_the_contracts_own_example(house: House) -> None:
    await house.one()
    answer = await house.client.http.post(f"/v1/tasks/{TASK}/resolve", json=golden("resolve-contract"))
    assert (answer.status_code, answer.json()) == (200, golden("resolve-response"))
    (event,) = await house.said()
    assert (event.type.value, event.payload) == ("step.completed", {"result": "ok"})


async def test_resolve_takes_an_answer_whose_language_writes_out_empty_fields(house: House) -> None:
    empty: dict[str, Any] = {"error": "", "name": "", "duration_ms": 0, "checkpoint": None, "data": None}
    await house.one()
    assert await house.resolved("complete", output=None, **empty) == 200


@pytest.mark.parametrize(
    ("name", "event", "payload"),
    [
        ("resolve-complete", "step.completed", {"result": "ok"}),
        ("resolve-fail", "step.failed", {"error": "error message"}),
        ("resolve-fail-detail", "step.failed", {"error": golden("resolve-fail-detail")["error"]}),
        ("resolve-pause", "step.paused", {"duration_ms": 5000}),
        ("resolve-continue", "step.continue", {"thought": "once more"}),
    ],
)
async def test_resolve_actions_that_end_a_delivery(house: House, name: str, event: str, payload: Any) -> None:
    lease_id = (await house.one())["lease_id"]
    fields: dict[str, Any] = golden(name)
    fields |= {"lease_id": lease_id} if "lease_id" in fields else {}
    answer = await house.client.http.post(f"/v1/tasks/{TASK}/resolve", json=fields)
    assert answer.status_code == 200
    (said,) = await house.said()
    assert (said.type.value, said.payload) == (event, payload)
    assert len(house.broker.server.tasks.messages) == 0
    assert len(house.bridge.keeper) == 0


@pytest.mark.parametrize("name", ["resolve-checkpoint", "resolve-heartbeat"])
async def test_resolve_actions_that_extend_a_lease(house: House, name: str) -> None:
    lease_id = (await house.one(timeout_ms=7000))["lease_id"]
    answer = await house.client.http.post(f"/v1/tasks/{TASK}/resolve", json=golden(name) | {"lease_id": lease_id})
    assert answer.json() == {"status": "ok", "expires_in_ms": 7000}
    assert await house.said() == []
    assert await house.resolved("complete") == 200


async def test_resolve_with_a_signal_tells_the_run_and_the_task_goes_on(house: House) -> None:
    await house.one()
    assert await house.resolved(**golden("resolve-signal")) == 200
    (event,) = await house.said()
    assert event.payload.pop("id")
    assert (event.type.value, event.payload) == ("step.signal", {"name": "progress", "data": {"percent": 40}})
    assert await house.resolved("complete") == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "explode"},
        {"action": ["complete"]},
        {"action": "pause"},
        {"action": "pause", "duration_ms": 0},
        {"action": "pause", "duration_ms": 3_600_001},
        {"action": "pause", "duration_ms": 10**30},
        {"action": "pause", "duration_ms": True},
        {"action": "checkpoint"},
        {"action": "checkpoint", "data": None},
        {"action": "checkpoint", "data": "x" * (1024 * 1024)},
        {"action": "signal"},
        {"action": "signal", "name": "not a name"},
        {"action": "signal", "name": "big", "data": "x" * (1024 * 1024)},
        {"action": "fail", "error": ["text"]},
        {"action": "complete", "lease_id": 7},
        {"action": "complete", "lease_id": "x" * 129},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
async def test_resolve_with_bad_fields_or_beyond_a_limit_is_400_and_nothing_happens(
    house: House, fields: dict[str, Any]
) -> None:
    await house.one()
    assert await house.resolved(**fields) == 400
    assert await house.said() == []
    assert await house.resolved("complete") == 200


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("poll", {"task_types": ["a b"]}, "task_types.0: must be letters, digits, dashes and underscores, with single"),
        ("poll", {"task_types": "a"}, "task_types: must be an array"),
        ("poll", {"task_types": ["a" * 129]}, "task_types.0: must have at most 128 characters"),
        ("poll", {"task_types": ["a"] * 129}, "task_types: must have at most 128 entries"),
        ("poll", {"worker_id": "a.b"}, "worker_id: must be 1 to 128 letters, digits, dashes and underscores"),
        (f"{TASK}/resolve", {"action": "fail", "error": ["text"]}, "error: must be text or an object"),
        (f"{TASK}/resolve", {"action": "fail", "error": {"code": 5}}, "error.code: must be text"),
    ],
)
async def test_what_is_wrong_is_said_in_words_of_the_contract(
    house: House, path: str, body: dict[str, Any], sentence: str
) -> None:
    valid = {"task_types": ["llm"], "max_tasks": 1, "timeout_ms": 0} if path == "poll" else {}
    answer = await house.client.http.post(f"/v1/tasks/{path}", json=valid | body)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(sentence)


async def test_resolve_without_an_action_is_400(house: House) -> None:
    assert (await house.client.http.post(f"/v1/tasks/{TASK}/resolve", json={"output": 1})).status_code == 400


async def test_a_pause_of_an_hour_and_a_signal_of_one_mebibyte_are_allowed(house: House) -> None:
    await house.one()
    assert await house.resolved("signal", name="big", data="x" * (1024 * 1024 - 2)) == 200
    assert await house.resolved("pause", duration_ms=3_600_000) == 200


async def test_an_errors_text_is_cut_rather_than_refused(house: House) -> None:
    await house.one()
    assert await house.resolved("fail", error="x" * 1_000_000) == 200
    (event,) = await house.said()
    assert len(event.payload["error"]) == 4096


@pytest.mark.parametrize("task_id", ["run-9.step-a", "nonsense", "a.b.c", "%3E.%3E", "run-1.", "x" * 300 + ".y"])
async def test_ack_map_404_only_when_there_is_no_such_lease(house: House, task_id: str) -> None:
    await house.one()
    assert await house.resolved("complete", task_id=task_id) == 404


async def test_ack_map_any_replica_resolves_any_task_and_a_restart_loses_nothing(house: House) -> None:
    task = await house.one()
    async with Bridge(MemoryBroker(house.broker.server)) as other, Client(make_app(other)) as client:
        assert (await client.resolve(TASK, "complete", lease_id=task["lease_id"])).status_code == 200
    assert ends(await history(house.broker, "run-1")) == ["step.completed"]


async def test_what_nodes_take_is_neither_handed_out_nor_answered_here(house: House) -> None:
    """Whoever has such a task could answer it without having run anything."""
    await hand_out(house.broker, "run-1", kind=SANDBOX_TASK)
    http = house.client.http
    body = {"task_types": ["llm", SANDBOX_TASK], "max_tasks": 1, "timeout_ms": 0}
    assert (await http.post("/v1/tasks/poll", json=body)).status_code == 403
    connect = {"worker_id": "w1", "task_types": [SANDBOX_TASK], "max_tasks": 1}
    assert (await http.post("/v1/workers/connect", json=connect)).status_code == 403
    (held,) = await Handouts(house.broker).take([SANDBOX_TASK], max_tasks=1, timeout=0, worker_id="n1")
    for lease_id in ({}, {"lease_id": held.lease.lease_id}):
        assert (await house.client.resolve(TASK, "complete", output={}, **lease_id)).status_code == 404
    assert ends(await history(house.broker, "run-1")) == []


async def test_fencing_a_resolve_that_names_an_old_lease_is_409(house: House) -> None:
    old = await house.one()
    await house.bridge.give_back(
        [Leased(old, await house.bridge.handouts.find(TASK), {})]  # type: ignore[arg-type]
    )
    (new,) = await house.client.poll()
    for action in ("complete", "fail", "heartbeat"):
        answer = await house.client.resolve(TASK, action, lease_id=old["lease_id"])
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:fumehood:problem:lease-lost")
    assert await house.resolved("complete", lease_id=new["lease_id"]) == 200
    assert len(await house.said()) == 1


async def test_fencing_a_resolve_that_names_none_acts_on_the_current_lease_and_is_recorded(house: House) -> None:
    await house.one()
    assert await house.resolved("complete", output=1) == 200
    (event,) = await house.said()
    assert (event.fenced, event.lease_id) == (False, None)


async def test_fencing_a_resolve_that_names_its_lease_is_recorded_with_it(house: House) -> None:
    task = await house.one()
    assert await house.resolved("complete", lease_id=task["lease_id"]) == 200
    (event,) = await house.said()
    assert (event.fenced, event.lease_id) == (None, task["lease_id"])


async def test_the_same_answer_twice_counts_once(house: House) -> None:
    task = await house.one()
    assert [await house.resolved("complete", lease_id=task["lease_id"]) for _ in range(3)] == [200, 200, 200]
    assert await house.resolved("complete") == 404
    assert await house.resolved("fail", error="no", lease_id=task["lease_id"]) == 409
    assert len(await house.said()) == 1


async def test_a_revoked_task_is_409_for_whoever_has_it(house: House) -> None:
    """A cancelled run reaches its workers with their next heartbeat."""
    task = await house.one()
    await house.bridge.handouts.revoke("run-1", "step-a", (1, 0, 0), task_type="llm")
    assert await house.resolved("heartbeat", lease_id=task["lease_id"]) == 409
    assert await house.resolved("complete", lease_id=task["lease_id"]) == 409
    assert await house.resolved("complete") == 404
    assert await house.said() == []


async def test_delivery_is_counted_once_a_copy_in_the_queue_is_acked_away(house: House) -> None:
    await house.one()
    copy = house.broker.server.tasks.of("llm/run-1")[0].data
    await house.broker.tasks.publish("llm", "run-1", "copy", copy)
    assert await house.client.poll(max_tasks=8) == []
    assert len(house.broker.server.tasks.messages) == 1


async def test_lease_time_a_task_nobody_answers_is_there_again_when_its_lease_is_over(house: House) -> None:
    """Long before the queue's own five minutes: the bridge that handed it out gives it back."""
    first = await house.one(timeout_ms=1)
    (second,) = await house.client.poll(timeout_ms=30_000)
    assert second["lease_id"] != first["lease_id"]


async def test_who_owns_retries_the_engine_alone(house: House) -> None:
    """A failed attempt is off the queue; what comes again is what the engine hands out."""
    await house.one()
    assert await house.resolved("fail", error="no") == 200
    assert await house.client.poll() == []
    await hand_out(house.broker, "run-1", attempt=2)
    assert [task["attempt"] for task in await house.client.poll()] == [2]


async def test_a_trace_goes_on_from_the_workers_own_span(house: House) -> None:
    await house.one()
    answer = await house.client.http.post(
        f"/v1/tasks/{TASK}/resolve", json={"action": "complete"}, headers={"traceparent": TRACE}
    )
    assert answer.status_code == 200
    (event,) = await house.said()
    assert event.traceparent.split("-")[1] == TRACE.split("-")[1]


# --- checkpoints -------------------------------------------------------------------------------------------


async def test_reading_a_checkpoint_over_http_and_in_a_redelivered_payload(house: House) -> None:
    path = f"/v1/tasks/{TASK}/checkpoint"
    await house.one(timeout_ms=1)
    assert (await house.client.http.get(path)).status_code == 404
    assert await house.resolved("checkpoint", data={"at": [1, None]}) == 200
    assert (await house.client.http.get(path)).json() == {"checkpoint": {"at": [1, None]}}
    (again,) = await house.client.poll(timeout_ms=30_000)
    assert again["checkpoint"] == {"at": [1, None]}
    assert await house.resolved("complete") == 200
    assert (await house.client.http.get(path)).status_code == 404


@pytest.mark.parametrize("task_id", ["nonsense", "a.b.c", "%2A.x"])
async def test_a_checkpoint_of_no_task_is_404(house: House, task_id: str) -> None:
    assert (await house.client.http.get(f"/v1/tasks/{task_id}/checkpoint")).status_code == 404


async def test_pause_does_not_consume_an_attempt_and_leaves_the_queue(house: House) -> None:
    await house.one()
    assert await house.resolved("pause", duration_ms=50, checkpoint={"page": 2}) == 200
    assert len(house.broker.server.tasks.messages) == 0
    await hand_out(house.broker, "run-1", resumption=1)
    (again,) = await house.client.poll()
    assert (again["attempt"], again["resumption"], again["checkpoint"]) == (1, 1, {"page": 2})


# --- connect -----------------------------------------------------------------------------------------------


@pytest.fixture
async def url(house: House) -> AsyncIterator[str]:
    async with served(house.app) as address:
        yield address


async def registered(house: House, worker_id: str) -> dict[str, Any] | None:
    entry = await house.broker.bucket(Bucket.WORKERS).get(worker_id)
    return json.loads(entry.value) if entry is not None else None


async def gone(house: House, worker_id: str) -> bool:
    return await registered(house, worker_id) is None and len(house.bridge.workers) == 0


async def test_connect_registers_the_worker_and_sends_heartbeats(house: House, url: str) -> None:
    async with Client(url=url) as client:
        body = golden("connect-request")
        async with client.http.stream("POST", "/v1/workers/connect", json=body) as answer:
            lines = [line async for line, _ in zip_lines(answer.aiter_lines(), 6)]
        assert answer.headers["cache-control"] == "no-store"
    assert [line for line in lines if line.startswith("event")] == ["event: heartbeat"] * 2
    await until(lambda: gone(house, body["worker_id"]))


async def zip_lines(lines: AsyncIterator[str], count: int) -> AsyncIterator[tuple[str, int]]:
    number = 0
    async for line in lines:
        yield line, number
        number += 1
        if number == count:
            return


async def test_connect_writes_the_contracts_registration(house: House) -> None:
    connection = await house.bridge.connect(ConnectRequest.model_validate(golden("connect-request")))
    found = await registered(house, "worker-123")
    assert found is not None
    assert found.pop("metadata")["version"] == "1.0.0"
    expected = golden("worker-registration") | {"task_types": ["llm", "http.get"]}
    del expected["metadata"]
    assert found == expected
    await connection.close()


async def test_connect_refreshes_the_registration_with_each_heartbeat(house: House, url: str) -> None:
    async with Client(url=url) as client, client.connect("w") as events:
        await anext(events)
        first = await house.broker.bucket(Bucket.WORKERS).get("w")
        await anext(events)
        second = await house.broker.bucket(Bucket.WORKERS).get("w")
        assert first is not None
        assert second is not None
        assert second.revision > first.revision


async def test_connect_deregisters_on_disconnect(house: House, url: str) -> None:
    async with Client(url=url) as client:
        async with client.connect("w") as events:
            await anext(events)
            assert await registered(house, "w") is not None
        await until(lambda: gone(house, "w"))


async def test_connect_a_newer_stream_replaces_the_older_which_is_told(house: House, url: str) -> None:
    async with Client(url=url) as one, Client(url=url) as two, one.connect("w") as older:
        await anext(older)
        async with two.connect("w") as newer:
            await anext(newer)
            assert [name async for name, _ in older][-1] == "replaced"
            assert await registered(house, "w") is not None, "the older one must not take the newer one's away"
            assert (await anext(newer))[0] == "heartbeat"


async def test_connect_replaces_a_stream_at_another_bridge_at_once(house: House, url: str) -> None:
    """Long before that one's next heartbeat: it watches the directory."""
    slow = BridgeOptions(heartbeat_seconds=3600)
    async with (
        Bridge(MemoryBroker(house.broker.server), slow) as other,
        served(make_app(other)) as there,
        Client(url=there) as one,
        Client(url=url) as two,
        one.connect("w") as older,
    ):
        await anext(older)
        async with two.connect("w") as newer:
            await anext(newer)
            async with asyncio.timeout(30):
                assert [name async for name, _ in older] == ["replaced"]


async def test_drain_ends_the_stream_and_the_polls_of_that_worker(house: House, url: str) -> None:
    async with Client(url=url) as client, client.connect("w") as events:
        await anext(events)
        assert (await client.http.delete("/v1/workers/w")).json() == golden("drain-response")
        assert [name async for name, _ in events][-1] == "drain"
        assert await registered(house, "w") is None
        await hand_out(house.broker, "run-1")
        assert await client.poll(worker_id="w", timeout_ms=50) == []
        assert len(await client.poll(worker_id="another")) == 1
        assert (await client.http.delete("/v1/workers/w")).status_code == 200


async def test_drain_in_the_moment_of_a_hand_out_gives_the_task_back(house: House) -> None:
    connection = await house.bridge.connect(ConnectRequest(worker_id="w", task_types=["llm"], max_tasks=1))
    polling = asyncio.create_task(house.client.poll(worker_id="w", timeout_ms=60_000))

    async def is_waiting() -> bool:
        return bool(house.bridge._takes) and bool(house.broker.server.bell._waiting)

    await until(is_waiting)
    await house.bridge.drain("w")
    await hand_out(house.broker, "run-1")
    assert await polling == []
    assert len(await house.client.poll()) == 1
    await connection.close()


async def test_drain_of_a_worker_that_came_over_nats_is_409(house: House) -> None:
    registration = WorkerRegistration(worker_id="w", task_types=["llm"], transport="nats")
    await house.broker.bucket(Bucket.WORKERS).put("w", registration.model_dump_json().encode())
    answer = await house.client.http.delete("/v1/workers/w")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:fumehood:problem:conflict")
    assert "NATS" in answer.json()["detail"]
    assert await house.broker.bucket(Bucket.WORKERS).get("w") is not None
    assert not await house.bridge.workers.is_drained("w"), "its polls are not told to stay empty either"


async def test_no_worker_is_called_like_the_path_where_workers_register(house: House) -> None:
    answer = await house.client.http.post(
        "/v1/workers/connect", json={"worker_id": "connect", "task_types": ["llm"], "max_tasks": 1}
    )
    assert (answer.status_code, answer.json()["detail"]) == (400, "worker_id: must not be `connect`")


async def test_drain_ends_when_the_worker_connects_again(house: House) -> None:
    request = ConnectRequest(worker_id="w", task_types=["llm"], max_tasks=1)
    first = await house.bridge.connect(request)
    await house.bridge.drain("w")
    await first.close()
    second = await house.bridge.connect(request)
    await hand_out(house.broker, "run-1")
    assert len(await house.client.poll(worker_id="w")) == 1
    await second.close()


@pytest.mark.parametrize("worker_id", ["nobody", "a.b", "%3E"])
async def test_drain_of_nobody_is_404(house: House, worker_id: str) -> None:
    assert (await house.client.http.delete(f"/v1/workers/{worker_id}")).status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"worker_id": "a.b"},
        {"worker_id": ""},
        {"task_types": []},
        {"max_tasks": 0},
        {"metadata": {"a": 1}},
        {"metadata": {str(n): "" for n in range(33)}},
        {"metadata": {"a": "x" * 513}},
        {"language": "x" * 65},
    ],
)
async def test_connect_with_bad_fields_is_400(house: House, changes: dict[str, Any]) -> None:
    answer = await house.client.http.post("/v1/workers/connect", json=golden("connect-request") | changes)
    assert answer.status_code == 400
    assert len(house.bridge.workers) == 0


async def test_connect_survives_a_broker_that_is_away_and_an_expired_registration(house: House, url: str) -> None:
    async with Client(url=url) as client, client.connect("w") as events:
        await anext(events)
        house.faults.broken = ("workers.",)
        for _ in range(3):
            assert (await anext(events))[0] == "heartbeat"
        await house.broker.bucket(Bucket.WORKERS).delete("w")
        house.faults.broken = ()

        async def back() -> bool:
            return await registered(house, "w") is not None

        await until(back)
        assert (await anext(events))[0] == "heartbeat"


async def test_connect_without_a_broker_is_503(house: House) -> None:
    house.faults.broken = ("workers.",)
    answer = await house.client.http.post("/v1/workers/connect", json=golden("connect-request"))
    assert answer.status_code == 503


async def test_too_many_streams_are_503(house: House) -> None:
    async with Bridge(house.broker, BridgeOptions(most_streams=1)) as narrow:
        connection = await narrow.connect(ConnectRequest(worker_id="a", task_types=["llm"], max_tasks=1))
        with pytest.raises(OverloadedError):
            await narrow.connect(ConnectRequest(worker_id="b", task_types=["llm"], max_tasks=1))
        await connection.close()


async def test_a_bridge_that_closes_ends_its_streams_and_takes_nobody_new(house: House, url: str) -> None:
    async with Client(url=url) as client, client.connect("w") as events:
        await anext(events)
        await house.bridge.close()
        assert {name async for name, _ in events} <= {"heartbeat"}
        await until(lambda: gone(house, "w"))
        answer = await client.http.post("/v1/tasks/poll", json=golden("poll-request-contract"))
        assert answer.json()["type"] == "urn:fumehood:problem:draining"
