"""The golden payloads of commands and sandboxes, against the models and the document; and real answers against both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest

from fumehood.control.console.record import Record
from fumehood.control.http.command_views import command_json
from fumehood.control.http.openapi import document
from fumehood.door.problems import KINDS, REASONS
from fumehood.wire import command_api, sandbox_api
from fumehood.wire.base import WireModel, validate
from fumehood.wire.command_api import CommandStatus, CommandView
from fumehood.wire.console.sessions import CommandStatus as WireStatus
from fumehood.wire.sandbox_api import SandboxCommandStatus
from tests.contract.console_harness import GOLDEN, Desk, desk, golden

OURS = document()
REQUESTS: dict[str, type[WireModel]] = {
    "submit-request.json": command_api.SubmitCommandRequest,
    "create-sandbox-request.json": sandbox_api.CreateSandboxRequest,
    "run-request.json": sandbox_api.RunCommandRequest,
    "run-terminal-request.json": sandbox_api.RunCommandRequest,
    "signal-request.json": sandbox_api.SignalCommandRequest,
}
COMMANDS = {f"command-{status.value}.json": CommandView for status in CommandStatus}
ANSWERS: dict[str, type[WireModel]] = {
    **COMMANDS,
    "problem-no-worker.json": command_api.CommandProblem,
    "sandbox.json": sandbox_api.SandboxView,
    "sandbox-list.json": sandbox_api.SandboxList,
    "sandbox-command-exited.json": sandbox_api.SandboxCommandView,
    "sandbox-command-running.json": sandbox_api.SandboxCommandView,
    "output-event.json": command_api.OutputEvent,
    "files.json": sandbox_api.FileList,
}


def fits(model: str, said: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{model}", "components": OURS["components"]}
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(said)


def test_every_golden_file_is_tried() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {*REQUESTS, *ANSWERS}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_golden_request_fits(name: str) -> None:
    said = golden(name)
    fits(REQUESTS[name].__name__, said)
    read = validate(REQUESTS[name], said)
    assert json.loads(read.model_dump_json(exclude_unset=True)) == said


@pytest.mark.parametrize("name", ANSWERS)
def test_a_golden_answer_fits_and_is_written_as_it_was(name: str) -> None:
    said = golden(name)
    fits(ANSWERS[name].__name__, said)
    written = ANSWERS[name].model_validate_json(json.dumps(said)).model_dump_json()
    assert json.dumps(json.loads(written)) == json.dumps(said)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_written_by_hand_is_what_the_model_says(name: str) -> None:
    said = golden(name)
    error = said.get("error", {})
    record = Record(
        command_id=said["command_id"],
        tenant="t",
        by="b",
        capability=said["capability"],
        status=CommandStatus(said["status"]),
        created_ms=1_771_243_200_000,
        timeout_ms=1,
        ended_ms=1_771_243_201_500 if "ended_at" in said else None,
        result_json=json.dumps(said["result"]) if "result" in said else None,
        reason=error.get("code"),
        message=error.get("message", ""),
    )
    assert json.dumps(json.loads(command_json(record))) == json.dumps(said)


def test_words_for_how_things_stand_are_the_workers_own() -> None:
    assert {status.value for status in CommandStatus} == {status.value for status in CommandStatus}
    assert {status.value for status in SandboxCommandStatus} == {status.value for status in WireStatus}
    assert KINDS["no-worker"].title == golden("problem-no-worker.json")["title"]


def test_the_document_has_every_problem_and_no_name_twice() -> None:
    examples = OURS["components"]["schemas"]["ProblemDetails"]["properties"]["type"]["examples"]
    assert {f"urn:fumehood:problem:{code}" for code in REASONS.values()} <= set(examples)
    assert not [name for name in OURS["components"]["schemas"] if "__" in name], "two models of one name"


# --- real answers ------------------------------------------------------------------------------------------


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


async def test_real_answers_fit_the_document(there: Desk) -> None:
    for payload in (None, {"a": 1}, "x"):
        fits("CommandView", (await there.submit(payload=payload)).json())
    running = await there.submit("pythonExec", {"code": "sleep"}, wait_ms=0)
    fits("CommandView", running.json())
    fits("CommandView", (await there.client.post(f"{running.headers['location']}:cancel")).json())
    sandbox = await there.sandbox()
    path = f"/v1/sandboxes/{sandbox}"
    fits("SandboxView", (await there.client.get(path)).json())
    fits("SandboxList", (await there.client.get("/v1/sandboxes")).json())
    fits("SandboxCommandView", (await there.run(sandbox, "echo a; exit 1")).json())
    fits("SandboxCommandView", (await there.run(sandbox, "sleep", wait_ms=0)).json())
    fits("SandboxCommandList", (await there.client.get(f"{path}/commands")).json())
    fits("FileList", (await there.client.get(f"{path}/files/list", params={"path": "/"})).json())
    fits("FileInfo", (await there.client.get(f"{path}/files/stat", params={"path": "/"})).json())
    fits("CommandProblem", (await there.client.get(f"{path}/files/stat", params={"path": "no"})).json())
    fits("CommandProblem", (await there.client.get(f"{path}/files/stat")).json())
