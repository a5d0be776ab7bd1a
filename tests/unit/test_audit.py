"""The audit list: a line for everything, no line twice, and a gap that is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.control import audit as module
from fumehood.control.audit import LONGEST, REFUSAL_MS, Audit, Outcome
from fumehood.control.callers import ADMIN, Caller, Scope

BOB = Caller("acme", "k1/bob", frozenset({Scope.RUNS_READ}))


class World:
    def __init__(self, faults: Faults | None = None) -> None:
        self.now = 1_700_000_000_000
        self.broker = MemoryBroker(MemoryServer(), faults=faults or Faults())
        self.audit = Audit(self.broker, now_ms=lambda: self.now)

    async def lines(self) -> list[dict[str, Any]]:
        return [json.loads(entry.data) for entry in await self.broker.audit.tail(after=0, limit=1000)]


async def test_a_line_says_who_did_what_to_what_and_how_that_went() -> None:
    world = World()
    await world.audit.note(BOB, "run.started", "w", {"run_id": "run-1"}, request_id="r1")
    assert await world.lines() == [
        {
            "at": world.now,
            "tenant": "acme",
            "by": "k1/bob",
            "action": "run.started",
            "target": "w",
            "request_id": "r1",
            "detail": {"outcome": "done", "run_id": "run-1"},
        }
    ]


async def test_a_line_stands_in_the_list_of_the_tenant_that_it_concerns() -> None:
    world = World()
    await world.audit.note(ADMIN, "key.created", "k2", tenant="acme")
    assert [(line["tenant"], line["by"]) for line in await world.lines()] == [("acme", "admin")]


async def test_the_same_refusal_is_one_line_a_minute() -> None:
    world = World()

    async def refuse(caller: Caller, action: str) -> None:
        await world.audit.note(caller, action, "run-1", outcome=Outcome.REFUSED)

    for _ in range(100):
        await refuse(BOB, "run.cancelled")
    await refuse(BOB, "run.retried")
    await refuse(Caller("globex", "k1/bob", frozenset()), "run.cancelled")
    assert len(await world.lines()) == 3
    world.now += REFUSAL_MS
    await refuse(BOB, "run.cancelled")
    assert len(await world.lines()) == 4
    assert world.audit.counts == {"written": 4, "spared": 99}


async def test_deeds_are_lines_however_often() -> None:
    world = World()
    for _ in range(3):
        await world.audit.note(BOB, "run.started", "w")
    assert len(await world.lines()) == 3


async def test_what_a_path_holds_does_not_make_a_line_endless() -> None:
    world = World()
    await world.audit.note(BOB, "run.cancelled", "x" * 60_000, {"step": "y" * 60_000}, outcome=Outcome.REFUSED)
    (line,) = await world.lines()
    assert (len(line["target"]), len(line["detail"]["step"])) == (LONGEST, LONGEST)


class Away(Faults):
    async def call(self, operation: str, subject: str) -> Verdict:
        return Verdict.LOST if operation == "audit.add" else Verdict.OK


class Hangs(Faults):
    async def call(self, operation: str, subject: str) -> Verdict:
        if operation == "audit.add":
            await asyncio.Event().wait()
        return Verdict.OK


@pytest.mark.parametrize("faults", [Away(), Hangs()])
async def test_a_line_that_cannot_be_written_is_told_and_changes_nothing(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOTE_SECONDS", 0.05)
    world = World(faults)
    with structlog.testing.capture_logs() as logs:
        await world.audit.note(BOB, "run.started", "w")
    assert world.audit.counts == {"lost": 1}
    (line,) = logs
    assert (line["event"], line["log_level"], line["by"], line["action"]) == (
        "audit.lost",
        "error",
        "k1/bob",
        "run.started",
    )
