"""A start that waits for the end of its command, at the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fumehood.node.console import session_calls
from fumehood.sandbox.sessions.output import Output
from fumehood.wire.console.sessions import LONGEST_START_WAIT_MS, START_OUTPUT_BYTES
from tests.unit.session_world import World, wish
from tests.unit.test_command_receipts import life


async def answered(folder: Path, argv: list[str], wait_ms: int) -> tuple[Any, bytes]:
    """The command as the answer to its start tells it, or the code of a refusal; and what it printed."""
    async with life(World(folder)) as worker:
        await worker.sessions.create(wish())
        asked = {"session_id": "s1", "command_id": "c", "argv": argv, "wait_ms": wait_ms}
        result = await worker.do("session.start", asked)
        return (json.loads(result.payload_json) if result.payload_json else result.error.code), result.data


@pytest.mark.parametrize(
    ("argv", "stdout", "stderr", "data"),
    [
        (["sleep", "0.1"], 6, 0, b"begun\n"),
        (["both", "out", "err"], 3, 3, b"outerr"),
        (["exit", "0"], 0, 0, b""),
    ],
)
async def test_a_quick_command_is_answered_with_its_end_and_its_output(
    tmp_path: Path, argv: list[str], stdout: int, stderr: int, data: bytes
) -> None:
    ended, printed = await answered(tmp_path, argv, LONGEST_START_WAIT_MS)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)
    assert (ended["stdout_bytes"], ended["stderr_bytes"], printed) == (stdout, stderr, data)


async def test_longer_output_is_left_to_be_asked_for(tmp_path: Path) -> None:
    ended, printed = await answered(tmp_path, ["flood", str(2 * START_OUTPUT_BYTES)], LONGEST_START_WAIT_MS)
    assert (ended["status"], ended["stdout_bytes"], printed) == ("exited", 2 * START_OUTPUT_BYTES, b"")


async def test_output_that_cannot_be_read_does_not_fail_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr(Output, "read", broken)
    ended, printed = await answered(tmp_path, ["echo", "hi"], LONGEST_START_WAIT_MS)
    assert (ended["status"], ended["stdout_bytes"], printed) == ("exited", 3, b"")


@pytest.mark.parametrize("wait_ms", [0, LONGEST_START_WAIT_MS])
async def test_a_start_waits_no_longer_than_asked(tmp_path: Path, wait_ms: int) -> None:
    running, printed = await answered(tmp_path, ["sleep", "3"], wait_ms)
    assert (running["status"], printed) == ("running", b"")


async def test_only_some_starts_wait_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_calls, "MOST_WAITING_STARTS", 0)
    running, _ = await answered(tmp_path, ["sleep", "0.1"], LONGEST_START_WAIT_MS)
    assert running["status"] == "running"


async def test_a_longer_wait_is_refused(tmp_path: Path) -> None:
    refusal, _ = await answered(tmp_path, ["echo", "hi"], LONGEST_START_WAIT_MS + 1)
    assert refusal == "invalid_payload"
