"""Schemathesis over the OpenAPI document: many strange requests, no surprise.

Twice, since each way sees something else: inside pytest, where a failure shrinks and shows its request, and as the
command that an outsider would run, with every phase and every check (wrong methods and ignored tokens included).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from fumehood.node.http.openapi import document
from tests.contract.worker_api_harness import CONTRACTS, TOKEN, ScriptedService, make_app, served_in_thread

schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with served_in_thread(make_app(ScriptedService())) as port:
        yield f"http://127.0.0.1:{port}"


@schema.parametrize()
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_surprises_the_door(case: schemathesis.Case[Any], base_url: str) -> None:
    case.call_and_validate(base_url=base_url, headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.mark.storm
def test_every_phase_and_every_check_over_the_committed_document(base_url: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "run", str(CONTRACTS / "openapi" / "worker-api.json")]
    options = ["--url", base_url, "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all"]
    amount = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "50", "--no-color"]
    done = subprocess.run([*command, *options, *amount], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
