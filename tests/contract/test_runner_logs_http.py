"""What sandboxes of runs printed, over HTTP: at once, and as it appears. A run of a single image, and a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from fumehood.broker.names import NODES_TENANT
from fumehood.broker.ports import LogKind, LogName, LogPlace, LogRecord
from fumehood.control.event_streams import EventOptions
from fumehood.sandbox.head_tail import Kept
from fumehood.sandbox.kept_logs import KeptLogs
from fumehood.wire.sandbox import RUN_STEP, RunEnd
from tests.contract.bridge_harness import served
from tests.contract.runner_harness import IMAGE, Door, report
from tests.contract.server_api_harness import ADMIN, Api
from tests.contract.sse import PATIENCE, follow


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """Over a real socket: what is streamed must come before it ends."""
    api = Api(event_options=EventOptions(heartbeat_seconds=0.2))
    headers = {"authorization": f"Bearer {ADMIN}"}
    async with served(api.app) as url, httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client:
        yield Door(api, client)


async def test_the_last_lines_of_each_stream(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    lines = [f"line {number}\n" for number in range(600)]
    await door.node.print(leased, "".join(lines).encode(), b"err \xff\n")
    await door.node.complete(leased, report())
    path = f"/runs/{run_id}/logs"
    said = (await door.client.get(path)).json()
    assert said == {"run_id": run_id, "stdout": "".join(lines[-500:]), "stderr": "err \ufffd\n", "truncated": True}
    said = (await door.client.get(path, params={"tail_lines": 10_000})).json()
    assert (said["stdout"], said["truncated"]) == ("".join(lines), False)
    said = (await door.client.get(path, params={"tail_lines": 1})).json()
    assert (said["stdout"], said["stderr"], said["truncated"]) == (lines[-1], "err \ufffd\n", True)


async def test_before_anything_was_printed_there_is_nothing(door: Door) -> None:
    run_id = await door.created()
    nothing = {"run_id": run_id, "stdout": "", "stderr": "", "truncated": False}
    assert (await door.client.get(f"/runs/{run_id}/logs")).json() == nothing, "nobody has looked at it"
    await door.node.take()
    assert (await door.client.get(f"/runs/{run_id}/logs")).json() == nothing


@pytest.mark.parametrize("query", ["tail_lines=0", "tail_lines=10001", "tail_lines=x", "tail_lines=-1", "lines=1"])
async def test_other_numbers_of_lines_are_400(door: Door, query: str) -> None:
    run_id = await door.created()
    answer = await door.client.get(f"/runs/{run_id}/logs?{query}")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:fumehood:problem:invalid-request")


@pytest.mark.parametrize("path", ["logs", "logs/stream"])
async def test_only_runs_of_this_kind_have_logs_here(door: Door, path: str) -> None:
    workflows = await door.api.started(door.client)
    for run_id in ("nobody", workflows):
        answer = await door.client.get(f"/runs/{run_id}/{path}")
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:fumehood:problem:not-found")


async def test_output_is_told_as_it_appears_and_a_reconnect_goes_on(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    name, logs = LogName(run_id, RUN_STEP, 1), door.api.service.broker.logs
    path = f"/runs/{run_id}/logs/stream"
    async with follow(door.client, path) as source:
        start = await source.next()
        assert start is not None
        assert (start.event, start.said["attempt"]) == ("start", 1)
        await logs.append(name, LogRecord(LogKind.OUT, data=b"first\n"))
        first = await source.next()
        assert first is not None
        assert (first.event, first.said) == ("stdout", {"offset": 0, "text": "first\n"})
        last_id = source.last_id
    await logs.append(name, LogRecord(LogKind.OUT, LogPlace(6), b"second\n"))
    async with follow(door.client, path, last_id) as source:
        second = await source.next()
        assert second is not None
        assert second.said == {"offset": 6, "text": "second\n"}
        rest = asyncio.create_task(source.rest())
        await door.node.print(leased, b"first\nsecond\n", b"oops\n")
        await door.node.complete(leased, report())
        told = await rest
        assert [(event.event, event.said.get("text")) for event in told] == [("stderr", "oops\n"), ("end", None)]
    seen = await door.client.get(path, headers={"last-event-id": told[-1].id})
    assert (seen.status_code, seen.content) == (204, b"")


@pytest.mark.parametrize(
    ("given", "problem"),
    [(text, (400, "invalid-request")) for text in ("x", "1", "1.2", "1.2.3.4")] + [("9.0.0", (404, "not-found"))],
)
async def test_an_id_that_is_none_is_refused(door: Door, given: str, problem: tuple[int, str]) -> None:
    """What has no such form, and what no output of this run has."""
    run_id = await door.created()
    await door.node.begin()
    for answer in (
        await door.client.get(f"/runs/{run_id}/logs/stream", headers={"last-event-id": given}),
        await door.client.get(f"/runs/{run_id}/logs/stream", params={"after": given}),
    ):
        assert (answer.status_code, answer.json()["type"]) == (problem[0], f"urn:fumehood:problem:{problem[1]}")


# --- steps of workflows ------------------------------------------------------------------------------------

STEPS = f"""
name: w
steps:
  - {{id: box, sandbox: {{image: {IMAGE}, must_succeed: true}}}}
  - {{id: nap, sleep: 1h}}
