"""A start that waits for the end of its command, at the worker."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.node.console import session_calls
from fumehood.sandbox.sessions.output import Output
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessFacts
from fumehood.wire.console.sessions import LONGEST_START_WAIT_MS, START_OUTPUT_BYTES
from tests.unit.session_world import World, wish
from tests.unit.test_command_receipts import Worker, life


class Desk:
    """A worker with a session."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._numbers = itertools.count()

    async def start(self, argv: list[str], wait_ms: int = LONGEST_START_WAIT_MS) -> tuple[Any, bytes]:
        """The command as the answer to its start tells it, or the code of a refusal; and what it printed."""
        asked = {"session_id": "s1", "command_id": f"c{next(self._numbers)}", "argv": argv, "wait_ms": wait_ms}
        result = await self._worker.do("session.start", asked)
        return (json.loads(result.payload_json) if result.payload_json else result.error.code), result.data


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with life(World(tmp_path)) as worker:
        await worker.sessions.create(wish())
        yield Desk(worker)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts wait for as long as this machine takes to store an end."""
    ended = Sessions.ended

    async def patiently(sessions: Sessions, command_id: str, _: float) -> ProcessFacts:
        return await ended(sessions, command_id, 30)

    monkeypatch.setattr(Sessions, "ended", patiently)


@pytest.mark.parametrize(
    ("argv", "stdout", "stderr", "data"),
    [
        (["sleep", "0.1"], 6, 0, b"begun\n"),
        (["both", "out", "err"], 3, 3, b"outerr"),
        (["exit", "0"], 0, 0, b""),
    ],
)
@pytest.mark.usefixtures("patient")
async def test_a_quick_command_is_answered_with_its_end_and_its_output(
    desk: Desk, argv: list[str], stdout: int, stderr: int, data: bytes
) -> None:
    ended, printed = await desk.start(argv)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0)
    assert (ended["stdout_bytes"], ended["stderr_bytes"], printed) == (stdout, stderr, data)


@pytest.mark.usefixtures("patient")
async def test_longer_output_is_left_to_be_asked_for(desk: Desk) -> None:
    ended, printed = await desk.start(["flood", str(2 * START_OUTPUT_BYTES)])
    assert (ended["status"], ended["stdout_bytes"], printed) == ("exited", 2 * START_OUTPUT_BYTES, b"")


@pytest.mark.usefixtures("patient")
async def test_output_that_cannot_be_read_does_not_fail_a_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr(Output, "read", broken)
    ended, printed = await desk.start(["echo", "hi"])
    assert (ended["status"], ended["stdout_bytes"], printed) == ("exited", 3, b"")


@pytest.mark.parametrize(("wait_ms", "waited"), [(0, []), (10, [0.01]), (LONGEST_START_WAIT_MS, [0.25])])
async def test_a_start_waits_for_as_long_as_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, wait_ms: int, waited: list[float]
) -> None:
    ended, seen = Sessions.ended, []

    async def watched(sessions: Sessions, command_id: str, seconds: float) -> ProcessFacts:
        seen.append(seconds)
        return await ended(sessions, command_id, seconds)

    monkeypatch.setattr(Sessions, "ended", watched)
    running, printed = await desk.start(["sleep", "3600"], wait_ms)
    assert (running["status"], printed, seen) == ("running", b"", waited)


@pytest.mark.usefixtures("patient")
async def test_only_some_starts_wait_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_calls, "MOST_WAITING_STARTS", 1)
    answers = await asyncio.gather(*(desk.start(["sleep", "3600"]) for _ in range(2)))
    in_order = [(running["command_id"], running["status"]) for running, _ in answers]
    assert in_order == [("c1", "running"), ("c0", "running")], "the first one waited, and the second one did not"
    ended, _ = await desk.start(["echo", "hi"])
    assert ended["status"] == "exited"


async def test_a_longer_wait_is_refused(desk: Desk) -> None:
    refusal, _ = await desk.start(["echo", "hi"], LONGEST_START_WAIT_MS + 1)
    assert refusal == "invalid_payload"
