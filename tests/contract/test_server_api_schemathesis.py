"""Schemathesis over the server's OpenAPI document: many strange requests, no surprise.

The bridge's paths have a suite of their own: a long poll that is valid takes its minute.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from fumehood.control.console.output_streams import OutputOptions
from fumehood.control.event_streams import EventOptions
from fumehood.control.http.openapi import document
from fumehood.door.server import make_server
from tests.contract.console_worker import MemoryWorker
from tests.contract.server_api_harness import ADMIN, Api
from tests.waiting import wait_until

CONTRACT = Path(__file__).parents[2] / "contracts" / "openapi" / "server.json"
BRIDGE = "^/v1/(workers|tasks)/"
schema = schemathesis.openapi.from_dict(document()).exclude(path_regex=BRIDGE)
quick_schema = schemathesis.openapi.from_dict(document()).exclude(path_regex=BRIDGE)
quick_schema.config.phases.coverage.enabled = False

LENIENT = {
    "apply_workflow": [positive_data_acceptance, negative_data_rejection],
    "put_schedule": [positive_data_acceptance],
    "events": [positive_data_acceptance],
    "list_runs": [positive_data_acceptance],
    "list_dead_letters": [positive_data_acceptance],
    "list_audit": [positive_data_acceptance],
    "create_key": [positive_data_acceptance],
    "createRun": [positive_data_acceptance],
    "listRuns": [positive_data_acceptance],
    "followRunLogs": [positive_data_acceptance],
    "follow_step_logs": [positive_data_acceptance],
    "create_sandbox": [positive_data_acceptance],
    "run_in_sandbox": [positive_data_acceptance],
    "follow_command": [positive_data_acceptance],
    "follow_sandbox_command": [positive_data_acceptance],
    "put_receipt_keys": [positive_data_acceptance],
    "submit_job": [positive_data_acceptance],
    "upload_bundle": [positive_data_acceptance],
}
"""Whether a definition or a cron expression holds together is more than a schema can say, and so is how many parts the
cell has that an event's id speaks of, whether a cursor is one, which scopes are for which tenant, whether an image may
run, that two fields exclude each other, how long a lease a worker gives, whether a signature holds, what the type of a
job asks for, and that nothing is no bundle. (For the header `Last-Event-ID` the tool's coverage phase takes `0`,
whatever the pattern.)"""
UNGUESSABLE = (
    "read_run_value", "revoke_key", "retry_run", "approve_step", "reject_step", "skip_step", "complete_step",
    "make_approval_token", "getRunReceipt", "get_step_receipt", "get_command_receipt", "get_sandbox_command_receipt",
)  # fmt: skip
"""Nobody guesses a hash, a key's id, a run that stands so that it can be done, or a command whose worker signed: all
that would be found is 404."""


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    api = Api(event_options=EventOptions(stream_seconds=0.001), output_options=OutputOptions(stream_seconds=0.001))
    server = make_server(api.app, Address())

    async def serve() -> None:
        async with api.service.index.working(), api.service.desk.working(), api.deciding():
            await MemoryWorker().connect(api.service.desk)
            await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    headers = {"authorization": f"Bearer {ADMIN}"}
    simplest = {"name": "0", "steps": [{"id": "a", "task": "t"}]}  # the first name that a generator thinks of
    httpx.put(f"{url}/v1/workflows/0", json=simplest, headers=headers).raise_for_status()
    hourly = {"workflow": "0", "cron": "@hourly"}
    httpx.put(f"{url}/v1/schedules/0", json=hourly, headers=headers).raise_for_status()
    httpx.post(f"{url}/v1/sandboxes", json={"sandbox_id": "0"}, headers=headers).raise_for_status()
    yield url
    server.should_exit = True
    thread.join(120)


@quick_schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_surprises_the_door(case: schemathesis.Case[Any], base_url: str) -> None:
    check(case, base_url)


@pytest.mark.variant
@schema.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_of_the_coverage_phase_surprises_the_door(case: schemathesis.Case[Any], base_url: str) -> None:
    check(case, base_url)


def check(case: schemathesis.Case[Any], base_url: str) -> None:
    assume(all(value not in ([], {}) for value in (case.query or {}).values()))  # such a one is not in the address
    excluded = LENIENT.get(case.operation.definition.raw.get("operationId"), [])
    headers = {"Authorization": f"Bearer {ADMIN}"}
    case.call_and_validate(base_url=base_url, headers=headers, excluded_checks=excluded)


@pytest.mark.timeout(600)
@pytest.mark.storm
def test_every_phase_and_every_check_over_the_committed_document(base_url: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "run", str(CONTRACT), "--exclude-path-regex", BRIDGE]
    options = ["--url", base_url, "--header", f"Authorization: Bearer {ADMIN}", "--checks", "all"]
    for name in (*LENIENT, *UNGUESSABLE):
        options += ["--exclude-operation-id", name]
    amount = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "10", "--no-color"]
    amount += ["--warnings", "off"]  # that no run was found by an id that chance made is no fault of the document
    done = subprocess.run([*command, *options, *amount], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