"""


async def test_a_sandbox_step_has_logs_of_its_newest_attempt(door: Door) -> None:
    run_id = await door.api.started(door.client, definition=STEPS)
    path = f"/v1/runs/{run_id}/steps/box/logs"
    nothing = {"run_id": run_id, "stdout": "", "stderr": "", "truncated": False}
    assert (await door.client.get(path)).json() == nothing
    leased = await door.node.begin()
    await door.node.print(leased, b"out\n", b"no such file\n")
    await door.node.fail(leased, "exit", report(RunEnd.FAILED, exit_code=1))
    assert (await door.client.get(path)).json()["stderr"] == "no such file\n"
    assert (await door.client.post(f"/v1/runs/{run_id}:retry", json={"reason": "it is there"})).is_success
    leased = await door.node.begin()
    await door.node.print(leased, b"1\n2\n")
    await door.node.complete(leased, report())
    assert (await door.client.get(path)).json() == {**nothing, "stdout": "1\n2\n"}
    assert (await door.client.get(path, params={"tail_lines": 1})).json()["stdout"] == "2\n"
    async with follow(door.client, f"{path}/stream") as source:
        told = [(event.event, event.said.get("text") or event.said.get("attempt")) for event in await source.rest()]
    assert told == [
        ("start", 1), ("stdout", "out\n"), ("stderr", "no such file\n"), ("start", 2), ("stdout", "1\n2\n"), ("end", 2),
    ]  # fmt: skip


async def test_what_somebody_said_by_hand_is_no_output(door: Door) -> None:
    """Neither as text nor as a reference to what some other sandbox printed."""
    run_id = await door.api.started(door.client, definition=STEPS)
    await door.node.begin()
    other = KeptLogs(Kept(b"of another tenant", b"", 17))
    ref = await door.api.service.broker.blobs(NODES_TENANT).put(other.encode())
    said = {"status": "succeeded", "reason": "exit", "stdout": "all passed", "logs": ref}
    path = f"/v1/runs/{run_id}/steps/box"
    answer = await door.client.post(f"{path}:complete", json={"reason": "by hand", "output": said})
    assert answer.is_success, answer.text
    await door.api.decide()
    logs = (await door.client.get(f"{path}/logs")).json()
    assert (logs["stdout"], logs["truncated"]) == ("", True), "nobody heard its end"


@pytest.mark.parametrize("path", ["logs", "logs/stream"])
@pytest.mark.parametrize("is_queued", [True, False])
async def test_what_is_no_sandbox_of_the_caller_has_no_logs(door: Door, path: str, *, is_queued: bool) -> None:
    run_id = await door.api.started(door.client, definition=STEPS)
    if not is_queued:
        await door.api.decide()
    for place, why in (
        (f"{run_id}/steps/nap", "runs in no sandbox"),
        (f"{run_id}/steps/box--1", "no such step"),
        (f"{run_id}/steps/typo", "no such step"),
        ("nobody/steps/box", "no such run"),
    ):
        answer = await door.client.get(f"/v1/runs/{place}/{path}")
        assert (answer.status_code, why in answer.json()["detail"]) == (404, True)
    other = (await door.client.post("/v1/keys", json={"name": "n", "scopes": ["runs:read"], "tenant": "others"})).json()
    headers = {"authorization": f"Bearer {other['key']}"}
    answer = await door.client.get(f"/v1/runs/{run_id}/steps/box/{path}", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:fumehood:problem:not-found")
