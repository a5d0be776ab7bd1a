"""Receipts at the server's door: given as they were signed, and where there are none the reason is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fumehood.control.run_receipts import BY_HAND, NODE_LOST, NOT_ENDED, UNSIGNED
from fumehood.verify.dsse import SigningKey
from fumehood.wire.console.codes import Reason
from fumehood.wire.receipts import LARGEST_RECEIPT, encoded
from fumehood.wire.sandbox import RunEnd
from tests.contract.console_harness import Desk, desk
from tests.contract.runner_harness import Door, report
from tests.contract.server_api_harness import Api
from tests.contract.test_commands_http import problem

SIGNED = SigningKey.from_seed(bytes(32)).sign("application/vnd.in-toto+json", b'{"_type":"x"}')
BYTES = encoded(SIGNED)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    api = Api()
    async with api.client() as client:
        yield Door(api, client)


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk() as made:
        made.worker.receipt = BYTES
        yield made


# --- runs --------------------------------------------------------------------------------------------------


async def test_a_run_has_its_receipt_when_it_has_ended(door: Door) -> None:
    run_id = await door.created()
    path = f"/runs/{run_id}/receipt"
    assert NOT_ENDED in problem(await door.client.get(path), 404, "not-found")["detail"]
    leased = await door.node.begin()
    assert NOT_ENDED in problem(await door.client.get(path), 404, "not-found")["detail"]
    await door.node.complete(leased, report(receipt=SIGNED))
    answer = await door.client.get(path)
    assert (answer.status_code, answer.content) == (200, BYTES)
    assert answer.headers["content-type"] == "application/json"
    step = await door.client.get(f"/v1/runs/{run_id}/steps/run/receipt")
    assert step.content == BYTES
    problem(await door.client.get(f"/v1/runs/{run_id}/steps/walk/receipt"), 404, "not-found")
    problem(await door.client.get("/runs/nobody/receipt"), 404, "not-found")
    problem(await door.client.get(f"{path}?x=1"), 400, "invalid-request")


async def test_a_run_that_failed_has_its_receipt_too(door: Door) -> None:
    run_id = await door.created()
    await door.node.fail(await door.node.begin(), "exit", report(RunEnd.FAILED, exit_code=3, receipt=SIGNED))
    assert (await door.client.get(f"/runs/{run_id}/receipt")).content == BYTES


async def test_why_there_is_none_is_told(door: Door) -> None:
    lost, unsigned, skipped = [await door.created() for _ in range(3)]
    ends = {}
    for _ in range(3):
        leased = await door.node.begin()
        ends[leased.task.run_id] = leased
    await door.node.fail(ends[lost], "node_lost")
    await door.node.complete(ends[unsigned], report())
    await door.node.fail(ends[skipped], "exit", report(RunEnd.FAILED, exit_code=3, receipt={"no": "receipt"}))
    for run_id, why in ((lost, NODE_LOST), (unsigned, UNSIGNED), (skipped, UNSIGNED)):
        assert why in problem(await door.client.get(f"/runs/{run_id}/receipt"), 404, "not-found")["detail"]
    done = await door.client.post(
        f"/v1/runs/{skipped}/steps/run:complete",
        json={"output": report(receipt=SIGNED).model_dump(mode="json"), "reason": "I know better"},
    )
    assert done.status_code < 300, done.text
    await door.api.decide()
    answer = await door.client.get(f"/v1/runs/{skipped}/steps/run/receipt")
    assert BY_HAND in problem(answer, 404, "not-found")["detail"], "whoever said so is no node"


async def test_a_run_that_was_stopped_has_it_where_its_output_ends(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    await door.stop(run_id)
    problem(await door.client.get(f"/runs/{run_id}/receipt"), 404, "not-found")
    await door.node.close(leased, SIGNED)
    assert (await door.client.get(f"/runs/{run_id}/receipt")).content == BYTES


async def test_another_tenants_receipts_are_not_there(there: Desk) -> None:
    other = await there.as_tenant("acme")
    command_id = (await there.submit()).json()["command_id"]
    path = f"/v1/commands/{command_id}/receipt"
    assert (await there.client.get(path)).status_code == 200
    problem(await there.client.get(path, headers=other), 404, "command-not-found", "command_not_found")


# --- commands ----------------------------------------------------------------------------------------------


async def test_a_commands_receipt_is_what_its_worker_signed(there: Desk) -> None:
    said = (await there.submit(payload="hi")).json()
    assert said["result"] == "hi"
    answer = await there.client.get(f"/v1/commands/{said['command_id']}/receipt")
    assert (answer.status_code, answer.content) == (200, BYTES)


async def test_what_failed_at_its_worker_has_a_receipt(there: Desk) -> None:
    there.worker.failing = Reason.SESSION_BUSY
    said = (await there.submit("terminalExec", {"command": "x"})).json()
    assert said["status"] == "failed"
    assert (await there.client.get(f"/v1/commands/{said['command_id']}/receipt")).content == BYTES


@pytest.mark.parametrize("said", [b"", b"nonsense", b"{}", b"[" * 10_000, b'"' + b"x" * LARGEST_RECEIPT + b'"'])
async def test_what_is_no_receipt_is_none_and_changes_no_result(there: Desk, said: bytes) -> None:
    """A worker of an older version sends nothing at all."""
    there.worker.receipt = said
    answer = (await there.submit(payload="hi")).json()
    assert (answer["status"], answer["result"]) == ("succeeded", "hi")
    told = problem(await there.client.get(f"/v1/commands/{answer['command_id']}/receipt"), 404, "not-found")
    assert "version that gives no receipts" in told["detail"]


async def test_a_command_that_goes_on_has_none_yet(there: Desk) -> None:
    said = (await there.submit("terminalExec", {"command": "wait"}, wait_ms=0)).json()
    path = f"/v1/commands/{said['command_id']}"
    assert "has not ended" in problem(await there.client.get(f"{path}/receipt"), 404, "not-found")["detail"]
    there.worker.commands[said["command_id"]].may_go_on.set()
    assert (await there.client.get(path, params={"wait_ms": 20_000})).json()["status"] == "succeeded"
    assert (await there.client.get(f"{path}/receipt")).content == BYTES


# --- commands in sandboxes ---------------------------------------------------------------------------------


async def test_a_command_in_a_sandbox_has_the_receipt_of_its_worker(there: Desk) -> None:
    sandbox = await there.sandbox()
    command_id, process = await there.background(sandbox, "echo hi; wait")
    path = f"/v1/sandboxes/{sandbox}/commands/{command_id}/receipt"
    assert "has not ended" in problem(await there.client.get(path), 404, "not-found")["detail"]
    process.may_go_on.set()
    await there.client.get(path.removesuffix("/receipt"), params={"wait_ms": 20_000})
    assert (await there.client.get(path)).content == BYTES
    there.worker.receipt = b""
    assert "without receipts" in problem(await there.client.get(path), 404, "not-found")["detail"]
    missing = await there.client.get(f"/v1/sandboxes/{sandbox}/commands/nobody/receipt")
    problem(missing, 404, "command-not-found", "command_not_found")
