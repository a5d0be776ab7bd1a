"""Readiness: what it rests on, and that nobody has to guess why a node is not ready."""

from __future__ import annotations

import io
import json
from pathlib import Path

from fumehood.errors import EngineUnavailableError, SandboxStartError
from fumehood.node.readiness import ReadinessWatch
from fumehood.node.telemetry import Telemetry


class Engine:
    """A driver that fails as it is told, and counts."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.checks = 0

    async def ping(self) -> None:
        pass

    async def check(self) -> None:
        self.checks += 1
        if self.error is not None:
            raise self.error


def reasons(log: io.StringIO) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [(line["level"], line["reason"]) for line in lines if line["event"] == "readiness.changed"]


async def test_every_new_reason_is_logged_and_no_reason_twice(tmp_path: Path, log: io.StringIO) -> None:
    """The first one, too: a node that never becomes ready must not be silent."""
    engine = Engine()
    watch = ReadinessWatch(engine, tmp_path, Telemetry())
    for error in (
        SandboxStartError("runtime nonsuch cannot run a sandbox"),
        SandboxStartError("runtime nonsuch cannot run a sandbox"),
        EngineUnavailableError("the container engine does not answer"),
        None,
        None,
    ):
        engine.error = error
        await watch.once()
    assert reasons(log) == [
        ("warning", "runtime nonsuch cannot run a sandbox"),
        ("warning", "the container engine does not answer"),
        ("info", "ready"),
    ]


async def test_a_proof_is_not_asked_for_again_at_once(tmp_path: Path) -> None:
    engine = Engine()
    watch = ReadinessWatch(engine, tmp_path, Telemetry())
    assert (await watch.once()).ready
    assert (await watch.once()).ready
    assert engine.checks == 1
