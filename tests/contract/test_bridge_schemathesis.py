"""Schemathesis over the bridge's part of the OpenAPI document: many strange requests, no surprise.

Streams end at once here, and polls wait for a moment only: what is looked at is how a request is read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from fumehood.broker.handout import Leased
from fumehood.broker.memory import MemoryBroker
from fumehood.control.bridge import Bridge, BridgeOptions
from fumehood.wire.bridge import PollRequest
from tests.contract.bridge_harness import TOKEN, make_app, served_in_thread


class ImpatientBridge(Bridge):
    async def poll(self, request: PollRequest) -> list[Leased]:
        return await super().poll(request.model_copy(update={"timeout_ms": min(request.timeout_ms, 1)}))


def make_bridge() -> Bridge:
    return ImpatientBridge(MemoryBroker(), BridgeOptions(stream_seconds=0.0))


DOCUMENT = make_app(make_bridge()).openapi()
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with served_in_thread(make_app(make_bridge())) as url:
        yield url


@schema.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_surprises_the_bridge(case: schemathesis.Case[Any], base_url: str) -> None:
    case.call_and_validate(base_url=base_url, headers={"Authorization": f"Bearer {TOKEN}"})


@pytest.mark.storm
def test_every_phase_and_every_check_over_the_document(base_url: str, tmp_path: Path) -> None:
    document = tmp_path / "bridge.json"
    document.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--url", base_url, "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all"]
    amount = ["--phases", "coverage,fuzzing", "--max-examples", "5", "--warnings", "off", "--no-color"]
    done = subprocess.run(
        [str(program), "run", str(document), *options, *amount],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout


def test_the_document_has_the_token_the_problems_and_every_path() -> None:
    assert set(DOCUMENT["paths"]) == {
        "/v1/workers/connect",
        "/v1/workers/{worker_id}",
        "/v1/tasks/poll",
        "/v1/tasks/{task_id}/resolve",
        "/v1/tasks/{task_id}/checkpoint",
    }
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            assert operation["security"] == [{"bridgeToken": []}]
            assert {"200", "401", "403", "405", "500", "503"} <= set(operation["responses"])
            assert "422" not in operation["responses"]
