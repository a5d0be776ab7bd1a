"""The Worker API's files in `contracts/`: current, and the golden payloads fit models and schemas alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from fumehood.door.problems import problem
from fumehood.node.http import schema as schema_of_the_door
from fumehood.node.http.openapi import document, files, main
from fumehood.wire.problem import ProblemDetails
from fumehood.wire.worker_api import RunJobResponse, parse_run_job_request
from tests.contract.worker_api_harness import CONTRACTS, GOLDEN, a_request, golden

RESPONSES = sorted(path.name for path in GOLDEN.glob("response-*.json"))
PROBLEMS = sorted(path.stem for path in GOLDEN.glob("problems/*.json"))


def schema(name: str) -> jsonschema_rs.Validator:
    text = (CONTRACTS / "schemas" / f"worker-api-{name}.json").read_text(encoding="utf-8")
    return jsonschema_rs.validator_for(json.loads(text), validate_formats=True)


@pytest.mark.parametrize("path", sorted(files()))
def test_a_committed_file_is_current(path: str) -> None:
    """After a change: `python -m fumehood.node.http.openapi`."""
    assert (CONTRACTS / path).read_text(encoding="utf-8") == files()[path]


def test_the_files_can_be_written_anywhere(tmp_path: Path) -> None:
    main(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == set(files())


def test_the_golden_request_fits_model_and_schema() -> None:
    text = (GOLDEN / "request.json").read_bytes()
    assert json.loads(parse_run_job_request(text).model_dump_json()) == json.loads(text)
    assert schema("run-job-request").is_valid(json.loads(text))


@pytest.mark.parametrize("name", RESPONSES)
def test_a_golden_response_fits_model_and_schema(name: str) -> None:
    text = (GOLDEN / name).read_text(encoding="utf-8")
    assert json.loads(RunJobResponse.model_validate_json(text).model_dump_json()) == json.loads(text)
    assert schema("run-job-response").is_valid(json.loads(text))


def test_there_is_a_golden_response_for_every_status() -> None:
    assert RESPONSES == ["response-completed.json", "response-failed.json", "response-timeout.json"]


@pytest.mark.parametrize("code", PROBLEMS)
def test_a_golden_problem_is_what_the_door_says(code: str) -> None:
    stored = golden(f"problems/{code}.json")
    assert ProblemDetails.model_validate(stored).status == stored["status"]
    assert schema("problem").is_valid(stored)
    made = problem(code, stored["detail"], stored["instance"])
    assert json.loads(bytes(made.body)) == stored


def test_there_is_a_golden_problem_for_every_kind_that_this_door_has() -> None:
    assert set(PROBLEMS) == set(schema_of_the_door.PROBLEMS) - {"forbidden"}


@pytest.mark.parametrize(
    "body",
    [
        a_request(command=[]),
        a_request(command=[""]),
        a_request(command=["a\0"]),
        a_request(env={"A=B": "c"}),
        a_request(env={"A": 1}),
        a_request(timeout_seconds=0),
        a_request(timeout_seconds=None),
        a_request(network_policy="full"),
        a_request(extra=1),
        a_request() | {"version": 2},
        a_request() | {"job_id": "x"},
    ],
)
def test_the_schema_refuses_what_the_model_refuses(body: dict[str, Any]) -> None:
    assert not schema("run-job-request").is_valid(body)


@pytest.mark.parametrize(
    "changes", [{"exit_code": None}, {"status": "timeout"}, {"started_at": "2026-02-16T12:00:00+01:00"}, {"x": 1}]
)
def test_the_response_schema_knows_its_rules(changes: dict[str, Any]) -> None:
    assert not schema("run-job-response").is_valid(golden("response-completed.json") | changes)


def test_the_document_has_the_token_the_problems_and_the_headers() -> None:
    made = document()
    assert made["openapi"].startswith("3.1")
    operation = made["paths"]["/v1/worker/jobs:run"]["post"]
    assert operation["security"] == [{"workerToken": []}]
    assert set(operation["responses"]) == {"200", "400", "401", "405", "408", "409", "413", "415", "500", "503"}
    for status, response in operation["responses"].items():
        kind = "application/json" if status == "200" else "application/problem+json"
        assert list(response["content"]) == [kind]
        assert "X-Request-Id" in response["headers"]
    assert "Fumehood-Effective-Timeout" in operation["responses"]["200"]["headers"]
    assert "422" not in json.dumps(made)
