"""Contract 2 as it was given (`contracts/runner-api.yaml`) against the server's own document, the golden payloads, and
every answer that the contract names, as the door really gives it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml

from fumehood.control.http.openapi import document
from fumehood.door.problems import KINDS
from fumehood.wire import runner_api
from fumehood.wire.base import WireModel, validate
from fumehood.wire.runner_api import CreateRunRequest, DeniedProblem, GetRunResponse, RunnerStatus
from fumehood.wire.sandbox import NetworkProfile, RunEnd, RunReason
from tests.contract.runner_harness import CONTRACTS, GOLDEN, Door, golden, report, wish
from tests.contract.server_api_harness import Api
from tests.unit.key_world import Outage

CONTRACT: dict[str, Any] = yaml.safe_load((CONTRACTS / "runner-api.yaml").read_text(encoding="utf-8"))
OURS = document()
BEYOND = {"network_policy_profile": {profile.value for profile in NetworkProfile} - {"deny-all", "dns-only"}}
"""Where we know more values than the contract."""
RUNS = sorted(path.name for path in GOLDEN.glob("run-*.json"))


def operations() -> Iterator[tuple[str, str]]:
    for path, methods in CONTRACT["paths"].items():
        for method in methods:
            yield path, method


def rooted(whole: dict[str, Any], name: str) -> jsonschema_rs.Validator:
    """A schema of a document, with all those that it refers to."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": whole["components"]}
    return jsonschema_rs.validator_for(schema, validate_formats=True)


def fits(name: str, said: Any) -> None:
    """Both documents have the same name for it, and both must agree."""
    rooted(CONTRACT, name).validate(said)
    rooted(OURS, name).validate(said)


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A property without its words, and with a null written as the contract's file writes it."""
    found = {key: value for key, value in schema.items() if key not in ("description", "title", "examples")}
    if "allOf" in found and len(found["allOf"]) == 1:
        found |= found.pop("allOf")[0]
    if "$ref" in found and "enum" in (named := OURS["components"]["schemas"][found["$ref"].rpartition("/")[2]]):
        found = {"type": named["type"], "enum": named["enum"]}
    if "anyOf" in found:
        (kind,) = (plain(option) for option in found.pop("anyOf") if option != {"type": "null"})
        found |= kind | {"type": [kind["type"], "null"]}
        found.pop("enum", None)
    return found


# --- the document ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "method"), list(operations()))
def test_every_operation_of_the_contract_is_ours(path: str, method: str) -> None:
    theirs, ours = CONTRACT["paths"][path][method], OURS["paths"][path][method]
    assert ours["operationId"] == theirs["operationId"]
    assert set(theirs["responses"]) <= set(ours["responses"])
    assert ours.get("requestBody", {}).get("required") == theirs.get("requestBody", {}).get("required")
    for status, response in theirs["responses"].items():
        if "content" in response:
            assert ours["responses"][status]["content"] == response["content"]
    for theirs_one in theirs.get("parameters", []):
        (ours_one,) = (one for one in ours["parameters"] if one["name"] == theirs_one["name"])
        assert (ours_one["in"], ours_one["required"]) == (theirs_one["in"], theirs_one["required"])
        assert theirs_one["schema"].items() <= ours_one["schema"].items()


@pytest.mark.parametrize("name", CONTRACT["components"]["schemas"])
def test_every_schema_of_the_contract_is_ours(name: str) -> None:
    theirs, ours = CONTRACT["components"]["schemas"][name], OURS["components"]["schemas"][name]
    is_request = name in ("CreateRunRequest", "ResourceLimits")
    required = set(ours["required"])
    assert required == set(theirs["required"]) if is_request else set(theirs["required"]) <= required
    for field, schema in theirs["properties"].items():
        found = plain(ours["properties"][field])
        for rule, value in schema.items():
            if rule == "enum":
                assert set(found["enum"]) == set(value) | BEYOND.get(field, set()), field
            elif rule in ("additionalProperties", "items"):
                continue  # ours say more: see the bounds
            else:
                assert found[rule] == value, (field, rule)


def test_the_bounds_that_the_contract_leaves_open_are_in_the_document() -> None:
    fields = OURS["components"]["schemas"]["CreateRunRequest"]["properties"]
    assert OURS["components"]["schemas"]["CreateRunRequest"]["additionalProperties"] is False
    assert fields["env_allowlist"]["maxProperties"] == 128
    assert list(fields["env_allowlist"]["patternProperties"]) == ["^[A-Za-z_][A-Za-z0-9_]*$"]
    assert "deny-all" in fields["network_policy_profile"]["description"]
    assert fields["max_attempts"]["maximum"] == 5


def test_every_operation_of_ours_has_its_scope() -> None:
    for path, methods in OURS["paths"].items():
        if path.startswith("/runs"):
            for method, operation in methods.items():
                assert operation["x-fumehood-scope"] == ("runs:write" if method == "post" else "runs:read")
                assert {"401", "403", "503"} <= set(operation["responses"])


