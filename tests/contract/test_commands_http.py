"""Commands of workers at the server's door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fumehood.control.callers import DEFAULT_TENANT
from fumehood.door.problems import KINDS, REASONS
from fumehood.wire.command_api import MAX_PAYLOAD_BYTES
from fumehood.wire.console.codes import RETRYABLE, Reason
from tests.contract.console_harness import Desk, desk
from tests.waiting import until

JSON = {"content-type": "application/json"}


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


def problem(answer: httpx.Response, status: int, code: str, reason: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["type"], found.get("code")) == (f"urn:fumehood:problem:{code}", reason)
    return found


# --- submitting --------------------------------------------------------------------------------------------


async def test_an_echo_comes_back_with_its_command(there: Desk) -> None:
    answer = await there.submit(payload="hällo\u2028\n")
    assert answer.status_code == 200
    said = answer.json()
    assert said.pop("command_id").startswith("cmd-")
    assert said.pop("created_at") <= said.pop("ended_at")
    assert said == {"status": "succeeded", "capability": "echo", "result": "hällo\u2028\n"}


@pytest.mark.parametrize(
    "text",
    [
        '"a\\u00e9\\/b"',
        "1.10",
        "1E2",
        "12345678901234567890123",
        '{"b" : 1,\n"a":[ ]}',
        "null",
        "false",
        '""',
        '"' + "x" * 200_000 + '"',
    ],
)
async def test_a_payload_comes_back_byte_for_byte(there: Desk, text: str) -> None:
    """Large ones lie beside the record, and come back all the same."""
    body = '{"capability": "echo", "payload": ' + text + ' , "wait_ms": 20000}'
    answer = await there.client.post("/v1/commands", content=body.encode(), headers=JSON)
    assert answer.status_code == 200
    assert answer.text.endswith(f',"result":{text}}}')
    json.loads(answer.text)
    again = await there.client.get(f"/v1/commands/{answer.json()['command_id']}")
    assert again.text == answer.text


async def test_what_fails_is_told_with_its_code(there: Desk) -> None:
    there.worker.failing = Reason.SESSION_BUSY
    answer = await there.submit("terminalExec", {"command": "x"})
    assert answer.status_code == 200
    said = answer.json()
    assert said["status"] == "failed"
    assert said["error"] == {"code": "session_busy", "message": "as the worker says", "retryable": True}
    assert "result" not in said


async def test_one_that_takes_longer_is_202_and_can_be_waited_for(there: Desk) -> None:
    answer = await there.submit("pythonExec", {"code": "echo a; wait; echo b"}, wait_ms=50)
    assert answer.status_code == 202
    said = answer.json()
    assert (said["status"], "result" in said, "ended_at" in said) == ("running", False, False)
    path = answer.headers["location"]
    assert path == f"/v1/commands/{said['command_id']}"
    assert (await there.client.get(path)).json() == said
    waiting = asyncio.create_task(there.client.get(path, params={"wait_ms": 20_000}, timeout=30))
    there.worker.commands[said["command_id"]].may_go_on.set()
    done = (await waiting).json()
    assert (done["status"], done["result"]) == ("succeeded", {"output": "a\nb\n", "stderr": "", "exit_code": 0})


async def test_a_command_has_its_time(there: Desk) -> None:
    said = (await there.submit("pythonExec", {"code": "sleep"}, timeout_ms=50)).json()
    assert (said["status"], said["error"]["code"]) == ("timed_out", "deadline_exceeded")


async def test_cancelling_ends_it_and_is_harmless_afterwards(there: Desk) -> None:
    said = (await there.submit("pythonExec", {"code": "sleep"}, wait_ms=0)).json()
    path = f"/v1/commands/{said['command_id']}:cancel"
    for _ in range(2):
        answer = await there.client.post(path)
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["error"]["code"]) == ("cancelled", "deadline_exceeded")
    done = (await there.submit()).json()
    assert (await there.client.post(f"/v1/commands/{done['command_id']}:cancel")).json() == done


async def test_a_key_makes_it_one_command(there: Desk) -> None:
    first = await there.submit(idempotency_key="k")
    again = await there.client.post(
        "/v1/commands", json={"capability": "echo", "payload": "hi"}, headers={"idempotency-key": "k"}
    )
    assert (again.status_code, again.text) == (200, first.text)
    assert there.worker.calls == ["echo"]
    problem(await there.submit(payload="other", idempotency_key="k"), 409, "conflict")
    both = {"capability": "echo", "payload": "hi", "idempotency_key": "k"}
    answer = await there.client.post("/v1/commands", json=both, headers={"idempotency-key": "l"})
    problem(answer, 409, "conflict")


async def test_without_a_worker_there_is_no_command() -> None:
    async with desk(connected=False) as there:
        answer = await there.submit(wait_ms=0)
        said = problem(answer, 503, "no-worker", "no_worker")
        assert said["retryable"] is True
        assert int(answer.headers["retry-after"]) >= 1


async def test_with_all_workers_busy_there_is_no_command_and_no_line_in_the_audit_list() -> None:
    async with desk(connected=False) as there:
        await there.worker.connect(there.api.service.desk, {"pythonExec": 1})
        running = await there.submit("pythonExec", {"code": "sleep"}, wait_ms=20)
        assert running.status_code == 202
        written = there.api.service.audit.counts["written"]
        assert written == 1
        answer = await there.submit("pythonExec", {"code": "echo"}, wait_ms=20)
        problem(answer, 503, "no-capacity", "no_capacity")
        assert answer.headers["retry-after"] == "1"
        assert there.api.service.audit.counts["written"] == written
        await there.client.post(f"{running.headers['location']}:cancel")


@pytest.mark.parametrize(
    "changes",
    [
        {"capability": "session.create"},
        {"capability": "Echo"},
        {"capability": None},
        {"timeout_ms": 0},
        {"timeout_ms": 3_600_001},
        {"timeout_ms": "1"},
        {"wait_ms": -1},
        {"wait_ms": 60_001},
        {"wait_ms": True},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 257},
        {"idempotency_key": None},
        {"worker": "w1"},
    ],
)
async def test_what_is_out_of_bounds_or_unknown_is_400(there: Desk, changes: dict[str, Any]) -> None:
    body = {"capability": "echo", "payload": 1} | changes
    problem(await there.client.post("/v1/commands", json=body), 400, "invalid-request")
    assert there.worker.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"capability": "echo"}',
        b'{"capability": "echo", "payload": 1, "payload": 2}',
        b'{"capability": "echo", "payload": {"a": 1, "a": 2}}',
        b'{"capability": "echo", "payload": NaN}',
        b'{"capability": "echo", "payload": 1} x',
        b'{"capability": "echo", "payload": "\\ud800"}',
        b'{"capability": "echo", "payload": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"capability": "echo", "payload": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff",
    ],
)
async def test_a_malformed_body_is_400(there: Desk, body: bytes) -> None:
    problem(await there.client.post("/v1/commands", content=body, headers=JSON), 400, "invalid-request")


async def test_payloads_have_a_bound(there: Desk) -> None:
    assert (await there.submit(payload="x" * (MAX_PAYLOAD_BYTES - 2))).status_code == 200
    problem(await there.submit(payload="x" * MAX_PAYLOAD_BYTES), 413, "payload-too-large")
    deepest = b'{"capability": "echo", "payload": ' + b"[" * 64 + b"]" * 64 + b"}"
    assert (await there.client.post("/v1/commands", content=deepest, headers=JSON)).status_code == 200


async def test_a_workers_nonsense_does_not_become_part_of_an_answer(there: Desk) -> None:
    class Liar(type(there.worker)):  # type: ignore[misc]
        async def _done(self, dispatch: Any) -> tuple[bytes, bytes]:
            return b'1,"status":"succeeded"', b""

    there.worker.__class__ = Liar
    answer = await there.submit()
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["error"]["code"]) == ("failed", "execution_failed")


# --- whose it is -------------------------------------------------------------------------------------------


async def test_anothers_command_is_told_apart_from_none_by_no_byte(there: Desk) -> None:
    command_id = (await there.submit()).json()["command_id"]
    theirs = await there.as_tenant("globex")
    for method, path in (("GET", ""), ("GET", "/stream"), ("POST", ":cancel")):
        answers = []
        for one in (command_id, "cmd-" + "0" * 32, "a.b", "x" * 65, "%20"):
            url = f"/v1/commands/{one}{path}"
            answer = await there.client.request(method, url, headers=theirs | {"x-request-id": "r"})
            problem(answer, 404, "command-not-found", "command_not_found")
            answers.append((answer.content, sorted(answer.headers.items())))
        assert all(answer == answers[0] for answer in answers)


async def test_what_was_submitted_and_cancelled_is_in_the_audit_list(there: Desk) -> None:
    async with there.api.service.index.working():
        mine = await there.as_tenant("acme")
        submitted = await there.client.post(
            "/v1/commands", json={"capability": "pythonExec", "payload": {"code": "sleep"}, "wait_ms": 0}, headers=mine
        )
        command_id = submitted.json()["command_id"]
        await there.client.post(f"/v1/commands/{command_id}:cancel", headers=mine)
        await there.client.get(f"/v1/commands/{command_id}", headers=mine)
        found: list[dict[str, Any]] = []

        async def told() -> bool:
            found[:] = (await there.client.get("/v1/audit", params={"tenant": "acme"})).json()["entries"]
            return len(found) >= 2

        await until(told)
        assert [(one["action"], one["target"]) for one in found] == [
            ("command.cancelled", command_id),
            ("command.submitted", command_id),
        ]
        assert found[1]["detail"]["capability"] == "pythonExec"
        assert "sleep" not in json.dumps(found)


# --- one table ---------------------------------------------------------------------------------------------

STATUS = {
    "invalid_payload": 400, "unsupported_capability": 400, "deadline_exceeded": 504, "execution_failed": 502,
    "policy_denied": 403, "image_unavailable": 502,
    "no_worker": 503, "no_capacity": 503, "worker_lost": 503, "worker_replaced": 503, "session_not_found": 404,
    "session_busy": 409, "command_not_found": 404, "file_not_found": 404, "path_is_directory": 409,
    "file_too_large": 413, "file_error": 409,
}  # fmt: skip


def test_every_reason_has_a_problem_of_its_own() -> None:
    assert {reason: KINDS[code].status for reason, code in REASONS.items()} == STATUS
    assert set(REASONS) == set(Reason)
    assert len(set(REASONS.values())) == len(REASONS)


@pytest.mark.parametrize("reason", [one for one in Reason if one not in (Reason.WORKER_LOST, Reason.WORKER_REPLACED)])
async def test_every_reason_is_told_with_its_code(there: Desk, reason: Reason) -> None:
    """Those two are tried again first, for longer than a test waits."""
    sandbox = await there.sandbox()
    there.worker.failing = reason
    answer = await there.client.get(f"/v1/sandboxes/{sandbox}/commands")
    said = problem(answer, STATUS[reason], REASONS[reason], reason)
    assert said["retryable"] is (reason in RETRYABLE)
    assert said["detail"] == "as the worker says" or reason is Reason.SESSION_NOT_FOUND
    assert ("retry-after" in answer.headers) is (answer.status_code == 503)


async def test_a_reason_that_a_worker_made_up_is_a_failure(there: Desk) -> None:
    sandbox = await there.sandbox()
    there.worker.failing = "flat_tyre"  # type: ignore[assignment]
    answer = await there.client.get(f"/v1/sandboxes/{sandbox}")
    problem(answer, 502, "execution-failed", "execution_failed")


def test_the_administrators_tenant_is_the_default_one() -> None:
    assert DEFAULT_TENANT == "default", "the harness looks there for his sandboxes"
