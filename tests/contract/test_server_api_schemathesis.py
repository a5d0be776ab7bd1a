"""Schemathesis over the server's OpenAPI document: many strange requests, no surprise.

The bridge's paths have a suite of their own: a long poll that is valid takes its minute.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from fumehood.control.http.openapi import document
from fumehood.door.server import make_server
from tests.contract.server_api_harness import ADMIN, Api

CONTRACT = Path(__file__).parents[2] / "contracts" / "openapi" / "server.json"
BRIDGE = "^/v1/(workers|tasks)/"
schema = schemathesis.openapi.from_dict(document()).exclude(path_regex=BRIDGE)


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    server = make_server(Api().app, Address())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    headers = {"authorization": f"Bearer {ADMIN}"}
    simplest = {"name": "0", "steps": [{"id": "a", "task": "t"}]}  # the first name that a generator thinks of
    httpx.put(f"{url}/v1/workflows/0", json=simplest, headers=headers).raise_for_status()
    yield url
    server.should_exit = True
    thread.join(10)


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_surprises_the_door(case: schemathesis.Case[Any], base_url: str) -> None:
    """Whether a definition holds together is more than its schema can say, in either direction."""
    lenient = case.operation.definition.raw.get("operationId") == "apply_workflow"
    excluded = [positive_data_acceptance, negative_data_rejection] if lenient else []
    headers = {"Authorization": f"Bearer {ADMIN}"}
    case.call_and_validate(base_url=base_url, headers=headers, excluded_checks=excluded)


def test_every_phase_and_every_check_over_the_committed_document(base_url: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "run", str(CONTRACT), "--exclude-path-regex", BRIDGE]
    options = ["--url", base_url, "--header", f"Authorization: Bearer {ADMIN}", "--checks", "all"]
    options += ["--exclude-operation-id", "apply_workflow"]
    options += ["--exclude-operation-id", "read_run_value"]  # nobody guesses a hash: all that it would find is 404
    amount = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20", "--no-color"]
    done = subprocess.run([*command, *options, *amount], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