# --- golden payloads ---------------------------------------------------------------------------------------


def same(model: type[WireModel], said: Any) -> None:
    """Read and written again it is what it was, to the order of its fields."""
    written = model.model_validate_json(json.dumps(said)).model_dump_json()
    assert json.dumps(json.loads(written)) == json.dumps(said)


def test_the_golden_request_fits() -> None:
    said = golden("create-request.json")
    fits("CreateRunRequest", said)
    request = validate(CreateRunRequest, said)
    assert json.loads(request.model_dump_json(exclude_defaults=True)) == said


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("create-response.json", runner_api.CreateRunResponse),
        ("logs.json", runner_api.GetLogsResponse),
        *((name, GetRunResponse) for name in RUNS),
    ],
)
def test_a_golden_answer_fits_the_contract_and_ours(file: str, model: type[WireModel]) -> None:
    said = golden(file)
    fits(model.__name__, said)
    same(model, said)


def test_there_is_a_golden_run_for_every_status() -> None:
    assert sorted(f"run-{status.value}.json" for status in RunnerStatus) == RUNS
    assert {golden(name)["status"] for name in RUNS} == set(RunnerStatus)


@pytest.mark.parametrize("name", ["denied.json", "denied-unresolved.json"])
def test_a_golden_denial_fits(name: str) -> None:
    said = golden(name)
    rooted(OURS, "DeniedProblem").validate(said)
    same(DeniedProblem, said)
    assert KINDS["policy-denied"].title == said["title"]


def test_a_golden_list_fits() -> None:
    rooted(OURS, "ListRunsResponse").validate(golden("list.json"))
    same(runner_api.ListRunsResponse, golden("list.json"))


@pytest.mark.parametrize(
    "changes", [{"resources": {}}, {"network_policy_profile": "open"}, {"env_allowlist": {"A-B": "c"}}, {"x": 1}]
)
def test_our_schema_refuses_what_the_door_refuses(changes: dict[str, Any]) -> None:
    assert not rooted(OURS, "CreateRunRequest").is_valid(wish(**changes))


# --- real answers ------------------------------------------------------------------------------------------


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    api = Api()
    async with api.client() as client:
        yield Door(api, client)


def is_problem(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    model = "DeniedProblem" if "policy_evidence" in answer.json() else "ProblemDetails"
    rooted(OURS, model).validate(answer.json())


async def test_every_answer_of_creation(door: Door) -> None:
    for status in (201, 200):
        answer = await door.create("k", command=["a"], workflow_context={"a": 1})
        assert answer.status_code == status
        fits("CreateRunResponse", answer.json())
    is_problem(await door.create(resources={}), 400)
    is_problem(await door.create(image_ref="example.com/x"), 403)
    is_problem(await door.create(network_policy_profile="full"), 403)
    is_problem(await door.create("k"), 409)


async def test_a_fault_of_ours_is_500() -> None:
    class Broken(Outage):
        async def call(self, operation: str, subject: str) -> Any:
            if operation == "mailboxes.send":
                raise RuntimeError("a fault of ours")
            return await super().call(operation, subject)

    api = Api(faults=Broken())
    async with api.client() as client:
        answer = await Door(api, client).create()
    is_problem(answer, 500)
    assert "a fault" not in answer.text


async def test_every_state_of_a_run(door: Door) -> None:
    seen = {}

    async def look(run_id: str) -> None:
        found = await door.get(run_id)
        fits("GetRunResponse", found)
        seen[found["status"]] = found

    run_id = await door.created()
    await look(run_id)
    leased = await door.node.take()
    await look(run_id)
    await door.node.send(leased)
    await look(run_id)
    await door.node.complete(leased, report())
    await look(run_id)
    for code, end in ((RunReason.EXIT, RunEnd.FAILED), (RunReason.TIMEOUT, RunEnd.TIMED_OUT)):
        run_id = await door.created()
        await door.node.fail(await door.node.begin(), code.value, report(end, code, exit_code=None))
        await look(run_id)
    run_id = await door.created()
    await door.stop(run_id)
    await look(run_id)
    assert list(seen) == ["queued", "starting", "running", "succeeded", "failed", "timed_out", "stopped"]
    is_problem(await door.client.get("/runs/nobody"), 404)


async def test_every_answer_of_logs_and_stop(door: Door) -> None:
    run_id = await door.created()
    leased = await door.node.begin()
    await door.node.print(leased, b"out\n", b"err\n")
    answer = await door.client.get(f"/runs/{run_id}/logs")
    fits("GetLogsResponse", answer.json())
    assert answer.json() == {"run_id": run_id, "stdout": "out\n", "stderr": "err\n", "truncated": False}
    is_problem(await door.client.get("/runs/nobody/logs"), 404)
    stopped = await door.stop(run_id)
    assert (stopped.status_code, stopped.content) == (202, b"")
    is_problem(await door.stop("nobody"), 404)
